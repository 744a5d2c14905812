//! One call to a throttle, from its key and closure to what it gives: [`ThrottleJob`] and [`ThrottleWait`].

use super::ThrottleWindow;
use super::error::ThrottleError;
use std::fmt::{self, Display};
use std::time::Duration;

/// What a closure is told about its run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Run<'a> {
    /// The key, without the prefix.
    pub key: &'a str,
    /// Whether it is the first of a burst or the one at the end of a window.
    pub phase: Phase,
    /// How many calls it covers, its own included: those that came since the last run of the key began. At least 1.
    pub covered: usize,
}

/// Which of a key's runs this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The key was idle.
    Leading,
    /// The window ended, and calls had come meanwhile.
    Trailing,
}

impl Phase {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Phase::Leading => "leading",
            Phase::Trailing => "trailing",
        }
    }
}

impl Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// What became of a call to [`ThrottleJob::exec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "tells whether the run is over or still to come"]
pub enum Ran {
    /// A run took place inside the call and is over.
    Now,
    /// The run at the end of the window will cover the call.
    Later,
}

/// A closure on its way.
pub(super) type Work<T, E> = Box<dyn FnOnce(&Run<'_>) -> Result<T, E> + Send>;

/// One call. Made by [`ThrottleWindow::job`]; nothing happens until [`exec`](ThrottleJob::exec).
#[must_use = "a job does nothing until exec"]
pub struct ThrottleJob<'a, T, E> {
    throttle: &'a ThrottleWindow<T, E>,
    key: &'a str,
    work: Work<T, E>,
}

impl<'a, T: Clone + Send + 'static, E: Display + Send + Sync + 'static> ThrottleJob<'a, T, E> {
    pub(super) fn new(
        throttle: &'a ThrottleWindow<T, E>,
        key: &'a str,
        work: Work<T, E>,
    ) -> ThrottleJob<'a, T, E> {
        ThrottleJob { throttle, key, work }
    }

    /// Runs the job now if its key is idle, on this thread, and returns when it is over and its window is open. Otherwise
    /// leaves it to the run at the end of the window and returns at once.
    ///
    /// An idle key may turn out to be inside another instance's window; then this waits for the engine's answers, but for no
    /// run, and gives [`Ran::Later`]. What runs is the newest closure, which may be a later call's if the engine took its
    /// time. A call that was left to a later run never learns how that went: use
    /// [`wait_finish`](ThrottleJob::wait_finish), or the throttle's [log](crate::Log).
    ///
    /// Inside a run of the same key it gives `Ran::Later`, as anywhere else.
    ///
    /// # Errors
    ///
    /// [`ThrottleError::Run`] with the closure's own error, [`ThrottleError::Panicked`] if another call's closure ran and
    /// panicked, [`ThrottleError::Valve`] if the valve in front refused; [`ThrottleError::Destroyed`],
    /// [`ThrottleError::Invalid`] for a key that is empty or longer than 10 kB, or [`ThrottleError::Forked`].
    ///
    /// # Panics
    ///
    /// If its own closure panics: the panic goes on once the window is open and those who wait are told.
    ///
    /// # Examples
    ///
    /// ```
    /// use valve::{Ran, ThrottleWindow};
    ///
    /// let throttle = ThrottleWindow::<(), String>::builder("sync:").build()?;
    /// assert_eq!(throttle.job("a", |_run| Ok(())).exec()?, Ran::Now);
    /// assert_eq!(throttle.job("a", |_run| Ok(())).exec()?, Ran::Later);
    /// assert_eq!(throttle.job("b", |_run| Ok(())).exec()?, Ran::Now);
    /// # Ok::<(), valve::ThrottleError<String>>(())
    /// ```
    #[inline]
    pub fn exec(self) -> Result<Ran, ThrottleError<E>> {
        self.throttle.core().exec(self.key, self.work)
    }

    /// Makes the call one that waits for the run that covers it.
    pub fn wait_finish(self) -> ThrottleWait<'a, T, E> {
        ThrottleWait { throttle: self.throttle, key: self.key, work: self.work, timeout: None }
    }
}

/// One call that waits for the run that covers it. Made by [`ThrottleJob::wait_finish`]; nothing happens until
/// [`exec`](ThrottleWait::exec).
#[must_use = "a job does nothing until exec"]
pub struct ThrottleWait<'a, T, E> {
    throttle: &'a ThrottleWindow<T, E>,
    key: &'a str,
    work: Work<T, E>,
    timeout: Option<Duration>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> ThrottleWait<'_, T, E> {
    /// How long [`exec`](ThrottleWait::exec) waits at most, counted from its beginning; the time that the engine takes counts
    /// too. More than zero; [`Duration::MAX`], like anything of ten years and more, waits for ever. Default: for ever, because
    /// only the caller knows how long is too long.
    ///
    /// The job is not cancelled by it: it still runs, and still covers the call. A call with a timeout never runs a closure
    /// on its own thread: if it leads, a worker does.
    ///
    /// # Examples
    ///
    /// It is there only for calls that wait:
    ///
    /// ```compile_fail
    /// # use valve::ThrottleWindow;
    /// # let throttle = ThrottleWindow::<(), String>::builder("sync:").build().unwrap();
    /// throttle.job("a", |_run| Ok(())).timeout(std::time::Duration::from_secs(3));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Waits for the run that covers the call, and gives what it returned. That is the leading run if the key is idle, which
    /// then takes place on this thread unless there is a timeout; otherwise the run at the end of the window. It executes the
    /// key's newest closure, so the value may stem from a newer one than this call's own: fine for closures that compute from
    /// the source.
    ///
    /// # Errors
    ///
    /// [`ThrottleError::Run`] with the error of the run, the same for all that it covers; [`ThrottleError::Panicked`];
    /// [`ThrottleError::Timeout`]; [`ThrottleError::Dropped`] after ten lost races; [`ThrottleError::Destroyed`];
    /// [`ThrottleError::WouldDeadlock`] inside a run of the same key; [`ThrottleError::Valve`]; [`ThrottleError::Spawn`];
    /// [`ThrottleError::Invalid`] for the key or a timeout of zero; [`ThrottleError::Forked`].
    ///
    /// # Panics
    ///
    /// If its own closure panics on this thread: once the window is open and the others who wait are told.
    pub fn exec(self) -> Result<T, ThrottleError<E>> {
        self.throttle.core().wait(self.key, self.work, self.timeout)
    }
}

impl<T, E> fmt::Debug for ThrottleJob<'_, T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ThrottleJob").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<T, E> fmt::Debug for ThrottleWait<'_, T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ThrottleWait")
            .field("key", &self.key)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
