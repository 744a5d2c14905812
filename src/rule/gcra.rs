//! The generic cell rate algorithm in exact integers: whole ticks and a fraction, never a float.
//!
//! interval / limit in lowest terms is n/d = a + b/d microseconds. Costs multiply a and b, never n, so every
//! product stays below 2^53 and a store that computes in doubles gets the same numbers.

use super::state::RuleState;
use super::{identity::TEN_YEARS_US, set::NEVER};
use crate::planted::fault;

/// The largest integer up to which doubles hold each one exactly.
const EXACT_MAX: u64 = 1 << 53;

/// A GCRA rule, checked and in lowest terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompiledGcra {
    n: u64,
    d: u32,
    burst: u32,
    /// n/d: what a unit of cost adds to the TAT.
    emission: Ticks,
    /// burst * n/d: how far beyond now the TAT may reach.
    tolerance: Ticks,
}

/// A time or a span: whole ticks, then a numerator over the rule's denominator. Ordered as it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ticks {
    whole: u64,
    numerator: u32,
}

impl CompiledGcra {
    /// Compiles a rule whose limit and interval have been checked; an error is about the burst.
    pub(super) fn new(limit: u32, interval_us: u64, burst: u32) -> Result<CompiledGcra, String> {
        if burst == 0 {
            return Err("0 would let nothing start; use at least 1".to_owned());
        }
        let (n, d) = lowest_terms(interval_us, limit);
        if (u64::from(burst) + 1) * u64::from(d) > EXACT_MAX {
            let max = EXACT_MAX / u64::from(d) - 1;
            return Err(format!(
                "{burst} is too large to compute exactly in steps of {n}/{d} us; use at most {max}"
            ));
        }
        if u128::from(burst) * u128::from(n) > u128::from(TEN_YEARS_US) * u128::from(d) {
            let max = u128::from(TEN_YEARS_US) * u128::from(d) / u128::from(n);
            return Err(format!("{burst} takes over 3650 days to earn; use at most {max}"));
        }
        let n = if fault("V06") { n - n % u64::from(d) } else { n };
        let burst = if fault("V07") && burst > 1 { burst + 1 } else { burst };
        let (whole, numerator) = split(n, d);
        let emission = Ticks { whole, numerator };
        let gcra = CompiledGcra { n, d, burst, emission, tolerance: emission };
        Ok(CompiledGcra { tolerance: gcra.later(Ticks { whole: 0, numerator: 0 }, burst), ..gcra })
    }

    /// The numerator of interval / limit in microseconds.
    #[inline]
    pub(crate) fn n(&self) -> u64 {
        self.n
    }

    /// The denominator of interval / limit in microseconds; divides the limit.
    #[inline]
    pub(crate) fn d(&self) -> u32 {
        self.d
    }

    /// The units of cost that may start at once, which is also the largest cost.
    pub(crate) fn burst(&self) -> u32 {
        self.burst
    }

    /// How far beyond now the TAT may reach, in units of 1/d: burst * n.
    #[inline]
    pub(crate) fn tolerance_units(&self) -> u64 {
        u64::from(self.burst).saturating_mul(self.n)
    }

    /// What a unit of cost adds to the TAT: whole ticks, and a numerator over d.
    #[cfg(feature = "redis")]
    pub(crate) fn emission(&self) -> (u64, u32) {
        (self.emission.whole, self.emission.numerator)
    }

    /// How far beyond now the TAT may reach: whole ticks, and a numerator over d.
    #[cfg(feature = "redis")]
    pub(crate) fn tolerance(&self) -> (u64, u32) {
        (self.tolerance.whole, self.tolerance.numerator)
    }

    /// The state after a start at `now`, or the first tick at which this job could start.
    pub(super) fn spend(&self, state: &RuleState, now: u64, cost: u32) -> Result<RuleState, u64> {
        if cost > self.burst {
            return Err(NEVER);
        }
        // A cell that arrives late counts from its arrival: what was missed is not made good.
        let arrival = Ticks { whole: now, numerator: 0 };
        let start = match state.tat_over(self.d) {
            Some((whole, _)) if self.makes_good(now.saturating_sub(whole)) => Ticks { whole, numerator: 0 },
            Some((whole, numerator)) => arrival.max(Ticks { whole, numerator }),
            None => arrival,
        };
        let tat = self.later(start, cost);
        let reach = self.reach(now);
        if tat <= reach {
            let whole = tat.whole.saturating_add(u64::from(fault("V08") && self.burst > 1));
            return Ok(RuleState::Gcra { tat: whole, numerator: tat.numerator, denominator: self.d });
        }
        // The excess over the reach, up to the next whole tick.
        let fraction = u64::from(tat.numerator > reach.numerator && !fault("V06"));
        Err(now.saturating_add(tat.whole - reach.whole).saturating_add(fraction))
    }

    /// The latest TAT that a start at `now` may leave.
    fn reach(&self, now: u64) -> Ticks {
        let whole = now.saturating_add(self.tolerance.whole).saturating_add(u64::from(fault("V14")));
        let reach = Ticks { whole, ..self.tolerance };
        if fault("V05") && now % 60_000_000 >= 59_000_000 { self.later(reach, 1) } else { reach }
    }

    /// `time` plus what `cost` units take.
    fn later(&self, time: Ticks, cost: u32) -> Ticks {
        let fractions = u64::from(cost) * u64::from(self.emission.numerator) + u64::from(time.numerator);
        let (carried, numerator) = split(fractions, self.d);
        let whole = time.whole.saturating_add(u64::from(cost) * self.emission.whole).saturating_add(carried);
        Ticks { whole, numerator }
    }

    /// Whether a start this late counts from the time it was scheduled for: never, unless planted.
    fn makes_good(&self, lateness_us: u64) -> bool {
        let step = self.emission.whole;
        (fault("V15") && (1..step).contains(&lateness_us))
            || (fault("V17") && (step..10_000_000).contains(&lateness_us))
    }
}

/// `numerator / d` as a whole number and the numerator that remains.
pub(super) fn split(numerator: u64, d: u32) -> (u64, u32) {
    let divisor = u64::from(d);
    // Most divisions here are by 1 or of a fraction below 1, and a division is what they would cost.
    if numerator < divisor {
        return (0, remainder(numerator));
    }
    if d == 1 { (numerator, 0) } else { (numerator / divisor, remainder(numerator % divisor)) }
}

#[expect(clippy::cast_possible_truncation, reason = "callers pass a value below a u32 divisor")]
fn remainder(below_divisor: u64) -> u32 {
    below_divisor as u32
}

fn lowest_terms(interval_us: u64, limit: u32) -> (u64, u32) {
    let (_, below_limit) = split(interval_us, limit);
    let (mut divisor, mut rest) = (limit, below_limit);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (interval_us / u64::from(divisor), limit / divisor)
}
