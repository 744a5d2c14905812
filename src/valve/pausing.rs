//! Pauses and resumes: what begins here at once, what the store is told and when, and what its answer changes.
//!
//! On a store that may block the calls are made by its lease threads, those of one id in the order of these calls; on any
//! other by the calling thread.

use super::core::{Core, SLOW};
use super::told::{DEADLINES_LAST, bury};
use crate::clock::{Clock, Tick, duration, ticks_up};
use crate::error::{Error, Executed, StoreError, StoreErrorKind};
use crate::event::{Event, caught};
use crate::planted::fault;
use crate::scheduler::{Outcome, Ticket, Timed, Timer, Why};
use crate::store::{Counts, Deadline, Unmade, Write};
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Core {
    /// Returns once the store has recorded it, or can no more.
    pub(super) fn pause(&self, length: Duration) -> Result<(), Error> {
        let until = self.clock.now() + ticks_up(length.min(self.pause_max));
        self.confirmed(What::Pause { until: AtomicU64::new(until), observed: false })
    }

    /// Returns once the store has recorded it, or can no more. Pauses that were not sent yet never are.
    pub(super) fn resume(&self) -> Result<(), Error> {
        self.confirmed(What::Resume)
    }

    /// Begins a pause here and has the store told; the pause as it was cut.
    pub(super) fn observe(&self, length: Duration) -> Duration {
        let length = length.min(self.pause_max);
        let now = self.clock.now();
        let until = now + ticks_up(length);
        let mut state = self.state.lock();
        let lengthens = state.queue.paused_until(now).is_none_or(|known| known < until);
        state.queue.pause_ourselves(until);
        let joins = self
            .remote
            .as_ref()
            .is_some_and(|remote| remote.lengthen_last_pause(&self.id, self.number, until));
        let write = (!joins).then(|| {
            state.pauses_due += 1;
            self.write(What::Pause { until: AtomicU64::new(until), observed: true }, None)
        });
        if let Some((remote, write)) = self.remote.as_ref().zip(write.clone()) {
            remote.queue_write(&self.id, write);
        }
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        self.drive(state);
        if lengthens {
            self.tell(Event::Paused { left: length });
        }
        match (&self.remote, write) {
            (Some(remote), _) if !fault("V30") => remote.serve_writes(&self.clock),
            (_, Some(write)) => write.make(),
            (_, None) => {}
        }
        length
    }

    fn confirmed(&self, what: What) -> Result<(), Error> {
        let deadline = self.remote.as_ref().map(|remote| self.clock.now() + ticks_up(remote.timeout()));
        let is_resume = matches!(what, What::Resume);
        let caller =
            Arc::new(Caller { deadline, ticket: Ticket::new(&self.clock), stage: AtomicU8::new(WAITING) });
        let write = self.write(what, Some(Arc::clone(&caller)));
        let mut dropped = Vec::new();
        let mut state = self.state.lock();
        let lifted = is_resume && state.queue.lift_own_pause();
        if let Some(remote) = &self.remote {
            if is_resume {
                dropped = remote.take_pauses(&self.id);
            }
            remote.queue_write(&self.id, write.clone());
        }
        if lifted {
            // The store may know nothing of that pause: whoever waits need not wait for the store's answer to ask.
            self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
            self.drive(state);
        } else {
            drop(state);
        }
        for write in dropped {
            write.unmade(Unmade::Resumed);
        }
        let owner: Weak<dyn Timed> = Arc::<Caller>::downgrade(&caller);
        let timer = deadline.and_then(|at| {
            self.scheduler.set(at, DEADLINES_LAST | self.number, Timer { owner, timer: 0 }).ok()
        });
        match &self.remote {
            Some(remote) => remote.serve_writes(&self.clock),
            None => write.make(),
        }
        let outcome = caller.outcome();
        if let Some(timer) = timer {
            self.scheduler.cancel(timer);
        }
        outcome
    }

    fn write(&self, what: What, caller: Option<Arc<Caller>>) -> Arc<PauseWrite> {
        Arc::new(PauseWrite {
            core: self.me.clone(),
            valve: self.number,
            counts: Arc::clone(&self.counts),
            clock: self.clock.clone(),
            timeout: self.remote.as_ref().map(crate::store::Remote::timeout),
            what,
            caller,
        })
    }

    /// The store has recorded a pause that lasts for `left` from now, while nothing happened here since `generation`; or else it
    /// may have been lifted again: then nothing is remembered and the next ask tells.
    fn paused(&self, left: Duration, generation: u64, observed: bool) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let until = now + ticks_up(left);
        let lengthens = state.queue.paused_until(now).is_none_or(|known| known < until);
        state.queue.pause_recorded(until);
        if state.queue.generation() == generation && !fault("V26") {
            state.queue.hold(Why::Paused, until);
        }
        state.pauses_due -= usize::from(observed);
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        self.drive(state);
        if lengthens || !observed {
            self.tell(Event::Paused { left });
        }
    }

    fn resumed(&self) {
        let mut state = self.state.lock();
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        state.queue.forget();
        self.drive(state);
        self.tell(Event::Resumed);
    }

    /// A pause that was observed was dropped before it was sent, because everybody was to go on.
    fn unpaused(&self) {
        let mut state = self.state.lock();
        state.pauses_due -= 1;
        // Another that is due was called for after the resume, and holds.
        if state.pauses_due == 0 {
            state.queue.lift_own_pause();
        }
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        self.drive(state);
    }
}

enum What {
    Pause {
        until: AtomicU64,
        /// Nobody waits for it, and it holds here whatever becomes of it.
        observed: bool,
    },
    Resume,
}

