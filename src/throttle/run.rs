//! One run of a key, from when a thread takes it up until its window is open.

use super::breaker::Ended as Answer;
use super::breaker::Pass;
use super::calls::{Calls, Latch, Settled, Waiter, settle_all};
use super::core::Core;
use super::error::ThrottleError;
use super::inside::Inside;
use super::job::{Phase, Ran, Run, Work};
use super::log::LogLevel;
use super::machine::{Ended, Write};
use super::shard::{Shard, Slot};
use super::shared::{Acquired, Shared};
use crate::clock::Tick;
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::{Timed, Timer};
use crate::sync::MutexGuard;
use crate::valve::OwnedPermit;
use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

/// How a closure ended.
pub(super) enum Outcome<T, E> {
    Gave(T),
    Failed(Arc<E>),
    Panicked(Payload),
}

pub(super) type Payload = Box<dyn Any + Send>;

/// How an attempt at a run ended, for who made it.
pub(super) enum Attempt<E> {
    Gave,
    Failed(Arc<E>),
    /// By a closure of its own, or of another call's.
    Panicked {
        payload: Payload,
        own: bool,
    },
    /// Another instance has the window.
    Lost,
    Destroyed,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    /// The leading run of a key for which nobody is to be asked.
    pub(super) fn run_at_once(self: &Arc<Self>, slot: &Slot, work: Work<T, E>) -> Outcome<T, E> {
        let outcome = self.execute(slot, Phase::Leading, 1, work);
        self.finish(slot, &outcome);
        outcome
    }

    /// The leading run of a key, on the thread of the call that found it idle.
    pub(super) fn lead(self: &Arc<Self>, slot: &Slot) -> Result<Ran, ThrottleError<E>> {
        let permit = match self.valve.as_ref().map(|valve| valve.acquire_owned()).transpose() {
            Ok(permit) => permit,
            Err(error) => {
                self.leave(self.shard(slot.hash));
                let refused = self.refuse(slot, &ThrottleError::Valve(error.clone()));
                // The newest closure may be another caller's.
                let _ = caught(|| drop(refused));
                return Err(ThrottleError::Valve(error));
            }
        };
        // Waiting for the permit may have taken long.
        let shard = self.shard(slot.hash);
        if shard.destroyed {
            self.leave(shard);
            return Err(ThrottleError::Destroyed { key: slot.key.to_string() });
        }
        drop(shard);
        match self.attempt(slot, Phase::Leading, Write::IfAbsent, permit) {
            Attempt::Gave => Ok(Ran::Now),
            Attempt::Failed(error) => Err(ThrottleError::Run(error)),
            Attempt::Panicked { payload, own: true } => resume_unwind(payload),
            Attempt::Panicked { payload, own: false } => {
                let _ = caught(|| drop(payload));
                Err(ThrottleError::Panicked { key: slot.key.to_string() })
            }
            Attempt::Lost => Ok(Ran::Later),
            Attempt::Destroyed => Err(ThrottleError::Destroyed { key: slot.key.to_string() }),
        }
    }

    /// Acquires the key, runs its newest closure for all calls that have come by then, and opens the window.
    pub(super) fn attempt(
        self: &Arc<Self>,
        slot: &Slot,
        phase: Phase,
        write: Write,
        permit: Option<OwnedPermit>,
    ) -> Attempt<E> {
        let acquired = match &self.shared {
            Some(shared) => self.acquire(shared, &slot.key, write),
            None => Acquired::Unasked,
        };
        let until = match acquired {
            Acquired::Until(until) => Some(until),
            Acquired::Unasked => None,
            Acquired::Lost => {
                drop(permit);
                return self.lose(slot, phase);
            }
        };
        let now = self.clock.now();
        let mut shard = self.shard(slot.hash);
        let begun = shard.change(slot.hash, &slot.key, |entry| {
            let calls = entry.calls.take();
            entry.stage.run(now, until, &self.timings);
            (calls, entry.stage.wakes_at())
        });
        let Some((Some(calls), wakes_at)) = begun else {
            self.leave(shard);
            return Attempt::Destroyed;
        };
        shard.account_for(calls.streak.calls(), calls.waiters.len());
        match phase {
            Phase::Leading => shard.totals.leading += 1,
            Phase::Trailing => shard.totals.trailing += 1,
        }
        if let Some(at) = wakes_at {
            shard.plan(slot.hash, at);
            self.arm(&mut shard, slot.hash, at);
        }
        drop(shard);
        if let Some(shared) = &self.shared {
            shared.begins();
        }
        let Calls { work, replaced, streak, waiters, flushes, .. } = *calls;
        let covered = streak.calls();
        let outcome = match &permit {
            Some(permit) => permit.run(|| self.execute(slot, phase, covered, work)),
            None => self.execute(slot, phase, covered, work),
        };
        drop(permit);
        settle_all(waiters, &slot.key, || outcome.settled(&slot.key));
        self.finish(slot, &outcome);
        drop(flushes);
        if phase == Phase::Trailing && !fault("T31") {
            self.say_failed(slot, &outcome);
        }
        match outcome {
            Outcome::Gave(value) => {
                let _ = caught(|| drop(value));
                Attempt::Gave
            }
            Outcome::Failed(error) => Attempt::Failed(error),
            Outcome::Panicked(payload) => Attempt::Panicked { payload, own: !replaced },
        }
    }

