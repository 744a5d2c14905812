//! What is judged: the errors that calls end with, and that nothing is left to happen once everybody waits.

use super::{CallState, End, Fate, Phase, World};
use crate::simulation::plan::By;
use valve::{Blocked, Error, Stats};

impl World {
    /// Everybody waits: nothing that could happen now is left to happen.
    pub(in crate::simulation) fn settled(&mut self, now: u64, stats: &[Stats]) {
        for (valve, stats) in stats.iter().enumerate() {
            self.drive(valve, now);
            let shown =
                (stats.queued, stats.running, stats.started, stats.timed_out, stats.cancelled, stats.refused);
            let state = &self.valves[valve];
            let queued = self.queued(valve).count();
            let counted = (
                queued,
                state.running.into(),
                state.started,
                state.timed_out,
                state.cancelled,
                state.refused,
            );
            self.expect(shown == counted, |_| {
                format!("valve {valve} at {now}: stats are (queued, running, started, timed out, cancelled, refused) {shown:?}, not {counted:?}")
            });
            let away = self.backing_off(valve).count();
            self.expect(stats.backing_off == away, |_| {
                format!("valve {valve} at {now}: {} back off, not {away}", stats.backing_off)
            });
            let why = self.why(valve, now, stats);
            self.expect(why, |_| {
                format!("valve {valve} at {now}: {queued} wait because of {:?}", stats.blocked_by)
            });
        }
        for number in 0..self.calls.len() {
            let state = &self.calls[number];
            let right = match state.fate {
                Fate::Starts(_) | Fate::Ends(_) => false,
                Fate::BacksOff(until, _) => until > now,
                // One that comes back at its deadline itself has the rest of that instant.
                Fate::Waits if matches!(state.call.by, By::Retry { .. }) => {
                    state.deadline.is_none_or(|deadline| deadline >= now)
                }
                Fate::Waits => state.deadline.is_none_or(|deadline| deadline > now),
                Fate::Runs { .. } | Fate::Ended { .. } => true,
            };
            self.expect(right, |world| {
                format!("call {number} still waits at {now}: {}", world.tell(number, now))
            });
        }
    }

    /// Whether what is said to hold up the head does.
    fn why(&self, valve: usize, now: u64, stats: &Stats) -> bool {
        let Some(head) = self.head(valve) else { return stats.blocked_by.is_none() };
        match &stats.blocked_by {
            Some(Blocked::Rate { .. }) => self.earliest(now, self.calls[head].call.cost) > now,
            Some(Blocked::Paused) => now < self.paused_until,
            Some(Blocked::LocalConcurrency) => self.valves[valve].running == self.valves[valve].limit,
            _ => false,
        }
    }

    pub(super) fn is_right(&self, now: u64, number: usize, error: &Error) -> bool {
        let state = &self.calls[number];
        let valve = &self.valves[state.call.valve];
        let refused = state.fate == Fate::Ends(End::Refused);
        let at_the_door = state.fate == Fate::Ends(End::AtTheDoor);
        match error {
            Error::CostTooLarge { .. } => at_the_door && state.call.cost > self.capacity(),
            Error::QueueFull { limit, .. } => {
                state.fate == Fate::Ends(End::Full) && *limit == valve.queue_max
            }
            Error::Closed => {
                state.fate == Fate::Ends(End::Closed) || (at_the_door && valve.phase != Phase::Open)
            }
            Error::Cancelled => {
                let is_cancelled = state.call.token.is_some_and(|token| self.cancelled[token]);
                state.fate == Fate::Ends(End::Cancelled) || (at_the_door && is_cancelled)
            }
            Error::WouldWait { retry_after, blocked_by, .. } => {
                let retry_at = retry_after.map(|left| now + left.as_micros() as u64);
                state.call.by == By::Try && refused && self.is_true(now, number, blocked_by, retry_at)
            }
            Error::Timeout { waited, retry_after, blocked_by, .. } => {
                let retry_at = retry_after.map(|left| now + left.as_micros() as u64);
                let Some(deadline) = state.deadline else { return false };
                let right = match state.fate {
                    _ if refused => self.is_true(now, number, blocked_by, retry_at),
                    // It may have been told so just before it was cancelled or the valve closed.
                    Fate::Ends(End::Late | End::Cancelled | End::Closed) if now == deadline => true,
                    Fate::Ends(End::Late | End::Full | End::Cancelled | End::Closed) if now < deadline => {
                        let too_late = matches!(blocked_by, Blocked::Rate { .. })
                            && retry_at.is_some_and(|at| at > deadline);
                        too_late && self.is_true(now, number, blocked_by, retry_at)
                    }
                    _ => false,
                };
                right && waited.as_micros() as u64 == now - state.since
            }
            _ => false,
        }
    }

    /// Whether this holds up such a call now. A hint may come from a cheaper job: then it is a lower bound.
    fn is_true(&self, now: u64, number: usize, blocked_by: &Blocked, retry_at: Option<u64>) -> bool {
        let CallState { call, .. } = &self.calls[number];
        let valve = &self.valves[call.valve];
        let by = |end: u64| retry_at.is_some_and(|at| now < at && at <= end);
        match blocked_by {
            Blocked::Rate { .. } => by(self.earliest(now, call.cost)),
            Blocked::Paused => by(self.paused_until),
            Blocked::LocalConcurrency => retry_at.is_none() && valve.running == valve.limit,
            Blocked::Queue => retry_at.is_none(),
            _ => false,
        }
    }

    pub(super) fn tell(&self, number: usize, now: u64) -> String {
        let CallState { call, since, deadline, fate, .. } = &self.calls[number];
        let valve = &self.valves[call.valve];
        format!(
            "it {fate:?}, called at {since} with deadline {deadline:?}; the rates let it start at {}, paused until {}, \
             {} of {} run, valve {:?}, head {:?}",
            self.earliest(now, call.cost.min(self.capacity())),
            self.paused_until,
            valve.running,
            valve.limit,
            valve.phase,
            self.head(call.valve),
        )
    }
}
