//! A clock that moves only when told to, and the scheduler that lives by it.

use crate::clock::{Clock, Parker, Tick, VirtualTime, duration, ticks_up};
use crate::scheduler::{Scheduler, Timed, Timer};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// A clock for tests. Valves and stores built with it live by it: no wait takes real time, and the same program gives the
/// same course of events every time.
///
/// Threads from [`spawn`](ManualClock::spawn) are its *participants*. They run only inside [`advance`](ManualClock::advance),
/// [`advance_to_next`](ManualClock::advance_to_next) and [`settle`](ManualClock::settle), one at a time, in the order in which
/// they became ready; time moves only while every participant waits on the clock, from one due instant to the next. Other
/// threads may wait on it too: for them only the times are promised, not their order.
///
/// It begins at zero, which is also the Unix epoch of its wall time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::testing::ManualClock;
/// use valve::{Rule, Valve};
///
/// let clock = ManualClock::new();
/// let valve = Valve::builder("api").rule(Rule::gcra(1, Duration::from_secs(60))).clock(&clock).build()?;
/// let job = clock.spawn("job", {
///     let (valve, clock) = (valve.clone(), clock.clone());
///     move || {
///         valve.run(|| ()).unwrap();
///         valve.run(|| ()).unwrap();
///         clock.now()
///     }
/// });
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(job.join().unwrap(), Duration::from_secs(60));
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Clone)]
pub struct ManualClock {
    time: Arc<VirtualTime>,
    scheduler: Scheduler,
    /// Held by whoever lets participants run.
    baton: Arc<Mutex<()>>,
}

impl ManualClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> ManualClock {
        let time = VirtualTime::new();
        let scheduler = Scheduler::without_thread(Clock::Virtual(Arc::clone(&time)));
        ManualClock { time, scheduler, baton: Arc::new(Mutex::new(())) }
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        duration(self.time.now())
    }

    /// Starts a participant. It begins to run when the clock is next advanced or settled.
    ///
    /// # Panics
    ///
    /// If the system refuses a thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let begin = self.time.enlist(name);
        let thread = std::thread::Builder::new().name(name.to_owned());
        #[expect(
            clippy::expect_used,
            reason = "a test without its threads is no test; the panic is documented"
        )]
        thread.spawn(move || begin.run(body)).expect("the system refused a thread")
    }

    /// Lets the calling thread wait until the clock has moved on by this much. A participant's way to take time.
    pub fn sleep(&self, length: Duration) {
        if length.is_zero() {
            return;
        }
        let sleeper = Arc::new(Sleeper { parker: Parker::new(&self.clock()) });
        let when = self.time.now() + ticks_up(length);
        let weak = Arc::downgrade(&sleeper);
        let owner: Weak<dyn Timed> = weak;
        if self.scheduler.set(when, SLEEPERS_FIRST, Timer { owner, timer: 0 }).is_ok() {
            sleeper.parker.park();
        }
    }

    /// Moves on by `length`, stopping at each instant at which something is due until all that follows from it has
    /// happened. Gives the number of timers that came due.
    ///
    /// # Panics
    ///
    /// If a participant neither ends nor waits on this clock for ten seconds of real time; the message names it.
    pub fn advance(&self, length: Duration) -> usize {
        let _baton = self.baton.lock();
        let until = self.time.now().saturating_add(ticks_up(length));
        self.time.settle();
        let mut count = 0;
        while let Some(fired) = self.fire(until) {
            count += fired;
        }
        self.time.set(until);
        self.time.settle();
        count
    }

    /// Moves on to the next instant at which something is due; `None`, without moving, if nothing ever is.
    ///
    /// # Panics
    ///
    /// Like [`advance`](ManualClock::advance).
    pub fn advance_to_next(&self) -> Option<Duration> {
        let _baton = self.baton.lock();
        self.time.settle();
        // With nothing set, the wheel would go to the end of time, and what is set later be due only there.
        if self.timers() == 0 {
            return None;
        }
        self.fire(Tick::MAX)?;
        Some(self.now())
    }

    /// Lets participants run until all wait or have ended, without moving on.
    ///
    /// # Panics
    ///
    /// Like [`advance`](ManualClock::advance).
    pub fn settle(&self) {
        let _baton = self.baton.lock();
        self.time.settle();
    }

    /// Waits, in real time, until at least `count` threads that are not participants wait on this clock.
    ///
    /// # Panics
    ///
    /// If fewer do after ten seconds.
    pub fn wait_blocked(&self, count: usize) {
        self.time.wait_blocked(count);
    }

    /// How many timers are set: deadlines, and valves that wait for a rule or a pause.
    #[must_use]
    pub fn timers(&self) -> usize {
        self.scheduler.timers()
    }

    /// When the next timer is due, at the earliest.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.scheduler.next_due().map(duration)
    }

    /// Lets all that is due at the earliest instant up to `until` happen, one timer at a time.
    fn fire(&self, until: Tick) -> Option<usize> {
        let (tick, due) = self.scheduler.take_due(until)?;
        self.time.set(tick.max(self.time.now()));
        let count = due.len();
        for timer in due {
            if let Some(owner) = timer.owner.upgrade() {
                owner.due(timer.timer, self.time.now());
            }
            self.time.settle();
        }
        Some(count)
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.time))
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

/// At one tick, sleepers wake before valves look at their queues: what a job does as it ends counts for those who wait.
const SLEEPERS_FIRST: u64 = 0;

struct Sleeper {
    parker: Parker,
}

impl Timed for Sleeper {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        self.parker.unpark();
    }

    fn stopped(self: Arc<Self>) {
        self.parker.unpark();
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
