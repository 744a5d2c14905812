//! Keeps a raw counter's scale true to the operating system's clock, without a step back; it reads neither.
//!
//! The rate is that of the longest baseline: from the first reading to the newest. What the scale is off by
//! is slewed away, as NTP does it (RFC 5905, section 11.3), except that a slew ends by itself: corrections
//! come when somebody calls, and one that outlived its purpose would run away until the next call.

#[cfg(test)]
mod tests;

/// A rate and a position are in ticks with this many binary digits after the point: 2^48 of them make a tick.
const FRACTION_BITS: u32 = 48;
const TICK: u128 = 1 << FRACTION_BITS;
const SECOND: u128 = 1_000_000 * TICK;

/// A greater difference than this is not slewed: time that the counter missed is made up for at once, time
/// that it invented (it may run on while the machine is suspended, when the system's clock stands) is kept.
const STEP: u128 = SECOND / 100;

/// The system's clock is itself slewed, by up to 500 parts per million: twice that tells a jump from a rate.
const RATE_TOLERANCE: u128 = 1_000;

/// A slew changes the rate by at most one part in this many.
const SLEW: u128 = 2_000;

/// A measured rate is believed within this factor of the first.
const PLAUSIBLE: u128 = 2;

/// Far above any counter's, and small enough that no product overflows.
const RATE_MAX: u64 = 1 << 56;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) raw: u64,
    pub(crate) system_ns: u64,
}

/// Ticks as a linear function of the raw counter, from `raw` on; before it, constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) raw: u64,
    pub(crate) ticks: u64,
    pub(crate) fraction: u64,
    pub(crate) rate: u64,
}

/// While `settled` has not begun, `slewed` holds; they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) slewed: Line,
    pub(crate) settled: Line,
}

#[derive(Debug)]
pub(crate) struct Discipline {
    scale: Scale,
    first_rate: u64,
    rate: u64,
    /// Where the baseline of the rate begins.
    anchor: Reading,
    last: Reading,
    /// Where the scale should have been at the last reading.
    target: u128,
    /// Whether the rate was measured, so that a reading far off it means a jump.
    measured: bool,
}

impl Discipline {
    /// Starts at tick 1. The rate, in 2^-48 ticks, may be wrong: the first correction replaces it.
    pub(crate) fn new(start: Reading, rate: u64) -> Self {
        let rate = rate.clamp(1, RATE_MAX);
        let line = Line { raw: start.raw, ticks: 1, fraction: 0, rate };
        Self {
            scale: Scale { slewed: line, settled: line },
            first_rate: rate,
            rate,
            anchor: start,
            last: start,
            target: TICK,
            measured: false,
        }
    }

    pub(crate) fn scale(&self) -> Scale {
        self.scale
    }

    /// The scale from `reading` on. It continues the one before, or is ahead of it.
    pub(crate) fn correct(&mut self, reading: Reading) -> Scale {
        let passed = system_position(self.last, reading);
        if passed == 0 {
            return self.scale;
        }
        self.measure(reading, passed);
        let ours = self.scale.line(reading.raw).position(reading.raw);
        let target = self.target + passed;
        (self.scale, self.target) = if ours + STEP < target {
            (Scale::slewing(reading.raw, target, target, self.rate), target)
        } else if target + STEP < ours {
            (Scale::slewing(reading.raw, ours, ours, self.rate), ours)
        } else {
            (Scale::slewing(reading.raw, ours, target, self.rate), target)
        };
        self.last = reading;
        self.scale
    }

    /// Takes the rate since the anchor, unless one of the clocks has jumped: then the old rate stays, and the
    /// baseline begins anew. A second jump in a row is no jump, but a rate that was wrong.
    fn measure(&mut self, reading: Reading, passed: u128) {
        let advanced = u128::from(reading.raw.saturating_sub(self.last.raw)) * u128::from(self.rate);
        let jumped = self.measured && advanced.abs_diff(passed) > STEP + passed / RATE_TOLERANCE;
        let rate = if jumped { None } else { self.rate_since_anchor(reading) };
        match rate {
            Some(rate) => self.rate = rate,
            None => self.anchor = reading,
        }
        self.measured = rate.is_some();
    }

    /// `None` if it cannot be one: the counter stood, went back or raced.
    fn rate_since_anchor(&self, reading: Reading) -> Option<u64> {
        let counted = u128::from(reading.raw.checked_sub(self.anchor.raw)?);
        let rate = system_position(self.anchor, reading).checked_div(counted)?;
        let first = u128::from(self.first_rate);
        let plausible = (first / PLAUSIBLE..=first * PLAUSIBLE).contains(&rate);
        u64::try_from(rate).ok().filter(|_| plausible)
    }
}

impl Scale {
    fn line(&self, raw: u64) -> &Line {
        if raw < self.settled.raw { &self.slewed } else { &self.settled }
    }

    /// Starts at position `ours` and gets to where it would be, had it started at `target`: in a second, or
    /// as long as the greatest slew takes.
    fn slewing(raw: u64, ours: u128, target: u128, rate: u64) -> Self {
        let error = ours.abs_diff(target);
        let span = SECOND.max(error * SLEW);
        let change = u64::try_from(u128::from(rate) * error / span).unwrap_or(0);
        let slewed = Line::new(raw, ours, if ours < target { rate + change } else { rate - change });
        let counted = error.checked_div(u128::from(change)).unwrap_or(0);
        let end = raw.saturating_add(u64::try_from(counted).unwrap_or(u64::MAX));
        Self { slewed, settled: Line::new(end, slewed.position(end), rate) }
    }
}

impl Line {
    fn new(raw: u64, position: u128, rate: u64) -> Self {
        let ticks = whole_ticks(position);
        let fraction = u64::try_from(position % TICK).unwrap_or(0);
        Self { raw, ticks, fraction, rate }
    }

    #[inline]
    pub(crate) fn at(&self, raw: u64) -> u64 {
        let counted =
            u128::from(raw.saturating_sub(self.raw)) * u128::from(self.rate) + u128::from(self.fraction);
        self.ticks.saturating_add(whole_ticks(counted))
    }

    fn position(&self, raw: u64) -> u128 {
        let counted = u128::from(raw.saturating_sub(self.raw)) * u128::from(self.rate);
        u128::from(self.ticks) * TICK + u128::from(self.fraction) + counted
    }
}

#[inline]
fn whole_ticks(position: u128) -> u64 {
    u64::try_from(position >> FRACTION_BITS).unwrap_or(u64::MAX)
}

fn system_position(from: Reading, to: Reading) -> u128 {
    u128::from(to.system_ns.saturating_sub(from.system_ns)) * TICK / 1_000
}
