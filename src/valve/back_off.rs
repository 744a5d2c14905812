//! A retry between two attempts: its slot given back, out of the queue for a while, and back in it under its own number.

use super::call::Call;
use super::cancel::CancelToken;
use super::core::{After, Core, Grant, Phase, SLOW, State};
use super::nesting;
use crate::clock::{Tick, ticks_up};
use crate::error::Error;
use crate::event::Callback;
use crate::os;
use crate::planted::fault;
use crate::scheduler::{Outcome, Place, Ticket, Waiter, Why};
use crate::sync::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What a call keeps over all its attempts: its place among equals, and its deadline.
pub(super) struct Standing {
    pub(super) sequence: u64,
    pub(super) since: Tick,
    pub(super) deadline: Option<Tick>,
}

/// A running attempt's slot, given back on drop.
pub(super) struct Slot<'a> {
    core: &'a Core,
    grant: Grant,
    given_back: bool,
}

impl<'a> Slot<'a> {
    pub(super) fn new(core: &'a Core, grant: Grant) -> Slot<'a> {
        Slot { core, grant, given_back: false }
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.grant
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.given_back, true) && !os::forked() {
            self.core.end_job(&self.grant);
        }
    }
}

impl Core {
    /// Gives the slot of a failed attempt back and waits for the next one: for `wait`, and then in line with the others.
    ///
    /// In line before the slot is free, in one hold of the lock: nobody who called later may find the slot first.
    pub(super) fn again(
        &self,
        mut slot: Slot<'_>,
        call: &Call<'_>,
        standing: &Standing,
        wait: Duration,
    ) -> Result<Grant, Error> {
        if call.token.is_some_and(CancelToken::is_cancelled) {
            self.state.lock().totals.cancelled += 1;
            return Err(Error::Cancelled);
        }
        let endless = call.token.is_none() && standing.deadline.is_none();
        let (inside, leases) = if endless { nesting::held(self) } else { (0, Vec::new()) };
        let ticket = Arc::new(Ticket::new(&self.clock));
        if fault("slot-freed-before-the-retry-is-back") {
            slot.given_back = true;
            self.end_job(&slot.grant);
        }
        let mut after = After::default();
        let mut state = self.state.lock();
        let now = self.clock.now();
        let begin = now + ticks_up(wait);
        self.may_come_back(&mut state, call, standing, begin, now)?;
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        let place = state.queue.back_off(Waiter {
            what: Arc::clone(&ticket),
            cost: call.cost,
            since: standing.since,
            deadline: standing.deadline,
            instant: false,
            inside,
            leases,
            timer: None,
            back_as: Some((call.priority, standing.sequence)),
        });
        if begin <= now {
            self.come_back(&mut state, place, &mut after);
        } else {
            let timer = self.set_timer(&mut state, begin, self.number, place.to_bits());
            if let Some(waiter) = state.queue.get_mut(place) {
                waiter.timer = timer;
            }
        }
        let lost = self.end_attempt(&mut state, &mut slot, now, &mut after);
        self.break_circle(&mut state, &mut after);
        self.drive(state);
        after.act(self);
        if let Some(callbacks) = lost {
            self.tell_lost(1, callbacks);
        }
        let _listed = call.token.map(|token| token.list(&self.me, place));
        match ticket.wait() {
            Outcome::Granted(grant) => Ok(grant),
            Outcome::Failed(error) => Err(error),
        }
    }

    /// What can be said before it backs off: it would never start, or not in time.
    fn may_come_back(
        &self,
        state: &mut State,
        call: &Call<'_>,
        standing: &Standing,
        begin: Tick,
        now: Tick,
    ) -> Result<(), Error> {
        if state.phase == Phase::Closed {
            return Err(Error::Closed);
        }
        state.limits.rules.check_cost(call.cost)?;
        if standing.deadline.is_some_and(|deadline| begin > deadline) {
            state.totals.timed_out += 1;
            let (why, at) = state.queue.head_blocked(now, self.free(state)).unwrap_or((Why::Queue, None));
            return Err(self.timeout(state, standing.since, why, at, now));
        }
        Ok(())
    }

    /// Gives the slot back under the lock, for whom it drives next. What [`end_job`](Core::end_job) does without.
    fn end_attempt(
        &self,
        state: &mut State,
        slot: &mut Slot<'_>,
        now: Tick,
        after: &mut After,
    ) -> Option<Vec<Arc<Callback>>> {
        if std::mem::replace(&mut slot.given_back, true) {
            return None;
        }
        let lost = slot.grant.lease.as_ref().and_then(|lease| state.leases.end(lease, now));
        self.look_after_releases(state, after);
        self.count_end(slot.grant.striped);
        lost
    }

    /// A timer says that the back-off of the retry at this place is over; `false` if none backs off there.
    pub(super) fn back_off_over(&self, place: Place) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        if !state.queue.is_backing_off(place) {
            return false;
        }
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        self.come_back(&mut state, place, &mut after);
        self.break_circle(&mut state, &mut after);
        self.drive(state);
        after.act(self);
        true
    }

    /// Puts a retry back in line, with the timer for its deadline.
    fn come_back(&self, state: &mut State, place: Place, after: &mut After) {
        state.queue.come_back(place);
        let Some(waiter) = state.queue.get_mut(place) else { return };
        let (cost, since, deadline) = (waiter.cost, waiter.since, waiter.deadline);
        if let Some((rule, at)) = state.queue.too_late(cost, deadline) {
            state.totals.timed_out += 1;
            let error = self.timeout(state, since, Why::Rate(rule), Some(at), self.clock.now());
            if let Some(waiter) = state.queue.remove(place) {
                self.fail(waiter, error, after);
            }
            return;
        }
        self.set_deadline(state, place, deadline);
    }
}
