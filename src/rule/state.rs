//! What a store keeps for one rule between two decisions.

use super::gcra::split;

/// What has been spent under one rule; a store keeps one for each [`RuleSet::key`](super::RuleSet::key).
///
/// Ticks are microseconds of the store's clock. A state says nothing about limits: those are always the
/// asker's, so processes with different limits can share one. [`RuleState::default`] has nothing spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleState {
    /// Nothing has been spent; fits every kind of rule.
    #[default]
    Fresh,
    /// Of a GCRA rule: the theoretical arrival time, `tat + numerator / denominator` ticks.
    Gcra {
        /// Whole ticks.
        tat: u64,
        /// The fraction of a tick beyond `tat`, below `denominator`.
        numerator: u32,
        /// The denominator of interval / limit, in lowest terms, of the rule that spent last.
        denominator: u32,
    },
    /// Of a fixed window: what started in the window that begins at `start`.
    Window {
        /// The window's first tick.
        start: u64,
        /// The cost started in it.
        count: u32,
    },
}

impl RuleState {
    /// Whether this says no more at `now` than a fresh state would, given the interval of its rule in ticks.
    pub(crate) fn is_fresh(self, now: u64, interval: u64) -> bool {
        match self {
            RuleState::Fresh => true,
            RuleState::Gcra { tat, numerator, .. } => tat < now || (tat == now && numerator == 0),
            RuleState::Window { start, count } => count == 0 || start.saturating_add(interval) <= now,
        }
    }

    /// The TAT as a count of `1/denominator` ticks since the tick `base`, rounded up; `None` if u64 cannot
    /// hold it. A TAT before `base` is 0, which means the same to every `now` from `base` on.
    pub(crate) fn to_units(self, base: u64, denominator: u32) -> Option<u64> {
        let Some((ticks, numerator)) = self.tat_over(denominator) else { return Some(0) };
        let Some(ticks) = ticks.checked_sub(base) else { return Some(0) };
        ticks.checked_mul(denominator.into())?.checked_add(numerator.into())
    }

    /// The GCRA state whose TAT is `units` of `1/denominator` ticks after the tick `base`.
    pub(crate) fn from_units(units: u64, base: u64, denominator: u32) -> RuleState {
        let (ticks, numerator) = split(units, denominator);
        RuleState::Gcra { tat: base.saturating_add(ticks), numerator, denominator }
    }

    /// The TAT in whole ticks and a numerator over `denominator`; `None` if this is not a GCRA state.
    ///
    /// A fraction that belongs to another denominator is rounded up, so that a change of limits never hands
    /// out more than either allows. Rounding up can make a whole tick, which is carried; so is a fraction
    /// above one, as only a damaged store can hold.
    pub(super) fn tat_over(self, denominator: u32) -> Option<(u64, u32)> {
        let RuleState::Gcra { tat, numerator, denominator: own } = self else { return None };
        if own == denominator && numerator < own {
            return Some((tat, numerator));
        }
        let scaled = (u64::from(numerator) * u64::from(denominator)).div_ceil(u64::from(own.max(1)));
        let (carried, numerator) = split(scaled, denominator);
        Some((tat.saturating_add(carried), numerator))
    }
}
