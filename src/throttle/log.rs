//! What a throttle writes about itself, and to whom: nothing, unless it is asked to.

use crate::event::caught;
use std::fmt;
use std::sync::Arc;

/// Where a throttle writes what it does. [`Log::Off`] is the default: nothing is written, not even errors.
///
/// In production, write to something: a failed trailing run that nobody waits for is seen nowhere else, but as a number in
/// [`ThrottleStats::failed`](crate::ThrottleStats::failed).
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use valve::{Log, LogLevel, ThrottleWindow};
///
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let sink = Arc::clone(&lines);
/// let throttle = ThrottleWindow::<(), String>::builder("sync:room:")
///     .log(Log::to(move |record| sink.lock().unwrap().push((record.level, record.to_string()))))
///     .build()?;
/// throttle.job("42", |_run| Ok(())).exec()?;
/// let expected = (LogLevel::Info, "[throttle:sync:room] run key=42 phase=leading".to_owned());
/// assert_eq!(*lines.lock().unwrap(), [expected]);
/// # Ok::<(), valve::ThrottleError<String>>(())
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Log {
    /// Nothing is written.
    #[default]
    Off,
    /// The `log` crate, target `valve::throttle`.
    On,
    /// A sink of one's own, most easily made by [`Log::to`].
    To(Arc<dyn Fn(&LogRecord<'_>) + Send + Sync>),
}

impl Log {
    /// Writes to a sink of one's own. It is called on the thread whose doing it was, without any lock held, so it should be
    /// quick; a panic in it breaks nothing.
    pub fn to(sink: impl Fn(&LogRecord<'_>) + Send + Sync + 'static) -> Log {
        Log::To(Arc::new(sink))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Log::Off => "Off",
            Log::On => "On",
            Log::To(_) => "To(..)",
        })
    }
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// The breaker opened, calls were dropped, or the number of keys is unusually large.
    Debug,
    /// A run begins.
    Info,
    /// A trailing run failed, or could not be begun.
    Error,
}

/// One line: a message and what it is about. Displayed as `[throttle:name] message field=value ...`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LogRecord<'a> {
    /// How much it matters.
    pub level: LogLevel,
    /// The throttle's name.
    pub name: &'a str,
    /// What happened, always in the same words.
    pub message: &'a str,
    /// The particulars, by name.
    pub fields: &'a [(&'static str, &'a str)],
}

impl fmt::Display for LogRecord<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "[throttle:{}] {}", self.name, self.message)?;
        self.fields.iter().try_for_each(|(name, value)| write!(out, " {name}={value}"))
    }
}

/// A throttle's log. Never called with a lock held.
pub(super) struct Logger {
    name: Box<str>,
    log: Log,
}

impl Logger {
    pub(super) fn new(name: String, log: Log) -> Logger {
        Logger { name: name.into(), log }
    }

    /// Whether anybody reads it: spares making the fields.
    pub(super) fn is_on(&self) -> bool {
        !matches!(self.log, Log::Off)
    }

    pub(super) fn write(&self, level: LogLevel, message: &str, fields: &[(&'static str, &str)]) {
        let record = LogRecord { level, name: &self.name, message, fields };
        // A sink that panics, or a `log` implementation that does, must not end a run.
        let _ = match &self.log {
            Log::Off => None,
            Log::On => caught(|| {
                let level = match level {
                    LogLevel::Debug => log::Level::Debug,
                    LogLevel::Info => log::Level::Info,
                    LogLevel::Error => log::Level::Error,
                };
                log::log!(target: "valve::throttle", level, "{record}");
            }),
            Log::To(sink) => caught(|| sink(&record)),
        };
    }
}
