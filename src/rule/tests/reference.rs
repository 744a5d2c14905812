//! The same rules in another way: unreduced fractions in u128, windows counted from the list of starts.

use std::time::Duration;

use crate::rule::Rule;

/// The numbers of a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    /// `None` for a fixed window.
    pub(super) burst: Option<u32>,
    pub(super) limit: u32,
    pub(super) interval_us: u64,
}

impl Numbers {
    pub(super) fn rule(&self) -> Rule {
        let interval = Duration::from_micros(self.interval_us);
        match self.burst {
            Some(burst) => Rule::gcra(self.limit, interval).burst(burst).into(),
            None => Rule::fixed_window(self.limit, interval).into(),
        }
    }
}

/// One rule, decided exactly.
pub(super) struct Reference {
    numbers: Numbers,
    /// The denominator of `tat`, a multiple of the limit.
    per_tick: u128,
    tat: u128,
    starts: Vec<(u64, u32)>,
}

impl Reference {
    pub(super) fn new(numbers: Numbers) -> Reference {
        Reference { numbers, per_tick: numbers.limit.into(), tat: 0, starts: Vec::new() }
    }

    /// A reference that can be switched between rules of these limits without rounding.
    pub(super) fn switchable(numbers: Numbers, other_limit: u32) -> Reference {
        let per_tick = u128::from(numbers.limit) * u128::from(other_limit);
        Reference { per_tick, ..Reference::new(numbers) }
    }

    pub(super) fn switch(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    /// The first tick from `now` on at which a job of this cost would start.
    pub(super) fn earliest(&self, now: u64, cost: u32) -> u64 {
        match self.numbers.burst {
            Some(burst) => {
                let earned = self.units(burst - cost);
                let earliest = self.tat.saturating_sub(earned).div_ceil(self.per_tick);
                now.max(earliest.try_into().unwrap())
            }
            None => {
                let index = now / self.numbers.interval_us;
                let same = self.starts.iter().filter(|(tick, _)| tick / self.numbers.interval_us == index);
                let started: u64 = same.map(|&(_, cost)| u64::from(cost)).sum();
                let fits = started + u64::from(cost) <= self.numbers.limit.into();
                if fits { now } else { (index + 1) * self.numbers.interval_us }
            }
        }
    }

    pub(super) fn start(&mut self, now: u64, cost: u32) {
        self.starts.push((now, cost));
        if self.numbers.burst.is_some() {
            self.tat = self.tat.max(u128::from(now) * self.per_tick) + self.units(cost);
        }
    }

    /// What this much cost takes, over `per_tick`.
    fn units(&self, cost: u32) -> u128 {
        u128::from(cost)
            * u128::from(self.numbers.interval_us)
            * (self.per_tick / u128::from(self.numbers.limit))
    }
}