    fn execute(
        self: &Arc<Self>,
        slot: &Slot,
        phase: Phase,
        covered: usize,
        work: Work<T, E>,
    ) -> Outcome<T, E> {
        if self.logger.is_on() {
            let fields = [("key", &*slot.key), ("phase", phase.as_str())];
            self.logger.write(LogLevel::Info, "run", &fields);
        }
        let _inside = Inside::enter(self.address(), &slot.key);
        let run = Run { key: &slot.key, phase, covered };
        match catch_unwind(AssertUnwindSafe(|| work(&run))) {
            Ok(Ok(value)) => Outcome::Gave(value),
            Ok(Err(error)) => Outcome::Failed(Arc::new(error)),
            Err(payload) => Outcome::Panicked(payload),
        }
    }

    /// The closure has ended: opens the window.
    fn finish(self: &Arc<Self>, slot: &Slot, outcome: &Outcome<T, E>) {
        let now = self.clock.now();
        let mut shard = self.shard(slot.hash);
        shard.totals.failed += u64::from(!matches!(outcome, Outcome::Gave(_)));
        let ended = shard.change(slot.hash, &slot.key, |entry| {
            let owed = entry.owed();
            entry.stage.end(now, owed, &self.timings)
        });
        match (ended, &self.shared) {
            (Some(Ended::Await(until)), Some(shared)) => {
                let latch = Latch::new(&self.clock);
                shard.change(slot.hash, &slot.key, |entry| {
                    if let Some(flight) = entry.stage.flight_mut() {
                        flight.landed = Some(Arc::clone(&latch));
                    }
                });
                drop(shard);
                self.await_landing(&latch, until);
                self.close(slot, shared);
            }
            (Some(Ended::Close), Some(shared)) => {
                drop(shard);
                self.close(slot, shared);
            }
            (ended, _) => {
                if ended.is_some() {
                    self.plan(&mut shard, slot);
                }
                self.leave(shard);
            }
        }
        self.look_after_orphans();
    }

    fn await_landing(&self, latch: &Arc<Latch>, until: Tick) {
        let weak = Arc::downgrade(latch);
        let owner: Weak<dyn Timed> = weak;
        if let Ok(timer) = self.scheduler.set(until, 0, Timer { owner, timer: 0 }) {
            latch.wait();
            self.scheduler.cancel(timer);
        }
    }

    /// Makes the closing write, then opens the window.
    fn close(self: &Arc<Self>, slot: &Slot, shared: &Shared) {
        shared.ends();
        let sent = self.clock.now();
        let closing = self.shard(slot.hash).change(slot.hash, &slot.key, |entry| entry.stage.close(sent));
        let (write, given_up) = closing.unwrap_or((Write::IfAbsent, None));
        if let Some(flight) = given_up {
            if self.give_up(shared, flight.pass) {
                self.say_unanswered(&slot.key);
            }
        }
        let length = if fault("T14") { self.timings.lease } else { self.timings.window };
        let wrote = self.write(shared, "close", &slot.key, write, length) == Some(true);
        let now = self.clock.now();
        let mut shard = self.shard(slot.hash);
        if shard.destroyed {
            let gone = shard.remove(slot.hash, &slot.key);
            let spent = shard.tidy(|key| self.hash(key));
            self.leave(shard);
            drop(gone);
            self.bin(spent);
            return;
        }
        shard.change(slot.hash, &slot.key, |entry| {
            let owed = entry.owed();
            entry.stage.open(sent, now, wrote, owed, &self.timings);
        });
        self.plan(&mut shard, slot);
        self.leave(shard);
    }

    /// An extension was not answered in time. Whether that opened the breaker.
    pub(super) fn give_up(&self, shared: &Shared, pass: Pass) -> bool {
        shared.report(pass, Answer::Failed, self.clock.now())
    }

