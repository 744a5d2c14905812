//! A call that may have to wait: how it joins the queue and how its wait ends without a start.

use super::back_off::Standing;
use super::call::Call;
use super::cancel::CancelToken;
use super::core::{After, Core, Grant, Phase, SLOW, State, Waiting};
use super::nesting;
use super::told::DEADLINES_LAST;
use crate::clock::{LONGEST, Tick, duration, ticks_up};
use crate::error::{Blocked, Error};
use crate::event::caught;
use crate::os;
use crate::planted::fault;
use crate::scheduler::{Outcome, Place, Ticket, Waiter, Why};
use crate::store::Token;
use crate::sync::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Core {
    /// Starts a job, waiting for it as the call allows.
    pub(super) fn admit(&self, call: &Call<'_>) -> Result<Grant, Error> {
        self.admit_in_line(call).map(|(grant, _)| grant)
    }

    /// As [`admit`](Core::admit), and says under which number the call was in line, for its retries.
    pub(super) fn admit_in_line(&self, call: &Call<'_>) -> Result<(Grant, Standing), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        if call.token.is_some_and(CancelToken::is_cancelled) {
            self.state.lock().totals.cancelled += 1;
            return Err(Error::Cancelled);
        }
        let now = self.clock.now();
        let deadline =
            call.max_wait.filter(|wait| *wait < duration(LONGEST)).map(|wait| now + ticks_up(wait));
        let ready = self.remote.is_none() || caught(|| self.counts.ready()).unwrap_or(false);
        let mut state = self.state.lock();
        state.limits.rules.check_cost(call.cost)?;
        if state.phase != Phase::Open {
            return Err(Error::Closed);
        }
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        let sequence = state.queue.number();
        let standing = Standing { sequence, since: now, deadline };
        if ready && self.may_ask_directly(call, deadline, now) {
            match self.ask_directly(state, call, now) {
                (state, Some(result)) => {
                    self.drive(state);
                    return result.map(|grant| (grant, standing));
                }
                (again, None) => state = again,
            }
        }
        if let Some(error) = self.refused_at_once(&mut state, call, deadline, now) {
            self.drive(state);
            return Err(error);
        }
        let endless = call.token.is_none() && deadline.is_none() && !call.instant;
        let inside = if endless { nesting::held(self) } else { (0, Vec::new()) };
        let ticket = Arc::new(Ticket::new(&self.clock));
        let place = self.join(&mut state, call, sequence, &ticket, deadline, inside, now);
        let mut after = After::default();
        self.break_circle(&mut state, &mut after);
        self.drive(state);
        after.act(self);
        let _listed = call.token.map(|token| token.list(&self.me, place));
        match ticket.wait() {
            Outcome::Granted(grant) => Ok((grant, standing)),
            Outcome::Failed(error) => Err(error),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a waiter is made of")]
    pub(super) fn join(
        &self,
        state: &mut State,
        call: &Call<'_>,
        sequence: u64,
        ticket: &Waiting,
        deadline: Option<Tick>,
        (inside, leases): (u64, Vec<Token>),
        now: Tick,
    ) -> Place {
        let waiter = Waiter {
            what: Arc::clone(ticket),
            cost: call.cost,
            since: now,
            deadline: deadline.filter(|_| !call.instant),
            instant: call.instant,
            inside,
            leases,
            timer: None,
            back_as: None,
        };
        let place = state.queue.join(call.priority, sequence, waiter);
        // One that does not wait takes the next answer, but no longer than one ask may.
        let limit = self.remote.as_ref().map(|remote| now.saturating_add(ticks_up(remote.timeout())));
        self.set_deadline(state, place, if call.instant { limit } else { deadline });
        place
    }

    /// Sets the timer that ends a wait.
    pub(super) fn set_deadline(&self, state: &mut State, place: Place, deadline: Option<Tick>) {
        let Some(deadline) = deadline else { return };
        let key = self.set_timer(state, deadline, DEADLINES_LAST | self.number, place.to_bits());
        if let Some(waiter) = state.queue.get_mut(place) {
            waiter.timer = key;
        }
    }

    /// What can be said to a call before it joins: the queue is full, it would not be head, or it must come too late.
    pub(super) fn refused_at_once(
        &self,
        state: &mut State,
        call: &Call<'_>,
        deadline: Option<Tick>,
        since: Tick,
    ) -> Option<Error> {
        // Later than `since` if it has asked a store that can block.
        let now = self.clock.now();
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
            return Some(self.timeout(state, since, Why::Rate(rule), Some(at), now));
        }
        (!call.instant && state.queue.len() >= self.queue_max)
            .then_some(Error::QueueFull { limit: self.queue_max })
    }

    fn count_refusal(
        &self,
        state: &mut State,
        call: &Call<'_>,
        why: Why,
        at: Option<Tick>,
        now: Tick,
    ) -> Error {
        debug_assert!(call.instant, "only instant calls are refused by what is in the way now");
        state.totals.refused += 1;
        self.would_wait(state, why, at, now)
    }

    /// Ends waits without a start, all before anybody may start in their place.
    pub(super) fn end_waits(
        &self,
        places: impl IntoIterator<Item = Place>,
        error: impl Fn(&Core, &mut State, Tick, Tick) -> Error,
    ) {
        let now = self.clock.now();
        let mut after = After::default();
        let mut state = self.state.lock();
        for place in places {
            let Some(since) = state.queue.get_mut(place).map(|waiter| waiter.since) else { continue };
            let error = error(self, &mut state, since, now);
            if let Some(waiter) = state.queue.remove(place) {
                self.fail(waiter, error, &mut after);
            }
        }
        if after.is_empty() {
            return;
        }
        if fault("no-rearm-after-cancel") {
            drop(state);
        } else {
            self.drive(state);
        }
        after.act(self);
    }

    /// Settles a waiter that does not start.
    pub(super) fn fail(&self, waiter: Waiter<Waiting>, error: Error, after: &mut After) {
        if let Some(timer) = waiter.timer {
            self.scheduler.cancel(timer);
        }
        if waiter.what.settle(Outcome::Failed(error)) {
            after.wakes.push(waiter.what);
        }
    }

    /// The token of these calls, all of this valve, was cancelled.
    pub(super) fn cancelled(&self, calls: Vec<(Weak<Core>, Place)>) {
        self.end_waits(calls.into_iter().map(|(_, place)| place), |_, state, _, _| {
            state.totals.cancelled += 1;
            Error::Cancelled
        });
    }

    pub(super) fn would_wait(&self, state: &State, why: Why, at: Option<Tick>, now: Tick) -> Error {
        Error::WouldWait { retry_after: retry_after(why, at, now), blocked_by: blocked(state, why) }
    }

    pub(super) fn timeout(&self, state: &State, since: Tick, why: Why, at: Option<Tick>, now: Tick) -> Error {
        Error::Timeout {
            waited: duration(now - since),
            retry_after: retry_after(why, at, now),
            blocked_by: blocked(state, why),
        }
    }
}

/// When a job that is alone would start. Nobody knows when a slot comes free or a store comes back: the tick then only says
/// when it is asked again.
fn retry_after(why: Why, at: Option<Tick>, now: Tick) -> Option<Duration> {
    let known = matches!(why, Why::Rate(_) | Why::Paused);
    at.filter(|_| known).map(|at| duration(at.saturating_sub(now)))
}

/// What a caller is told of a reason. A rule that is no more, because the rules changed meanwhile, has lost its name.
pub(super) fn blocked(state: &State, why: Why) -> Blocked {
    match why {
        Why::Rate(rule) if rule < state.limits.rules.len() => {
            Blocked::Rate { rule: Arc::clone(state.limits.rules.name(rule)) }
        }
        Why::Rate(_) | Why::Queue => Blocked::Queue,
        Why::Paused => Blocked::Paused,
        Why::Slots => Blocked::GlobalConcurrency,
        Why::Store => Blocked::Store,
        Why::Local => Blocked::LocalConcurrency,
    }
}
