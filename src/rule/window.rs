//! Fixed windows: half-open, aligned to multiples of the interval on the store's clock.

use super::{set::NEVER, state::RuleState};
use crate::planted::fault;

/// A fixed window, checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompiledWindow {
    pub(super) limit: u32,
    pub(super) interval_us: u64,
}

impl CompiledWindow {
    /// The state after a start at `now`, or the first tick at which this job could start.
    pub(super) fn spend(&self, state: &RuleState, now: u64, cost: u32) -> Result<RuleState, u64> {
        if cost > self.limit {
            return Err(NEVER);
        }
        let current = self.start_of(now);
        let counted = match *state {
            RuleState::Window { start, count } if start >= current => count,
            RuleState::Window { count, .. } if fault("V10") => count,
            _ => 0,
        };
        match counted.checked_add(cost) {
            Some(count) if count <= self.limit => Ok(RuleState::Window { start: current, count }),
            _ => Err(current.saturating_add(self.interval_us)),
        }
    }

    /// Makes a later window the current one: the clock stepped back.
    ///
    /// Forgetting its count would give a second limit at once. Leaving it where it is would hold every job,
    /// beyond each hint, until the clock has caught up.
    pub(super) fn step_back(&self, state: &mut RuleState, now: u64) {
        if let RuleState::Window { start, .. } = state {
            if *start > now {
                *start = self.start_of(now);
            }
        }
    }

    fn start_of(&self, now: u64) -> u64 {
        let phase = if fault("V09") { self.interval_us / 2 } else { 0 };
        now.saturating_sub((now.saturating_add(phase)) % self.interval_us)
    }
}
