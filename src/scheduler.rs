//! The thread that waits so that others need not: one timer wheel, and whom to tell when a timer is due.
//!
//! What it never does: call a remote store, run user code, drop user values. `scheduler/README.md` writes down the
//! vocabulary, the locks and their order, the protocol and its races.

mod absence;
mod heap;
#[cfg_attr(shuttle, allow(dead_code, reason = "the model checker's clock is never late"))]
mod lateness;
mod queue;
mod slab;
mod ticket;
mod wheel;

use crate::clock::{self, Clock, Tick};
use crate::error::Error;
use crate::event::{Events, caught, say};
use crate::os;
use crate::sync::{Condvar, Mutex, MutexGuard, ThreadId, current_thread};
use lateness::Lateness;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use absence::{Counted, counted, is_indispensable, uncounted};
#[cfg(feature = "testing")]
pub(crate) use heap::Heap;
pub(crate) use heap::Place;
pub(crate) use queue::{Asked, Hint, Next, Queue, Refused, Waiter, Why};
pub(crate) use ticket::{Outcome, Ticket};
pub(crate) use wheel::{Expired, TimerKey, Wheel};

/// Serves the timers of any number of valves from one thread.
///
/// Most programs never name it: without [`ValveBuilder::scheduler`](crate::ValveBuilder::scheduler) every valve uses one
/// scheduler of the process, which starts on first use, sleeps without a timer while nothing waits, and never keeps the
/// process alive. An own scheduler has a thread of its own and stops when its last handle goes; clones of it and the
/// valves built on it are handles.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Scheduler, Valve};
///
/// let scheduler = Scheduler::new()?;
/// let valve = Valve::builder("api").scheduler(&scheduler).concurrency(2).build()?;
/// assert_eq!(valve.run(|| 6 * 7)?, 42);
/// drop(valve);
/// scheduler.shutdown(Duration::from_secs(1))?;
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Scheduler").finish_non_exhaustive()
    }
}

/// Who is told when a timer is due. Called without any lock held.
pub(crate) trait Timed: Send + Sync {
    /// `timer` is what was given with the timer. A timer that was cancelled at the last moment may still come.
    fn due(self: Arc<Self>, timer: u64, now: Tick);
    /// The scheduler stops: no timer comes any more, and none can be set.
    fn stopped(self: Arc<Self>);
}

/// One timer: whom to tell and what.
pub(crate) struct Timer {
    pub(crate) owner: Weak<dyn Timed>,
    pub(crate) timer: u64,
}

struct Handle {
    shared: Arc<Shared>,
    events: Events,
}

struct Shared {
    state: Mutex<State>,
    condvar: Condvar,
    clock: Clock,
}

struct State {
    wheel: Wheel<Timer>,
    /// While the thread sleeps: when it will wake by itself.
    asleep_until: Option<Tick>,
    /// No timer is taken or served any more.
    stopping: bool,
    thread: Option<ThreadId>,
    running: bool,
}

/// A timer was refused: the scheduler has stopped.
#[derive(Debug)]
pub(crate) struct Stopped;

static GLOBAL: Mutex<Option<Scheduler>> = Mutex::new(None);

impl Scheduler {
    /// Starts a scheduler of one's own.
    ///
    /// # Errors
    ///
    /// [`Error::Spawn`] if the system refuses its thread, [`Error::Forked`] in a forked child.
    pub fn new() -> Result<Scheduler, Error> {
        Scheduler::with_stack_size(None)
    }

    /// Starts a scheduler whose thread has a stack of this many bytes. [`new`](Scheduler::new) uses the standard library's
    /// default of 2 MiB, of which a few kB are needed.
    ///
    /// # Errors
    ///
    /// [`Error::Spawn`] if the system refuses such a thread, [`Error::Forked`] in a forked child.
    pub fn with_stack(bytes: usize) -> Result<Scheduler, Error> {
        Scheduler::with_stack_size(Some(bytes))
    }

    /// The scheduler of the process, started by its first user.
    pub(crate) fn global() -> Result<Scheduler, Error> {
        let mut global = GLOBAL.lock();
        if let Some(scheduler) = &*global {
            return Ok(scheduler.clone());
        }
        let scheduler = Scheduler::new()?;
        *global = Some(scheduler.clone());
        Ok(scheduler)
    }