    /// The breaker opened because of it.
    pub(super) fn say_unanswered(&self, key: &str) {
        self.say_opened("extend", &self.full_key(key), "no answer within engine_timeout");
    }

    /// Sets the timer of a key whose stage has changed.
    fn plan(self: &Arc<Self>, shard: &mut Shard<T, E>, slot: &Slot) {
        let at = shard.find_mut(slot.hash, &slot.key).and_then(|entry| entry.stage.wakes_at());
        if let Some(at) = at {
            shard.plan(slot.hash, at);
            self.arm(shard, slot.hash, at);
        }
    }

    /// The race is lost: drops the calls that lost their tenth, and has the others try again.
    fn lose(self: &Arc<Self>, slot: &Slot, phase: Phase) -> Attempt<E> {
        let mut shard = self.shard(slot.hash);
        shard.totals.races_lost += 1;
        let lost = shard.change(slot.hash, &slot.key, |entry| {
            let calls = entry.calls.as_mut()?;
            let (dropped, waiters) = calls.lose();
            Some((dropped, waiters, calls.streak.calls()))
        });
        let Some((dropped, waiters, left)) = lost.flatten() else {
            self.leave(shard);
            return Attempt::Destroyed;
        };
        shard.totals.dropped += dropped as u64;
        shard.account_for(dropped, waiters.len());
        let gone = if left == 0 { shard.remove(slot.hash, &slot.key) } else { None };
        let spent = if left == 0 { shard.tidy(|key| self.hash(key)) } else { None };
        if left == 0 {
            self.leave(shard);
        } else {
            drop(shard);
        }
        if dropped > 0 {
            self.drop_calls(slot, dropped, waiters);
        }
        let _ = caught(|| drop(gone));
        self.bin(spent);
        let goes_on = left == 0 || self.try_again(slot, phase);
        self.look_after_orphans();
        if goes_on { Attempt::Lost } else { Attempt::Destroyed }
    }

    fn drop_calls(&self, slot: &Slot, dropped: usize, waiters: Vec<Arc<Waiter<T, E>>>) {
        for waiter in waiters {
            waiter.settle(Err(ThrottleError::Dropped { key: slot.key.to_string() }));
        }
        let fields = [("key", &*slot.key), ("calls", &*dropped.to_string())];
        self.logger.write(LogLevel::Debug, "calls dropped after 10 lost races", &fields);
    }

    /// Reads when the other instance's window ends, and has the key wait for it. `false` if the throttle was destroyed
    /// meanwhile.
    fn try_again(self: &Arc<Self>, slot: &Slot, phase: Phase) -> bool {
        let stored = self.shared.as_ref().and_then(|shared| self.read(shared, &slot.key));
        let stored = stored.as_ref().map(|value| value.as_deref());
        let wait = self.timings.retry_in(stored, self.clock.wall());
        let due = self.clock.now() + wait;
        let mut shard = self.shard(slot.hash);
        shard.totals.coalesced += u64::from(phase == Phase::Leading);
        let is_there = shard.change(slot.hash, &slot.key, |entry| entry.stage.lose(due)).is_some();
        self.plan(&mut shard, slot);
        self.leave(shard);
        is_there
    }

    /// A thread has done with a key.
    pub(super) fn leave(self: &Arc<Self>, mut shard: MutexGuard<'_, Shard<T, E>>) {
        shard.at_work -= 1;
        let destroyed = shard.destroyed;
        drop(shard);
        if destroyed {
            self.tell_endings();
        }
    }
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    /// A failed trailing run may have nobody else who is told.
    fn say_failed(&self, slot: &Slot, outcome: &Outcome<T, E>) {
        if !self.logger.is_on() {
            return;
        }
        let error = match outcome {
            Outcome::Gave(_) => return,
            Outcome::Failed(error) => caught(|| error.to_string()),
            Outcome::Panicked(payload) => Some(panic_text(payload)),
        };
        let error = error.unwrap_or_else(|| "an error whose text panics".to_owned());
        let fields = [("key", &*slot.key), ("phase", Phase::Trailing.as_str()), ("error", &error)];
        self.logger.write(LogLevel::Error, "trailing run failed", &fields);
    }
}

fn panic_text(payload: &Payload) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.map_or_else(|| "panicked".to_owned(), |text| format!("panicked: {text}"))
}

impl<T: Clone, E> Outcome<T, E> {
    fn settled(&self, key: &str) -> Settled<T, E> {
        match self {
            Outcome::Gave(value) => Ok(value.clone()),
            Outcome::Failed(error) => Err(ThrottleError::Run(Arc::clone(error))),
            Outcome::Panicked(_) => Err(ThrottleError::Panicked { key: key.to_owned() }),
        }
    }
}
