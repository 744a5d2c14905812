//! The heart of a valve: its running count, its queue under one lock, and the way of a call through both.

use super::call::Call;
use super::cancel::CancelToken;
use super::settings::OnStoreError;
use crate::clock::{self, Clock, LONGEST, Tick, duration};
use crate::error::{Blocked, Error};
use crate::event::{Event, Sink};
use crate::os;
use crate::planted::fault;
use crate::rule::RuleSet;
use crate::scheduler::{Outcome, Place, Queue, Refused, Scheduler, Ticket, Timed, Timer, TimerKey, Waiter, Why};
use crate::store::{Counts, Errand, Notice, Noticed, Quick, Remote, Store};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) struct Core {
    pub(super) id: Arc<str>,
    /// Decides between valves whose timers are due at one tick.
    pub(super) number: u64,
    pub(super) me: Weak<Core>,
    /// How many jobs run (or are being asked for), and [`SLOW`]: one word, so that a release and a waiter that sets the
    /// bit always see each other.
    pub(super) word: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) limit: u64,
    /// The greatest cost any rule can admit.
    pub(super) cost_max: u32,
    pub(super) rules: RuleSet,
    pub(super) counts: Arc<dyn Counts>,
    pub(super) store: Arc<dyn Store>,
    pub(super) remote: Option<Remote>,
    pub(super) clock: Clock,
    pub(super) scheduler: Scheduler,
    pub(super) sink: Option<Arc<Sink>>,
    pub(super) on_store_error: OnStoreError,
    pub(super) queue_max: usize,
    pub(super) pause_max: Duration,
    pub(super) state: Mutex<State>,
}

/// Set while somebody waits or asks, or the valve is not open: then every call and every release takes the lock.
pub(super) const SLOW: u64 = 1 << 63;
/// "No limit": more jobs than a process can run.
pub(super) const UNLIMITED: u64 = SLOW - 1;

/// What a started job got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// When the store admitted it: microseconds of the Unix epoch by the store's clock.
    pub(crate) at: u64,
}

pub(super) type Waiting = Arc<Ticket<Grant>>;

pub(super) struct State {
    pub(super) queue: Queue<Waiting>,
    /// Slots taken for jobs that are being asked for: in `word`, but not running yet.
    pub(super) reserved: u64,
    pub(super) wake: Option<(Tick, TimerKey)>,
    pub(super) phase: Phase,
    /// Who waits for the last job to end, and until when.
    pub(super) drains: Vec<(Option<Tick>, Waiting)>,
    /// How many to offer a local store next: doubles while all are admitted.
    pub(super) batch: usize,
    /// A store worker was sent for.
    pub(super) errand: bool,
    pub(super) totals: Totals,
    pub(super) scratch: Scratch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Takes no new calls; those queued go on.
    Draining,
    Closed,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub(super) timed_out: u64,
    pub(super) cancelled: u64,
    pub(super) refused: u64,
}

/// Memory used anew by each ask.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) places: Vec<Place>,
    pub(super) costs: Vec<u32>,
    pub(super) refused: Vec<Refused<Waiting>>,
}

/// Whom to wake once the lock is gone.
#[derive(Default)]
pub(super) struct Wakes(pub(super) Vec<Waiting>);

impl Wakes {
    pub(super) fn wake(&mut self) {
        for ticket in self.0.drain(..) {
            ticket.wake();
        }
    }
}

impl State {
    pub(super) fn new() -> State {
        State {
            queue: Queue::new(),
            reserved: 0,
            wake: None,
            phase: Phase::Open,
            drains: Vec::new(),
            batch: 1,
            errand: false,
            totals: Totals::default(),
            scratch: Scratch::default(),
        }
    }
}

/// The timer that looks at the queue, and the one for the deadlines of [`drain`](Core::drain); every other is the deadline
/// of the waiter at that place.
const WAKE: u64 = u64::MAX;
const DRAIN: u64 = u64::MAX - 1;
/// At one tick, valves look at their queues before deadlines end waits: a start at the deadline itself is in time.
const DEADLINES_LAST: u64 = 1 << 63;