    fn with_stack_size(stack_size: Option<usize>) -> Result<Scheduler, Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        os::watch_forks();
        let scheduler = Scheduler::without_thread(Clock::System);
        let shared = Arc::clone(&scheduler.handle.shared);
        shared.state.lock().running = true;
        let body = move || shared.serve();
        crate::sync::spawn("valve-scheduler", stack_size, body).map_err(|error| {
            scheduler.handle.shared.state.lock().running = false;
            Error::Spawn(Arc::new(error))
        })?;
        say(log::Level::Debug, format_args!("valve-scheduler started"));
        Ok(scheduler)
    }

    /// A scheduler whose timers come due only when a test turns the clock.
    pub(crate) fn without_thread(clock: Clock) -> Scheduler {
        let wheel = Wheel::new(clock.now());
        let state = State { wheel, asleep_until: None, stopping: false, thread: None, running: false };
        let events = Events::new(clock.clone());
        let shared = Shared { state: Mutex::new(state), condvar: Condvar::new(), clock };
        Scheduler { handle: Arc::new(Handle { shared: Arc::new(shared), events }) }
    }

    /// Stops the thread and waits for it to end, at most `timeout`. Its valves can do nothing that takes time any more:
    /// a call that would have to wait for a rule, a pause or a deadline ends with [`Error::Closed`], and so does every call
    /// that waits with it. Leases are no longer renewed: jobs with a fleet-wide slot lose it one TTL later at the latest.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the thread has not ended by then; [`Error::WouldDeadlock`] if called on that thread.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        let shared = &self.handle.shared;
        let begin = shared.clock.now();
        let deadline = begin.saturating_add(clock::ticks_up(timeout));
        let mut state = shared.state.lock();
        if state.thread == Some(current_thread().id()) {
            return Err(Error::WouldDeadlock);
        }
        state.stopping = true;
        shared.condvar.notify_all();
        while state.running {
            let now = shared.clock.now();
            if now >= deadline {
                return Err(Error::Timeout {
                    waited: clock::duration(now - begin),
                    retry_after: None,
                    blocked_by: crate::error::Blocked::Queue,
                });
            }
            shared.condvar.wait_for(&mut state, clock::duration(deadline - now));
        }
        Ok(())
    }

    /// Where the owners' handlers run.
    pub(crate) fn events(&self) -> &Events {
        &self.handle.events
    }

    /// Sets a timer. `order` decides between timers that are due at the same tick.
    pub(crate) fn set(&self, when: Tick, order: u64, timer: Timer) -> Result<TimerKey, Stopped> {
        let shared = &self.handle.shared;
        let mut state = shared.state.lock();
        if state.stopping {
            return Err(Stopped);
        }
        let key = state.wheel.insert(when, order, timer);
        let wakes = state.asleep_until.is_some_and(|until| when < until);
        if wakes {
            state.asleep_until = None;
        }
        drop(state);
        if wakes {
            shared.condvar.notify_all();
        }
        Ok(key)
    }

    /// Takes a timer back; it may be on its way already.
    pub(crate) fn cancel(&self, key: TimerKey) {
        let timer = self.handle.shared.state.lock().wheel.cancel(key);
        drop(timer);
    }

    /// For a clock that is turned by hand: takes all timers of the earliest tick that is due by `until`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn take_due(&self, until: Tick) -> Option<(Tick, Vec<Timer>)> {
        let mut due = Vec::new();
        let tick = self.handle.shared.state.lock().wheel.expire_first(until, &mut due)?;
        Some((tick, due.into_iter().map(|expired| expired.value).collect()))
    }

    /// The earliest tick at which a timer may be due.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn next_due(&self) -> Option<Tick> {
        self.handle.shared.state.lock().wheel.next_expiry()
    }

    /// How many timers are set.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn timers(&self) -> usize {
        self.handle.shared.state.lock().wheel.len()
    }
}

impl Shared {
    /// The thread: tells owners of what is due, then sleeps until the next timer or until somebody sets an earlier one.
    fn serve(&self) {
        let mut due: Vec<Expired<Timer>> = Vec::new();
        let mut lateness = Lateness::default();
        let mut state = self.state.lock();
        state.thread = Some(current_thread().id());
        while !state.stopping {
            let now = self.clock.now();
            while state.wheel.expire_first(now, &mut due).is_some() {}
            if !due.is_empty() {
                drop(state);
                for expired in due.drain(..) {
                    if let Some(owner) = expired.value.owner.upgrade() {
                        shielded(|| owner.due(expired.value.timer, now));
                    }
                }
                self.clock.refine();
                state = self.state.lock();
                continue;
            }
            let next = state.wheel.next_expiry();
            state.asleep_until = Some(next.unwrap_or(Tick::MAX));
            match next {
                None => self.condvar.wait(&mut state),
                Some(next) => state = self.sleep_until(state, now, next, &mut lateness),
            }
            state.asleep_until = None;
        }
        while state.wheel.expire_first(Tick::MAX, &mut due).is_some() {}
        drop(state);
        for owner in due.drain(..).filter_map(|expired| expired.value.owner.upgrade()) {
            shielded(|| owner.stopped());
        }
        self.state.lock().running = false;
        self.condvar.notify_all();
        say(log::Level::Debug, format_args!("valve-scheduler stopped"));
    }

    /// Sleeps until a timer is nearly due, then spins until it is, without the lock: whoever sets a timer meanwhile is heard
    /// right after.
    #[cfg(not(shuttle))]
    fn sleep_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now: Tick,
        next: Tick,
        lateness: &mut Lateness,
    ) -> MutexGuard<'a, State> {
        let wake = next - lateness.early(now).min(next - now);
        if wake > now {
            let waited = self.condvar.wait_for(&mut state, clock::duration(wake - now));
            if !waited.timed_out() {
                return state;
            }
        }
        let woke = self.clock.now();
        lateness.woke(wake, woke);
        // Most timers are taken back in time, such as that of a release which found a ride: then nothing is to be hit.
        if woke >= next || state.stopping || state.wheel.next_expiry() != Some(next) {
            return state;
        }
        state.asleep_until = None;
        drop(state);
        while self.clock.now() < next {
            std::hint::spin_loop();
        }
        lateness.spun(next - woke);
        self.state.lock()
    }

    /// The model checker's time passes when this thread would sleep, up to its horizon.
    #[cfg(shuttle)]
    fn sleep_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        _now: Tick,
        next: Tick,
        _lateness: &mut Lateness,
    ) -> MutexGuard<'a, State> {
        if !clock::jump_to(next) {
            self.condvar.wait(&mut state);
        }
        state
    }
}

/// One owner's panic, which would be a fault of this crate, must not end the waits of all others.
fn shielded(tell: impl FnOnce()) {
    if caught(tell).is_none() {
        say(
            log::Level::Error,
            format_args!("valve-scheduler: a timer's owner panicked; this is a bug in valve"),
        );
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        self.shared.state.lock().stopping = true;
        self.shared.condvar.notify_all();
    }
}
