//! How a valve ends: closed at once, drained first, or orphaned by its scheduler.

use super::core::{After, Core, Drain, Phase, SLOW, State};
use super::told::{DEADLINES_LAST, DRAIN};
use crate::clock::{LONGEST, Tick, duration, ticks_up};
use crate::error::Error;
use crate::scheduler::{Outcome, Ticket, Why};
use crate::sync::Ordering;
use std::sync::Arc;
use std::time::Duration;

impl Core {
    /// Takes no new calls from here on.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        let mut after = After::default();
        self.fail_all(&mut state, &mut after);
        self.drive(state);
        after.act(self);
    }

    /// Closes, under the lock.
    pub(super) fn fail_all(&self, state: &mut State, after: &mut After) {
        state.phase = Phase::Closed;
        while let Some(waiter) = state.queue.pop().or_else(|| state.queue.pop_backing_off()) {
            self.fail(waiter, Error::Closed, after);
        }
    }

    /// Takes no new calls and waits until those it has are done, at most until `timeout` has passed.
    pub(super) fn drain(&self, timeout: Duration) -> Result<(), Error> {
        let since = self.clock.now();
        let deadline = (timeout < duration(LONGEST)).then(|| since + ticks_up(timeout));
        let ticket = Arc::new(Ticket::new(&self.clock));
        let mut state = self.state.lock();
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        self.close_stripes();
        state.drains.push(Drain { since, deadline, ticket: Arc::clone(&ticket) });
        let timer =
            deadline.and_then(|at| self.set_timer(&mut state, at, DEADLINES_LAST | self.number, DRAIN));
        self.drive(state);
        if deadline.is_some() && timer.is_none() {
            // The scheduler has stopped, so the deadline would never come.
            self.end_drains(since);
        }
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

    /// Ends the drains whose time is over, or can be over no more because the scheduler has stopped.
    pub(super) fn end_drains(&self, now: Tick) {
        let mut after = After::default();
        let mut state = self.state.lock();
        let free = self.free(&state);
        let (why, at) = state.queue.head_blocked(now, free).unwrap_or((Why::Local, None));
        let orphaned = state.orphaned;
        let over = |drain: &Drain| drain.deadline.is_some_and(|deadline| orphaned || deadline <= now);
        let (ended, left) = std::mem::take(&mut state.drains).into_iter().partition(over);
        state.drains = left;
        let ended: Vec<Drain> = ended;
        let errors: Vec<Error> =
            ended.iter().map(|drain| self.timeout(&state, drain.since, why, at, now)).collect();
        drop(state);
        for (drain, error) in ended.into_iter().zip(errors) {
            if drain.ticket.settle(Outcome::Failed(error)) {
                after.wakes.push(drain.ticket);
            }
        }
        after.act(self);
    }
}
