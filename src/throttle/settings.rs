//! The settings of a throttle, and where all of them are checked: [`ThrottleWindowBuilder`].

use super::ThrottleWindow;
use super::core::Core;
use super::engine::Engine;
use super::log::Log;
use crate::clock::Clock;
use crate::error::Error;
use crate::os;
use crate::planted::fault;
use crate::scheduler::Scheduler;
use crate::valve::Valve;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a [`ThrottleWindow`]; [`build`](ThrottleWindowBuilder::build) checks them all.
#[must_use]
pub struct ThrottleWindowBuilder<T, E> {
    pub(super) prefix: String,
    pub(super) window: Duration,
    pub(super) engine: Option<Arc<dyn Engine>>,
    pub(super) engine_timeout: Duration,
    pub(super) workers: usize,
    pub(super) spawner: Option<Spawner>,
    pub(super) valve: Option<Valve>,
    pub(super) name: Option<String>,
    pub(super) log: Log,
    scheduler: Option<Scheduler>,
    #[cfg(any(test, feature = "testing"))]
    clock: Option<crate::testing::ManualClock>,
    result: PhantomData<fn() -> (T, E)>,
}

/// Runs a task of a throttle on a thread of the user's.
pub(super) type Spawner = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

const WINDOW_DEFAULT: Duration = Duration::from_secs(1);
const WINDOW_MAX: Duration = Duration::from_millis((1 << 31) - 1);
const ENGINE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const ENGINE_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
const WORKERS_DEFAULT: usize = 4;
const WORKERS_MAX: usize = 1024;

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> ThrottleWindowBuilder<T, E> {
    pub(super) fn new(prefix: String) -> ThrottleWindowBuilder<T, E> {
        ThrottleWindowBuilder {
            prefix,
            window: WINDOW_DEFAULT,
            engine: None,
            engine_timeout: ENGINE_TIMEOUT_DEFAULT,
            workers: WORKERS_DEFAULT,
            spawner: None,
            valve: None,
            name: None,
            log: Log::Off,
            scheduler: None,
            #[cfg(any(test, feature = "testing"))]
            clock: None,
            result: PhantomData,
        }
    }

    /// How long after the end of a run the key's next run may start. Whole milliseconds, 1 ms ..= 2^31 - 1 ms. Default: 1 s,
    /// which a person who watches takes for at once.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Where windows are kept, so that throttles with the same prefix share them. Default: in this throttle's own memory, which
    /// no other can see, because sharing should be said. A throttle never clears an engine given to it.
    ///
    /// To share windows inside one process give clones of one [`MemoryEngine`](crate::MemoryEngine) to several throttles.
    pub fn engine(mut self, engine: impl Engine) -> Self {
        self.engine = Some(Arc::new(engine));
        self
    }

    /// How long an extension of a running key's lease, or the one call that tries a failing engine again, is awaited before it
    /// counts as failed; also how long a worker may be held up by the engine before another takes its place. Calls
    /// themselves are not timed: see [`Engine`]. 1 ms ..= 24 h. Default: 1 s, twice what a client should take to give up.
    pub fn engine_timeout(mut self, timeout: Duration) -> Self {
        self.engine_timeout = timeout;
        self
    }

    /// How many trailing runs go on at once, on threads of the throttle's own; one that waits for a run of another key, or for
    /// a valve, does not count meanwhile. The rest wait until one is over, and are late, not lost. 1 ..= 1,024. Default: 4, so
    /// that a thousand windows that end together do not become a thousand runs at once.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Hands each trailing run to `spawn` instead of a worker; it is called on a thread of the throttle's. A task that is dropped
    /// without being run ends its calls with [`ThrottleError::Spawn`](crate::ThrottleError::Spawn). Runs that wait for other
    /// keys hold a thread of that pool meanwhile. Default: the throttle's own workers.
    pub fn spawner(mut self, spawn: impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static) -> Self {
        self.spawner = Some(Arc::new(spawn));
        self
    }

    /// Lets each run start only with a permit of this valve, of cost 1, taken before the engine is asked and held until the
    /// closure ends. A run of a window that is lost to another instance has spent its cost too. What the valve refuses does not
    /// run: [`ThrottleError::Valve`](crate::ThrottleError::Valve). Default: none, because windows alone are a limit.
    pub fn valve(mut self, valve: &Valve) -> Self {
        self.valve = Some(valve.clone());
        self
    }

    /// What log lines call the throttle. Default: the prefix without one trailing `:`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where the throttle writes what it does. Default: [`Log::Off`], because a library should be quiet until asked.
    pub fn log(mut self, log: Log) -> Self {
        self.log = log;
        self
    }

    /// Which scheduler serves the timers. Default: the one of the process, which costs no thread more.
    pub fn scheduler(mut self, scheduler: &Scheduler) -> Self {
        self.scheduler = Some(scheduler.clone());
        self
    }

    /// A clock that a test turns; it brings its own scheduler. Default: the machine's clock.
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: &crate::testing::ManualClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes the throttle. Starts the scheduler of the process if it is the first; asks no engine, starts no other thread.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a setting out of range, naming it, or two that exclude each other; [`Error::Spawn`] if the system
    /// refuses a thread; [`Error::Forked`] in a forked child. All turn into a [`ThrottleError`](crate::ThrottleError) with `?`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Error, ThrottleWindow};
    ///
    /// let builder = ThrottleWindow::<(), String>::builder("sync:").window(Duration::from_micros(1_500));
    /// match builder.build() {
    ///     Err(Error::Invalid { field, .. }) => assert_eq!(field, "window"),
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    pub fn build(self) -> Result<ThrottleWindow<T, E>, Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        os::watch_forks();
        self.check()?;
        let (clock, scheduler) = self.time()?;
        Ok(ThrottleWindow { core: Core::new(self, clock, scheduler) })
    }

    fn check(&self) -> Result<(), Error> {
        if self.prefix.is_empty() {
            return Err(Error::invalid(
                "prefix",
                "it is empty; give one that no other use of the engine has",
            ));
        }
        if !(Duration::from_millis(1)..=WINDOW_MAX).contains(&self.window)
            || (self.window.subsec_nanos() % 1_000_000 != 0 && !fault("T27"))
        {
            let reason =
                format!("{:?} is not a whole number of milliseconds in 1 ..= 2147483647", self.window);
            return Err(Error::invalid("window", reason));
        }
        if !(Duration::from_millis(1)..=ENGINE_TIMEOUT_MAX).contains(&self.engine_timeout) {
            let reason = format!("{:?} is not in 1 ms ..= 24 h", self.engine_timeout);
            return Err(Error::invalid("engine_timeout", reason));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            let reason = format!("{} is not in 1 ..= {WORKERS_MAX}", self.workers);
            return Err(Error::invalid("workers", reason));
        }
        Ok(())
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn time(&self) -> Result<(Clock, Scheduler), Error> {
        Ok((Clock::System, self.system_scheduler()?))
    }

    /// One clock for all: the builder's, the engine's, the valve's.
    #[cfg(any(test, feature = "testing"))]
    fn time(&self) -> Result<(Clock, Scheduler), Error> {
        #[cfg(feature = "testing")]
        let of_engine = self.engine.as_ref().and_then(|engine| engine.clock().cloned());
        #[cfg(not(feature = "testing"))]
        let of_engine: Option<crate::testing::ManualClock> = None;
        let manual = self.clock.clone().or(of_engine.clone());
        let clock = manual.as_ref().map_or(Clock::System, crate::testing::ManualClock::clock);
        let engine_clock = of_engine.map_or(Clock::System, |clock| clock.clock());
        if self.engine.is_some() && !clock.same(&engine_clock) {
            let reason = "the throttle and its engine are on different clocks; give both the same";
            return Err(Error::invalid("clock", reason));
        }
        if self.valve.as_ref().is_some_and(|valve| !clock.same(valve.clock())) {
            let reason = "the throttle and the valve in front are on different clocks; give both the same";
            return Err(Error::invalid("clock", reason));
        }
        let Some(manual) = manual else { return Ok((clock, self.system_scheduler()?)) };
        if self.scheduler.is_some() {
            let reason = "a manual clock brings its own; leave one of the two out";
            return Err(Error::invalid("scheduler", reason));
        }
        Ok((clock, manual.scheduler().clone()))
    }

    fn system_scheduler(&self) -> Result<Scheduler, Error> {
        self.scheduler.clone().map_or_else(Scheduler::global, Ok)
    }
}

impl<T, E> fmt::Debug for ThrottleWindowBuilder<T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ThrottleWindowBuilder")
            .field("prefix", &self.prefix)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