impl Core {
    /// Starts a job without a lock, if nobody waits, a slot is free, and the store can. What it does not decide is
    /// decided by [`admit`](Core::admit).
    #[inline]
    pub(super) fn quick(&self, cost: u32) -> Quick {
        if cost.wrapping_sub(1) >= self.cost_max {
            return Quick::Unable;
        }
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // With the bit set, `word` is above every limit.
            if word >= self.limit {
                return Quick::Unable;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        let quick = self.counts.quick(&self.rules, cost);
        match quick {
            Quick::Granted(_) => {
                self.started.fetch_add(1, Ordering::Relaxed);
            }
            Quick::Refused(_) | Quick::Unable => self.release(),
        }
        quick
    }

    /// Starts a job, waiting for it as the call allows.
    pub(super) fn admit(&self, call: &Call<'_>) -> Result<Grant, Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.rules.check_cost(call.cost)?;
        if call.token.is_some_and(CancelToken::is_cancelled) {
            self.state.lock().totals.cancelled += 1;
            return Err(Error::Cancelled);
        }
        let now = self.clock.now();
        let deadline = call.max_wait.filter(|wait| *wait < duration(LONGEST)).map(|wait| now + clock::ticks_up(wait));
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Err(Error::Closed);
        }
        self.word.fetch_or(SLOW, Ordering::AcqRel);
        let sequence = state.queue.number();
        if self.may_ask_directly(call, deadline, now) {
            match self.ask_directly(state, call, now) {
                (state, Some(result)) => {
                    self.drive(state);
                    return result;
                }
                (again, None) => state = again,
            }
        }
        if let Some(error) = self.refused_at_once(&mut state, call, deadline, now) {
            self.drive(state);
            return Err(error);
        }
        let ticket = Arc::new(Ticket::new(&self.clock));
        let place = self.join(&mut state, call, sequence, &ticket, deadline, now);
        self.drive(state);
        let _listed = call.token.map(|token| token.list(&self.me, place));
        match ticket.wait() {
            Outcome::Granted(grant) => Ok(grant),
            Outcome::Failed(error) => Err(error),
        }
    }

    fn join(
        &self,
        state: &mut State,
        call: &Call<'_>,
        sequence: u64,
        ticket: &Waiting,
        deadline: Option<Tick>,
        now: Tick,
    ) -> Place {
        let waiter = Waiter {
            what: Arc::clone(ticket),
            cost: call.cost,
            since: now,
            deadline: deadline.filter(|_| !call.instant),
            instant: call.instant,
            timer: None,
        };
        let place = state.queue.join(call.priority, sequence, waiter);
        if let Some(deadline) = deadline.filter(|_| !call.instant) {
            let key = self.scheduler.set(deadline, DEADLINES_LAST | self.number, self.timer(place.to_bits()));
            if let Some(waiter) = state.queue.get_mut(place) {
                waiter.timer = Some(key);
            }
        }
        place
    }

    /// What can be said to a call before it joins: the queue is full, it would not be head, or it must come too late.
    fn refused_at_once(&self, state: &mut State, call: &Call<'_>, deadline: Option<Tick>, now: Tick) -> Option<Error> {
        if call.instant {
            if !state.queue.would_be_head(call.priority) {
                return Some(self.count_refusal(state, call, Why::Queue, None, now));
            }
            if let Some(hint) = state.queue.held_up(call.cost, now).copied() {
                return Some(self.count_refusal(state, call, hint.why, Some(hint.not_before), now));
            }
            if self.free(state) == 0 {
                return Some(self.count_refusal(state, call, Why::Local, None, now));
            }
        } else if let Some((rule, at)) = state.queue.too_late(call.cost, deadline) {
            state.totals.timed_out += 1;
            return Some(self.timeout(now, Why::Rate(rule), Some(at), now));
        }
        (state.queue.len() >= self.queue_max).then_some(Error::QueueFull { limit: self.queue_max })
    }

