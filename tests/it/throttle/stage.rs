//! Where the throttle's behaviours are played: calls and closures as participants of one clock, and the trace of what happened.
//!
//! A trace is a list of lines that begin with the time in milliseconds: `1300 run 3 trailing`, `1600 wait 2: 3`. Lines of one
//! instant are in alphabetical order, which is nobody's promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Log, Phase, Ran, Run, ThrottleError, ThrottleWindow, ThrottleWindowBuilder};

use super::scripted::Scripted;
use crate::support::{micros, ms};

pub(super) type Throttle = ThrottleWindow<u32, String>;
pub(super) type Builder = ThrottleWindowBuilder<u32, String>;

/// Clones are the same stage.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) clock: ManualClock,
    trace: Arc<Mutex<Vec<(Duration, String)>>>,
}

/// What a closure does: it gives its number, or fails or panics with it, after some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    number: u32,
    takes: u64,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Good,
    Fails,
    Panics,
}

pub(super) fn work(number: u32) -> Work {
    Work { number, takes: 0, end: End::Good }
}

impl Work {
    /// In milliseconds.
    pub(super) fn takes(self, takes: u64) -> Work {
        Work { takes, ..self }
    }

    pub(super) fn fails(self) -> Work {
        Work { end: End::Fails, ..self }
    }

    pub(super) fn panics(self) -> Work {
        Work { end: End::Panics, ..self }
    }
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage { clock: ManualClock::new(), trace: Arc::default() }
    }

    /// A throttle with the prefix `p:`, this window in milliseconds, and an engine that no other can see.
    pub(super) fn private(&self, window: u64) -> Throttle {
        self.builder(window).build().unwrap()
    }

    /// The same on an engine of the test's.
    pub(super) fn on(&self, engine: &Scripted, window: u64) -> Throttle {
        self.builder(window).engine(engine.clone()).build().unwrap()
    }

    pub(super) fn builder(&self, window: u64) -> Builder {
        Throttle::builder("p:").window(ms(window)).clock(&self.clock)
    }

    /// A log whose lines go into the trace: `0 info run key=k phase=leading`.
    pub(super) fn log(&self) -> Log {
        let stage = self.clone();
        Log::to(move |record| {
            let level = format!("{:?}", record.level).to_lowercase();
            let text = record.to_string();
            let text = text.strip_prefix(&format!("[throttle:{}] ", record.name)).unwrap();
            stage.say(format!("{level} {text}"));
        })
    }

    pub(super) fn closure(
        &self,
        work: Work,
    ) -> impl FnOnce(&Run<'_>) -> Result<u32, String> + Send + 'static {
        let stage = self.clone();
        move |run: &Run<'_>| {
            stage.say(format!("run {} {}{}", work.number, phase(run), of(run.key)));
            stage.clock.sleep(ms(work.takes));
            if work.takes > 0 {
                stage.say(format!("end {}", work.number));
            }
            match work.end {
                End::Good => Ok(work.number),
                End::Fails => Err(format!("error {}", work.number)),
                End::Panics => panic!("closure {} panics, as it should", work.number),
            }
        }
    }

    /// At this time, in milliseconds, a participant calls `exec` and says what it gave.
    pub(super) fn exec(&self, throttle: &Throttle, at: u64, key: &str, work: Work) {
        let (stage, throttle, key) = (self.clone(), throttle.clone(), key.to_owned());
        self.at(at, move || stage.exec_here(&throttle, &key, work));
    }

    /// The same on the calling thread, now.
    pub(super) fn exec_here(&self, throttle: &Throttle, key: &str, work: Work) {
        let closure = self.closure(work);
        let given = catch_unwind(AssertUnwindSafe(|| throttle.job(key, closure).exec()));
        self.say(format!("exec {}: {}", work.number, told(given, ran)));
    }

    /// At this time a participant waits for the run that covers its call, and says what it gave.
    pub(super) fn wait(&self, throttle: &Throttle, at: u64, key: &str, work: Work) {
        let (stage, throttle, key) = (self.clone(), throttle.clone(), key.to_owned());
        self.at(at, move || stage.wait_here(&throttle, &key, work, None));
    }

    /// The same with a timeout, in milliseconds.
    pub(super) fn wait_for(&self, throttle: &Throttle, at: u64, timeout: u64, key: &str, work: Work) {
        let (stage, throttle, key) = (self.clone(), throttle.clone(), key.to_owned());
        self.at(at, move || stage.wait_here(&throttle, &key, work, Some(ms(timeout))));
    }

    pub(super) fn wait_here(&self, throttle: &Throttle, key: &str, work: Work, timeout: Option<Duration>) {
        let job = throttle.job(key, self.closure(work)).wait_finish();
        let job = match timeout {
            Some(timeout) => job.timeout(timeout),
            None => job,
        };
        let given = catch_unwind(AssertUnwindSafe(|| job.exec()));
        self.say(format!("wait {}: {}", work.number, told(given, |value| value.to_string())));
    }

    /// At this time a participant does something.
    pub(super) fn at(&self, at: u64, act: impl FnOnce() + Send + 'static) {
        let clock = self.clock.clone();
        self.clock.spawn(&format!("at {at}"), move || {
            clock.sleep(ms(at).saturating_sub(clock.now()));
            act();
        });
    }

    /// Adds a line to the trace.
    pub(super) fn say(&self, line: impl Into<String>) {
        self.trace.lock().push((self.clock.now(), line.into()));
    }

    /// Lets everything happen up to this time, in milliseconds.
    pub(super) fn until(&self, at: u64) {
        self.clock.advance(ms(at).saturating_sub(self.clock.now()));
    }

    /// What happened so far.
    pub(super) fn trace(&self) -> Vec<String> {
        let mut trace = self.trace.lock().clone();
        trace.sort();
        trace.into_iter().map(|(at, line)| format!("{} {line}", shown(at))).collect()
    }

    /// What happened so far, of these kinds: the first word after the time.
    pub(super) fn traced(&self, kinds: &[&str]) -> Vec<String> {
        let mut trace = self.trace();
        trace.retain(|line| line.split(' ').nth(1).is_some_and(|kind| kinds.contains(&kind)));
        trace
    }

    /// The times at which runs began, in milliseconds.
    pub(super) fn starts(&self) -> Vec<u64> {
        let runs = self.traced(&["run"]);
        runs.iter().map(|line| line.split([' ', '.']).next().unwrap().parse().unwrap()).collect()
    }

    /// Nothing else happened than this.
    #[track_caller]
    pub(super) fn check(&self, expected: &[&str]) {
        let trace = self.trace();
        assert_eq!(trace, expected, "{trace:#?}");
    }
}

