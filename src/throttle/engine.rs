//! Where windows are kept: what a throttle asks of a store of its own.

mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(test)]
mod tests;

use crate::clock::{Tick, duration, ticks_up};
use crate::error::StoreError;
#[cfg(any(test, feature = "testing"))]
use crate::testing::ManualClock;
use std::time::Duration;

pub use memory::{MemoryEngine, MemoryEngineBuilder};
#[cfg(feature = "redis")]
pub use redis::RedisEngine;

/// A store of short texts under keys that expire: the four operations with which a throttle keeps its windows.
///
/// A throttle keeps under each key the end of its window, in milliseconds of the Unix epoch, until the window ends. Only the
/// atomic write-if-absent keeps two instances from running one key at once; the value is read back for nothing but to know
/// when to try again. Keys arrive with the throttle's prefix, so one engine may serve many throttles.
///
/// The bundled engines are [`MemoryEngine`] and, with the feature `redis`, `RedisEngine`. To write another:
///
/// - **Calls block** until the store has answered, from any number of threads at once. The throttle does not time them: a
///   leading run starts when the engine answers, be it in 10 minutes, and a call that never returns keeps its key busy for
///   ever. So give your client a timeout of its own, as in the example; half a second is plenty.
/// - **A failure is an error** and nothing more. Do not retry, do not fall back: a throttle whose engine fails runs its jobs
///   all the same, leaves the engine alone for ten seconds after five failures in a row, then tries it with one call. A panic
///   counts as a failure. Neither ever reaches whoever called the throttle; its [log](crate::Log) says at level debug when the
///   engine is left alone, and why.
///   There is no second engine to fall back to, on purpose: what a throttle holds in memory goes on keeping each key to one run
///   per window in its own process.
/// - **Clocks need not agree** for exclusion. One that is off moves the time at which the loser of a race tries again, by at most a
///   window (or 200 ms, if that is longer); it never lets two instances run one key. But a loser whose clock is ahead tries too soon,
///   and may have lost ten times before the window is over: keep the hosts' clocks within 50 ms of each other.
/// - **Make it cheap to clone**, with the client shared inside, if several throttles are to use it: a throttle takes its
///   engine by value.
/// - Put it through `testing::engine_contract` (feature `testing`), the suite that the bundled ones pass.
///
/// # Examples
///
/// An engine over another client, whose commands are those of Redis:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use valve::{Engine, Executed, SetOptions, StoreError, StoreErrorKind, ThrottleWindow};
/// # mod other {
/// #     use std::{collections::HashMap, io, sync::Mutex, time::Duration};
/// #     pub struct Client(Mutex<HashMap<String, String>>);
/// #     impl Client {
/// #         pub fn connect(_: &str, _timeout: Duration) -> Client { Client(Mutex::default()) }
/// #         pub fn get(&self, key: &str) -> io::Result<Option<String>> {
/// #             Ok(self.0.lock().unwrap().get(key).cloned())
/// #         }
/// #         pub fn set(&self, key: &str, value: &str, words: &[String]) -> io::Result<Option<String>> {
/// #             let mut keys = self.0.lock().unwrap();
/// #             if words.iter().any(|word| word == "NX") && keys.contains_key(key) { return Ok(None); }
/// #             keys.insert(key.to_owned(), value.to_owned());
/// #             Ok(Some("OK".to_owned()))
/// #         }
/// #         pub fn del(&self, key: &str) -> io::Result<()> {
/// #             self.0.lock().unwrap().remove(key);
/// #             Ok(())
/// #         }
/// #     }
/// # }
///
/// #[derive(Clone)]
/// struct OtherEngine(Arc<other::Client>);
///
/// impl Engine for OtherEngine {
///     fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
///         self.0.get(key).map_err(failed)
///     }
///     fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
///         let mut words = vec!["PX".to_owned(), options.px().to_string()];
///         if options.is_if_absent() {
///             words.push("NX".to_owned());
///         }
///         Ok(self.0.set(key, value, &words).map_err(failed)?.as_deref() == Some("OK"))
///     }
///     fn del(&self, key: &str) -> Result<(), StoreError> {
///         self.0.del(key).map_err(failed)
///     }
///     fn clear(&self) -> Result<(), StoreError> {
///         Ok(()) // others use the server too, and keys expire on their own
///     }
/// }
///
/// fn failed(error: std::io::Error) -> StoreError {
///     StoreError::new(StoreErrorKind::Unreachable, Executed::Unknown, error.to_string()).with_source(error)
/// }
///
/// let client = other::Client::connect("cache.internal:6379", Duration::from_millis(500));
/// let throttle = ThrottleWindow::<(), std::io::Error>::builder("sync:room:")
///     .engine(OtherEngine(Arc::new(client)))
///     .build()?;
/// # drop(throttle);
/// # Ok::<(), valve::ThrottleError<std::io::Error>>(())
/// ```
pub trait Engine: Send + Sync + 'static {
    /// The value under a key; `None` if it is missing or has expired.
    ///
    /// # Errors
    ///
    /// If the store could not be asked.
    fn get(&self, key: &str) -> Result<Option<String>, StoreError>;

    /// Writes a value that expires after [`options.px()`](SetOptions::px) milliseconds. Whether this call wrote it.
    ///
    /// Plainly it always overwrites, a value that has expired and an expiry that is longer too, and answers `true`. With
    /// [`if_absent`](SetOptions::if_absent) it looks and writes in one atomic step: it writes only if the key is missing or has
    /// expired, and answers `true` only to the call that wrote; otherwise value and expiry stay as they are.
    ///
    /// # Errors
    ///
    /// If the store could not be asked; it may have written or not.
    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError>;

    /// Removes a key, if it is there. A throttle never calls it: it is there for you.
    ///
    /// # Errors
    ///
    /// If the store could not be asked.
    fn del(&self, key: &str) -> Result<(), StoreError>;

    /// Removes every key that the engine owns; a store that cannot tell its keys from others' does nothing. A throttle calls
    /// it only when it is destroyed, and only on the engine it made itself.
    ///
    /// # Errors
    ///
    /// If the store could not be asked.
    fn clear(&self) -> Result<(), StoreError>;

    /// The clock that a test turns, if the engine lives by one: a throttle on the engine must live by the same.
    #[cfg(any(test, feature = "testing"))]
    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