    fn count_refusal(&self, state: &mut State, call: &Call<'_>, why: Why, at: Option<Tick>, now: Tick) -> Error {
        debug_assert!(call.instant, "only instant calls are refused by what is in the way now");
        state.totals.refused += 1;
        self.would_wait(why, at, now)
    }

    pub(super) fn would_wait(&self, why: Why, at: Option<Tick>, now: Tick) -> Error {
        Error::WouldWait {
            retry_after: at.map(|at| duration(at.saturating_sub(now))),
            blocked_by: self.blocked(why),
        }
    }

    pub(super) fn timeout(&self, since: Tick, why: Why, at: Option<Tick>, now: Tick) -> Error {
        Error::Timeout {
            waited: duration(now - since),
            retry_after: at.map(|at| duration(at.saturating_sub(now))),
            blocked_by: self.blocked(why),
        }
    }

    pub(super) fn blocked(&self, why: Why) -> Blocked {
        match why {
            Why::Rate(rule) => Blocked::Rate { rule: Arc::clone(self.rules.name(rule)) },
            Why::Paused => Blocked::Paused,
            Why::Slots => Blocked::GlobalConcurrency,
            Why::Store => Blocked::Store,
            Why::Local => Blocked::LocalConcurrency,
            Why::Queue => Blocked::Queue,
        }
    }

    /// Gives a slot back. Called without locks.
    #[inline]
    pub(super) fn release(&self) {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & SLOW != 0 {
            self.look();
        }
    }

    /// Something changed: lets the head ask if it may.
    pub(super) fn look(&self) {
        self.drive(self.state.lock());
    }

    /// How many jobs run or are being asked for.
    pub(super) fn busy(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !SLOW
    }

    pub(super) fn free(&self, _state: &State) -> usize {
        let free = self.limit.saturating_sub(self.busy() + u64::from(fault("V48-slot-kept")));
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    /// Ends one wait without a start, whatever is at the head.
    pub(super) fn end_wait(&self, place: Place, error: impl FnOnce(&Core, &mut State, Tick, Tick) -> Error) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(since) = state.queue.get_mut(place).map(|waiter| waiter.since) else { return };
        let error = error(self, &mut state, since, now);
        let Some(waiter) = state.queue.remove(place) else { return };
        let mut wakes = Wakes::default();
        self.fail(waiter, error, &mut wakes);
        if fault("no-rearm-after-cancel") {
            drop(state);
        } else {
            self.drive(state);
        }
        wakes.wake();
    }

    /// Settles a waiter that does not start.
    pub(super) fn fail(&self, waiter: Waiter<Waiting>, error: Error, wakes: &mut Wakes) {
        if let Some(timer) = waiter.timer {
            self.scheduler.cancel(timer);
        }
        if waiter.what.settle(Outcome::Failed(error)) {
            wakes.0.push(waiter.what);
        }
    }

    pub(super) fn cancelled(&self, place: Place) {
        self.end_wait(place, |_, state, _, _| {
            state.totals.cancelled += 1;
            Error::Cancelled
        });
    }

    /// Sets the timer that looks at the queue, or takes it back.
    pub(super) fn arm(&self, state: &mut State, when: Option<Tick>) {
        if state.wake.map(|(tick, _)| tick) == when {
            return;
        }
        if let Some((_, key)) = state.wake.take() {
            self.scheduler.cancel(key);
        }
        state.wake = when.map(|tick| (tick, self.scheduler.set(tick, self.number, self.timer(WAKE))));
    }

    pub(super) fn timer(&self, timer: u64) -> Timer {
        Timer { owner: self.me.clone(), timer }
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(sink) = &self.sink {
            self.scheduler.events().send(sink, event);
        }
    }

