//! Calls that are tried again: away for a while, and back in their old place.

use super::{CallState, End, Fate, Phase, World};

impl World {
    /// An attempt failed, and its call is to be tried again `wait` from now: in line before its slot is free, or not at all.
    pub(in crate::simulation) fn backs_off(&mut self, now: u64, number: usize, wait: u64) {
        self.note(now, format_args!("retry {number} in {wait}"));
        let Fate::Runs { since } = self.calls[number].fate else { return };
        let CallState { call, deadline, .. } = &self.calls[number];
        let (valve, cost, is_late) = (call.valve, call.cost, deadline.is_some_and(|at| now + wait > at));
        let is_cancelled = call.token.is_some_and(|token| self.cancelled[token]);
        let is_refused = is_cancelled || self.valves[valve].phase == Phase::Closed;
        self.calls[number].fate = match wait {
            _ if is_refused => Fate::Ends(End::AtTheDoor),
            _ if is_late => Fate::Ended { started: Some(since) },
            0 => Fate::Waits,
            _ => Fate::BacksOff(now + wait, self.back_offs),
        };
        self.back_offs += 1;
        if is_refused || !is_late {
            self.tried.push((since, cost));
        } else {
            self.valves[valve].timed_out += 1;
        }
        self.valves[valve].running -= 1;
        self.drive(valve, now);
    }

    /// Those of this valve that back off.
    pub(super) fn backing_off(&self, valve: usize) -> impl Iterator<Item = (u64, u64, usize)> {
        self.calls.iter().enumerate().filter_map(move |(number, state)| match state.fate {
            Fate::BacksOff(until, order) if state.call.valve == valve => Some((until, order, number)),
            _ => None,
        })
    }

    /// Lets those come back that have, in the order of their times: so many of each valve are still away. At which instant of
    /// its tick each does is the valve's affair.
    pub(super) fn come_back(&mut self, now: u64, away: &[usize]) {
        let next = |world: &World| {
            let back = (0..away.len()).filter(|&valve| world.backing_off(valve).count() > away[valve]);
            back.filter_map(|valve| {
                let (until, _, number) = world.backing_off(valve).min()?;
                Some((until, valve, number))
            })
            .min()
        };
        while let Some((until, valve, number)) = next(self) {
            // A drain that has run out of time has closed the valve, and its caller has not been seen yet.
            if until > now && self.valves[valve].phase == Phase::Draining {
                self.calls[number].fate = Fate::Ends(End::Closed);
                continue;
            }
            self.expect(until <= now, |world| {
                format!("call {number} is back at {now}, not at {until}: {}", world.tell(number, now))
            });
            // At one tick valves look at their queues in the order in which they were built.
            for earlier in 0..valve {
                self.drive(earlier, until);
            }
            self.calls[number].fate = Fate::Waits;
            // If it could start then, it has: nothing else has been seen to happen since.
            self.drive(valve, until);
        }
    }

    /// Whether it has not been seen to end.
    pub(in crate::simulation) fn waits(&self, number: usize) -> bool {
        !matches!(self.calls[number].fate, Fate::Ended { .. })
    }

    /// A call that has been tried ended with its own error, and not for want of attempts.
    pub(in crate::simulation) fn gave_up(&mut self, now: u64, number: usize) {
        if !self.waits(number) {
            return;
        }
        self.note(now, format_args!("call {number} is given up"));
        let valve = self.calls[number].call.valve;
        self.drive(valve, now);
        let CallState { deadline, fate, .. } = self.calls[number];
        let ends = matches!(fate, Fate::Ends(End::Late | End::Cancelled | End::Closed));
        let right = ends && (deadline == Some(now) || self.is_too_late(number, now));
        self.expect(right, |world| format!("call {number} is given up: {}", world.tell(number, now)));
        self.valves[valve].timed_out += 1;
        self.calls[number].fate = Fate::Ended { started: None };
        self.drive(valve, now);
    }
}
