//! Coalesces calls by key: one run now, one at the end of the window: [`ThrottleWindow`].
//!
//! `throttle/README.md` writes down the words, the threads, the locks and the races.

mod breaker;
mod calls;
mod core;
mod due;
mod ending;
mod engine;
mod error;
mod inside;
mod job;
mod log;
mod machine;
mod run;
mod settings;
mod shard;
mod shared;
mod stats;
mod workers;

use self::core::Core;
use crate::error::Error;
use crate::os;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
pub use engine::RedisEngine;
pub use engine::{Engine, MemoryEngine, MemoryEngineBuilder, SetOptions};
pub use error::ThrottleError;
pub use job::{Phase, Ran, Run, ThrottleJob, ThrottleWait};
pub use log::{Log, LogLevel, LogRecord};
pub use settings::ThrottleWindowBuilder;
pub use stats::ThrottleStats;

/// Runs a job at once for the first call of a key, and once more, at the end of a window, for all calls that came meanwhile.
///
/// A throttle, not a debounce: a steady stream of calls runs once per window and never waits for the stream to end. Runs of
/// one key never overlap, however long they take, and a call is always covered by a run that begins after it came. Throttles
/// in other processes that share an [`Engine`], a prefix and a window run a key at most once per window between them, as long
/// as the engine answers. The [guarantees](crate::guarantees#windows-of-a-throttle) say what holds exactly.
///
/// ```text
/// window 1 s, runs of 300 ms
///
/// 0.0  call 1 -> leading run, on the calling thread
/// 0.3            it ends; window until 1.3
/// 0.5  call 2 -> left to the end of the window
/// 0.9  call 3 -> likewise
/// 1.3            one trailing run, with the closure of call 3, covers 2 and 3
/// 1.6            it ends; window until 2.6
/// 2.6            nobody called: the key is idle
/// 3.0  call 4 -> leading run
/// ```
///
/// `T` is what runs return, `E` their error; all calls that a run covers get the same. Clones are the same throttle, cheap, and
/// may be used from any thread. Dropping the last one loses no call: keys with calls that wait for a run stay until it
/// is over. The process exiting, or [`destroy`](ThrottleWindow::destroy), does lose them, and nothing of them is in the
/// engine: keep a periodic full pass for what must not be missed.
///
/// Inside a run do not wait for another thread, or another key, whose own run waits for this one: nobody sees such a circle. Use
/// [`timeout`](ThrottleWait::timeout) there.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Ran, ThrottleWindow};
///
/// # fn sync_room(_: &str) -> Result<u32, String> { Ok(7) }
/// let throttle = ThrottleWindow::<u32, String>::builder("sync:room:").window(Duration::from_secs(1)).build()?;
///
/// // On every change, possibly many times a second for each room.
/// match throttle.job("42", |run| sync_room(run.key)).exec()? {
///     Ran::Now => {}   // this call ran it, and it is over
///     Ran::Later => {} // the run at the end of the window covers this call
/// }
///
/// // Where the result is needed: that of the run that covers this call.
/// let room = throttle.job("42", |run| sync_room(run.key)).wait_finish().timeout(Duration::from_secs(3)).exec()?;
/// assert_eq!(room, 7);
///
/// // At shutdown, from any thread. Before the client of a shared engine is closed.
/// throttle.destroy();
/// # Ok::<(), valve::ThrottleError<String>>(())
/// ```
pub struct ThrottleWindow<T, E> {
    core: Arc<Core<T, E>>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> ThrottleWindow<T, E> {
    /// Begins a throttle whose engine keys are the prefix and then the key: `sync:room:` and `42` make `sync:room:42`.
    /// Throttles that share an engine are kept apart by their prefixes, and together by equal ones: those should have equal
    /// windows too. Any text but the empty one.
    pub fn builder(prefix: impl Into<String>) -> ThrottleWindowBuilder<T, E> {
        ThrottleWindowBuilder::new(prefix.into())
    }

    /// Begins a call for a key: any text of 1 to 10,240 bytes. Nothing happens before `exec`, which also says if the key is
    /// invalid.
    ///
    /// The closure is told its [`Run`]. It may run on another thread, at a later time, for other calls than this one, or not
    /// at all if a newer one takes its place; it should compute from the source, not from what was true when the call was made.
    #[inline]
    pub fn job<'a, F>(&'a self, key: &'a str, work: F) -> ThrottleJob<'a, T, E>
    where
        F: FnOnce(&Run<'_>) -> Result<T, E> + Send + 'static,
    {
        ThrottleJob::new(self, key, Box::new(work))
    }

    /// Tells what goes on. In a forked child all figures are 0.
    #[must_use]
    pub fn stats(&self) -> ThrottleStats {
        if os::forked() { ThrottleStats::default() } else { self.core.stats() }
    }

    /// Runs every pending key now, on the workers, instead of at the end of its window, and returns their number when these
    /// runs are over. For shutting down: **it may run a key twice in one window**, though never twice at once. A key whose
    /// window another instance holds waits for it as always.
    ///
    /// Inside a run of this throttle it makes the keys due and returns their number without waiting. After
    /// [`destroy`](ThrottleWindow::destroy), and in a forked child, it is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use valve::ThrottleWindow;
    ///
    /// let throttle = ThrottleWindow::<(), String>::builder("sync:").build()?;
    /// throttle.job("a", |_run| Ok(())).exec()?;
    /// throttle.job("a", |_run| Ok(())).exec()?;
    /// assert_eq!(throttle.flush(), 1);
    /// assert_eq!(throttle.stats().pending, 0);
    /// # Ok::<(), valve::ThrottleError<String>>(())
    /// ```
    pub fn flush(&self) -> usize {
        if os::forked() { 0 } else { self.core.flush() }
    }

    /// Ends every call that no run has begun for with [`ThrottleError::Destroyed`], and every later one. Returns at once, from
    /// anywhere, inside a run too; a second time it does nothing.
    ///
    /// A closure that runs goes on: calls that it covers get what it returns, and on a shared engine its key stays taken until
    /// it ends. A call that waits for the engine's answer, or leads and waits for the valve in front, ends when that comes, without
    /// a run. The engine's keys are left as they
    /// are; close its client after this.
    pub fn destroy(&self) {
        if !os::forked() {
            self.core.destroy();
        }
    }

    /// [`destroy`](ThrottleWindow::destroy)s, and then waits until no run goes on, at most for `timeout`. To run first what is
    /// pending, call [`flush`](ThrottleWindow::flush) before. Called inside a run, it does not wait for that one.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if some still went on then; [`Error::Forked`].
    pub fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.core.shutdown(timeout)
    }
}

impl<T, E> ThrottleWindow<T, E> {
    #[inline]
    fn core(&self) -> &Arc<Core<T, E>> {
        &self.core
    }
}

impl<T, E> Clone for ThrottleWindow<T, E> {
    fn clone(&self) -> ThrottleWindow<T, E> {
        ThrottleWindow { core: Arc::clone(&self.core) }
    }
}

/// In a forked child nothing is given back: other threads may have left locks taken there, and closures half done.
impl<T, E> Drop for ThrottleWindow<T, E> {
    fn drop(&mut self) {
        if os::forked() {
            std::mem::forget(Arc::clone(&self.core));
        }
    }
}

impl<T, E> fmt::Debug for ThrottleWindow<T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ThrottleWindow").field("prefix", &self.core.prefix()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