/// The throttle's active, pending and held keys, and its timers.
#[track_caller]
pub(super) fn check_stats(throttle: &Throttle, expected: (usize, usize, usize, usize)) {
    let stats = throttle.stats();
    assert_eq!((stats.active, stats.pending, stats.keys, stats.timers), expected);
}

pub(super) fn shown(at: Duration) -> String {
    match (micros(at) / 1_000, micros(at) % 1_000) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{rest:03}"),
    }
}

fn phase(run: &Run<'_>) -> &'static str {
    match run.phase {
        Phase::Leading => "leading",
        Phase::Trailing => "trailing",
    }
}

/// Most tests have one key, called k.
fn of(key: &str) -> String {
    if key == "k" { String::new() } else { format!(" of {key}") }
}

fn ran(ran: Ran) -> String {
    match ran {
        Ran::Now => "now".to_owned(),
        Ran::Later => "later".to_owned(),
    }
}

type Given<T> = std::thread::Result<Result<T, ThrottleError<String>>>;

fn told<T>(given: Given<T>, good: impl FnOnce(T) -> String) -> String {
    match given {
        Err(_) => "unwound".to_owned(),
        Ok(Ok(value)) => good(value),
        Ok(Err(error)) => told_error(&error),
    }
}

pub(super) fn told_error(error: &ThrottleError<String>) -> String {
    let key = error.key().map_or(String::new(), of);
    match error {
        ThrottleError::Run(error) => (**error).clone(),
        ThrottleError::Timeout { timeout, .. } => format!("timeout {}{key}", shown(*timeout)),
        ThrottleError::Dropped { .. } => format!("dropped{key}"),
        ThrottleError::Destroyed { .. } => format!("destroyed{key}"),
        ThrottleError::Panicked { .. } => format!("panicked{key}"),
        ThrottleError::WouldDeadlock { .. } => format!("would deadlock{key}"),
        ThrottleError::Valve(error) => format!("valve: {error}"),
        ThrottleError::Spawn { .. } => format!("no thread{key}"),
        ThrottleError::Invalid { field, .. } => format!("invalid {field}"),
        ThrottleError::Forked => "forked".to_owned(),
        other => format!("{other:?}"),
    }
}