/// One pause or resume on its way to the store. It needs no valve: a pause is told of although its valve goes.
struct PauseWrite {
    core: Weak<Core>,
    valve: u64,
    counts: Arc<dyn Counts>,
    clock: Clock,
    /// How long a call may take, of a store that may block.
    timeout: Option<Duration>,
    what: What,
    caller: Option<Arc<Caller>>,
}

/// Who waits for a write. Apart from it, because a timer knows the caller, and the scheduler must not drop a store's counts.
struct Caller {
    deadline: Option<Tick>,
    ticket: Ticket<()>,
    stage: AtomicU8,
}

const WAITING: u8 = 0;
const SENT: u8 = 1;
/// The caller was told that it was not sent, so it must not be any more.
const EXPIRED: u8 = 2;

impl PauseWrite {
    /// When the call has to be done, if it may still be made.
    fn begin(&self) -> Option<Deadline> {
        let left = match &self.caller {
            Some(caller) => caller.begin(self.clock.now())?,
            None => self.timeout,
        };
        Some(left.map_or_else(Deadline::never, |left| Deadline::after(&self.clock, left)))
    }

    /// Makes the call; what is left of the pause then.
    fn call(&self, deadline: Deadline) -> Result<Duration, StoreError> {
        let result = caught(|| match &self.what {
            // Counted from when it was called for, however long it was in line. Who waits for it is told that it was
            // recorded, so it is made even if it is over.
            What::Pause { until, .. } => {
                let left = until.load(Ordering::Acquire).saturating_sub(self.clock.now());
                self.counts.pause(duration(left.max(1)), deadline)
            }
            What::Resume => self.counts.resume(deadline).map(|()| Duration::ZERO),
        });
        result.unwrap_or_else(|| Err(StoreError::panicked()))
    }

    fn ended(&self, result: Result<Duration, StoreError>, generation: u64) {
        if let Some(core) = self.core.upgrade() {
            if result.is_ok() {
                core.note_good();
            }
            match (&self.what, &result) {
                (What::Pause { observed, .. }, Ok(left)) => core.paused(*left, generation, *observed),
                (What::Resume, Ok(_)) => core.resumed(),
                (What::Pause { observed, .. }, Err(error)) => {
                    core.state.lock().pauses_due -= usize::from(*observed);
                    core.tell(Event::PauseFailed { error: error.clone() });
                }
                (What::Resume, Err(error)) => core.tell(Event::ResumeFailed { error: error.clone() }),
            }
            bury(core);
        }
        let result = if fault("V32") { result.or(Ok(Duration::ZERO)) } else { result };
        self.settle(result.map(drop));
    }

    fn settle(&self, result: Result<(), StoreError>) {
        if let Some(caller) = &self.caller {
            caller.settle(result);
        }
    }
}

impl Caller {
    /// How long the call may take, unless the caller's time is over.
    fn begin(&self, now: Tick) -> Option<Option<Duration>> {
        let left = self.deadline.map(|deadline| duration(deadline.saturating_sub(now)));
        if left.is_some_and(|left| left.is_zero()) {
            self.expire();
        }
        self.stage.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(left)
    }

    fn expire(&self) {
        let unsent =
            self.stage.compare_exchange(WAITING, EXPIRED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.settle(Err(timed_out(if unsent { Executed::No } else { Executed::Unknown })));
    }

    fn settle(&self, result: Result<(), StoreError>) {
        let outcome = match result {
            Ok(()) => Outcome::Granted(()),
            Err(error) => Outcome::Failed(Error::StoreUnavailable(error)),
        };
        if self.ticket.settle(outcome) {
            self.ticket.wake();
        }
    }

    /// Waits for the end, on the caller's thread.
    fn outcome(&self) -> Result<(), Error> {
        match self.ticket.wait() {
            Outcome::Granted(()) => Ok(()),
            Outcome::Failed(error) => Err(error),
        }
    }
}

impl Write for PauseWrite {
    fn make(self: Arc<Self>) {
        let Some(deadline) = self.begin() else { return self.ended(Err(timed_out(Executed::No)), 0) };
        let generation = self.core.upgrade().map_or(0, |core| {
            let generation = core.state.lock().queue.generation();
            bury(core);
            generation
        });
        let result = self.call(deadline.clone());
        let result = if fault("V31") { result.or_else(|_| self.call(deadline)) } else { result };
        self.ended(result, generation);
    }

    fn unmade(self: Arc<Self>, why: Unmade) {
        let error = match why {
            Unmade::NoThread => {
                let what = "the system refused a thread to tell the store with";
                return self.ended(Err(StoreError::new(StoreErrorKind::Other, Executed::No, what)), 0);
            }
            Unmade::Resumed => {
                let what = "a resume was called for before the pause was sent, so it never was";
                StoreError::new(StoreErrorKind::Other, Executed::No, what)
            }
        };
        if let What::Pause { observed: true, .. } = self.what {
            if let Some(core) = self.core.upgrade() {
                core.unpaused();
                bury(core);
            }
        }
        self.settle(Err(error));
    }

    fn is_pause(&self) -> bool {
        matches!(self.what, What::Pause { .. })
    }

    fn lengthen(&self, valve: u64, longer: Tick) -> bool {
        match &self.what {
            What::Pause { until, observed: true } if valve == self.valve => {
                until.fetch_max(longer, Ordering::AcqRel);
                true
            }
            _ => false,
        }
    }
}

impl Timed for Caller {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        self.expire();
    }

    fn stopped(self: Arc<Self>) {
        self.expire();
    }
}

fn timed_out(executed: Executed) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        executed,
        "the store took longer than one call may: see what slows it, or allow more",
    )
}

#[cfg(test)]
mod tests;
