//! What was spent under one rule, kept in another way than the library does.

use super::plan::RulePlan;

pub(super) struct Spent {
    pub(super) plan: RulePlan,
    /// Of a GCRA rule, in units of 1/limit ticks.
    tat: u128,
    /// Of a window: its number and what started in it.
    window: (u64, u32),
}

impl Spent {
    pub(super) fn new(plan: &RulePlan) -> Spent {
        Spent { plan: plan.clone(), tat: 0, window: (0, 0) }
    }

    /// The first tick from `now` on at which this rule alone would let such a job start.
    pub(super) fn earliest(&self, now: u64, cost: u32) -> u64 {
        match self.plan {
            RulePlan::Gcra { limit, interval, burst } => {
                let earned = u128::from(burst - cost) * u128::from(interval);
                let earliest = self.tat.saturating_sub(earned).div_ceil(limit.into());
                now.max(earliest as u64)
            }
            RulePlan::Window { limit, interval } => {
                let spent = if self.window.0 == now / interval { self.window.1 } else { 0 };
                if spent + cost <= limit { now } else { (now / interval + 1) * interval }
            }
        }
    }

    pub(super) fn spend(&mut self, now: u64, cost: u32) {
        match self.plan {
            RulePlan::Gcra { limit, interval, .. } => {
                let from = self.tat.max(u128::from(now) * u128::from(limit));
                self.tat = from + u128::from(cost) * u128::from(interval);
            }
            RulePlan::Window { interval, .. } => {
                let spent = if self.window.0 == now / interval { self.window.1 } else { 0 };
                self.window = (now / interval, spent + cost);
            }
        }
    }
}
