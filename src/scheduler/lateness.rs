//! How early to wake, so that a timer is served when it is due and not when the system gets round to it.
//!
//! A sleeping thread wakes late, by 100 us or so. With burst 1 the next start counts from this one, so at 1,000 a second the
//! lateness alone would cost a tenth of the rate. The scheduler therefore wakes early by what recent wakes were late, and
//! spins for the rest. How long it may spin is bounded for each timer, and over time to a small share of one core.

use crate::clock::Tick;

/// How many wakes the estimate looks back on.
const WAKES: usize = 32;
/// The longest spin for one timer. A machine that is busier than that is late whatever we do.
const SPIN_MAX: Tick = 400;
/// The share of a core that may be spent spinning: one part in so many.
const SHARE: Tick = 25;
/// The most that can be saved up for spinning.
const BANK_MAX: Tick = 2_000;

/// The latenesses of the last wakes and the time that may be spun away.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    recent: [Tick; WAKES],
    next: usize,
    /// In parts of `SHARE` ticks, so that a tick's share is a whole number.
    bank: Tick,
    filled_at: Tick,
}

impl Lateness {
    /// How long before a timer to wake: the second largest of the recent latenesses, for the largest is often an accident.
    pub(super) fn early(&mut self, now: Tick) -> Tick {
        let gained = now.saturating_sub(self.filled_at);
        self.filled_at = now;
        self.bank = self.bank.saturating_add(gained).min(BANK_MAX * SHARE);
        let (mut largest, mut second) = (0, 0);
        for &lateness in &self.recent {
            if lateness > largest {
                (largest, second) = (lateness, largest);
            } else {
                second = second.max(lateness);
            }
        }
        second.min(SPIN_MAX).min(self.bank / SHARE)
    }

    /// A sleep that should have ended at `due` ended at `now`.
    pub(super) fn woke(&mut self, due: Tick, now: Tick) {
        self.recent[self.next] = now.saturating_sub(due);
        self.next = (self.next + 1) % WAKES;
    }

    /// So long was spun.
    pub(super) fn spun(&mut self, length: Tick) {
        self.bank = self.bank.saturating_sub(length.saturating_mul(SHARE));
    }
}

#[cfg(test)]
mod tests;