/// How [`Engine::set`] writes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::SetOptions;
///
/// let options = SetOptions::new(Duration::from_micros(1_500)).if_absent();
/// assert_eq!(options.px(), 2);
/// assert!(options.is_if_absent());
/// assert_eq!(SetOptions::new(Duration::ZERO).px(), 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetOptions {
    px: u64,
    if_absent: bool,
}

impl SetOptions {
    /// Overwrites, whatever is there. The expiry is rounded up to whole milliseconds, is at least 1 ms and at most ten years.
    #[must_use]
    pub fn new(expiry: Duration) -> SetOptions {
        SetOptions { px: ticks_up(expiry).div_ceil(1_000).max(1), if_absent: false }
    }

    /// Writes only if the key is missing or has expired.
    #[must_use]
    pub fn if_absent(self) -> SetOptions {
        SetOptions { if_absent: true, ..self }
    }

    /// After how many milliseconds the key expires.
    #[must_use]
    pub fn px(self) -> u64 {
        self.px
    }

    /// After what time the key expires.
    #[must_use]
    pub fn expiry(self) -> Duration {
        duration(self.ticks())
    }

    /// Whether a key that has not expired is left as it is.
    #[must_use]
    pub fn is_if_absent(self) -> bool {
        self.if_absent
    }

    pub(crate) fn ticks(self) -> Tick {
        self.px * 1_000
    }
}