    /// Takes no new calls from here on.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        self.word.fetch_or(SLOW, Ordering::AcqRel);
        state.phase = Phase::Closed;
        let mut wakes = Wakes::default();
        while let Some(waiter) = state.queue.pop() {
            self.fail(waiter, Error::Closed, &mut wakes);
        }
        self.drive(state);
        wakes.wake();
    }

    /// Takes no new calls and waits until those it has are done, at most until `timeout` has passed.
    pub(super) fn drain(&self, timeout: Duration) -> Result<(), Error> {
        let since = self.clock.now();
        let deadline = (timeout < duration(LONGEST)).then(|| since + clock::ticks_up(timeout));
        let ticket = Arc::new(Ticket::new(&self.clock));
        let mut state = self.state.lock();
        self.word.fetch_or(SLOW, Ordering::AcqRel);
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        state.drains.push((deadline, Arc::clone(&ticket)));
        let timer = deadline.map(|at| self.scheduler.set(at, DEADLINES_LAST | self.number, self.timer(DRAIN)));
        self.drive(state);
        let outcome = ticket.wait();
        if let Some(timer) = timer {
            self.scheduler.cancel(timer);
        }
        self.close();
        match outcome {
            Outcome::Granted(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
        }
    }

    fn end_drains(&self, now: Tick) {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock();
        let free = self.free(&state);
        let (why, at) = state.queue.head_blocked(now, free).unwrap_or((Why::Local, None));
        let over = |deadline: &Option<Tick>| deadline.is_some_and(|deadline| deadline <= now);
        for (_, drain) in state.drains.extract_if(.., |(deadline, _)| over(deadline)) {
            if drain.settle(Outcome::Failed(self.timeout(now, why, at, now))) {
                wakes.0.push(drain);
            }
        }
        drop(state);
        wakes.wake();
    }

    /// Called at the end of every hold of the lock that may have changed something: what may be quick is quick again, and
    /// who waits for the last job to end is told.
    pub(super) fn settle_down(&self, state: &mut MutexGuard<'_, State>, wakes: &mut Wakes) {
        if state.queue.is_idle() && state.phase == Phase::Open {
            self.word.fetch_and(!SLOW, Ordering::AcqRel);
        }
        if !state.drains.is_empty() && state.queue.is_idle() && self.busy() == 0 {
            for (_, drain) in std::mem::take(&mut state.drains) {
                if drain.settle(Outcome::Granted(Grant { at: 0 })) {
                    wakes.0.push(drain);
                }
            }
        }
    }
}

impl Timed for Core {
    fn due(self: Arc<Self>, timer: u64, now: Tick) {
        if timer == WAKE {
            let mut state = self.state.lock();
            if state.wake.is_some_and(|(tick, _)| tick <= now) {
                state.wake = None;
            }
            self.drive(state);
        } else if timer == DRAIN {
            self.end_drains(now);
        } else {
            self.end_wait(Place::from_bits(timer), |core, state, since, now| {
                state.totals.timed_out += 1;
                let free = core.free(state);
                let (why, at) = state.queue.head_blocked(now, free).unwrap_or((Why::Queue, None));
                core.timeout(since, why, at, now)
            });
        }
        bury(self);
    }
}

impl Noticed for Core {
    fn noticed(self: Arc<Self>, notice: Notice) {
        if notice == Notice::Paused {
            // Whoever asks next learns of it; asking now would only be refused.
            return;
        }
        let mut state = self.state.lock();
        state.queue.forget();
        self.drive(state);
        bury(self);
    }
}

/// Ends a borrowed hold on a valve. If every other handle went meanwhile, what its owner gave to it, handlers and store,
/// is dropped on the events thread and not on ours.
pub(super) fn bury(core: Arc<Core>) {
    if let Some(core) = Arc::into_inner(core) {
        let scheduler = core.scheduler.clone();
        scheduler.events().bury(Box::new(core));
    }
}

impl Errand for Core {
    fn run(self: Arc<Self>) {
        self.run_errand();
        bury(self);
    }

    fn store_turned(self: Arc<Self>, down: Option<crate::error::StoreError>) {
        self.turned(down);
        bury(self);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        let wake = self.state.lock().wake.take();
        if let Some((_, key)) = wake {
            self.scheduler.cancel(key);
        }
    }
}
