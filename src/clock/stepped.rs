//! The system's clock as the model checker sees it: it stands still, and jumps when the scheduler would sleep.
//!
//! It never goes beyond its horizon: a timer beyond that does not come, so that time cannot heal a lost wake-up.

use super::Tick;
use std::sync::atomic::{AtomicU64, Ordering};

static NOW: AtomicU64 = AtomicU64::new(1);
static HORIZON: AtomicU64 = AtomicU64::new(0);

/// Starts again, for another execution.
#[cfg(test)]
pub(crate) fn begin(horizon: Tick) {
    NOW.store(1, Ordering::SeqCst);
    HORIZON.store(horizon, Ordering::SeqCst);
}

pub(crate) fn reading() -> Tick {
    now()
}

pub(crate) fn now() -> Tick {
    NOW.load(Ordering::SeqCst)
}

/// Moves time to `tick`, never back; `false` if that is beyond the horizon.
pub(crate) fn jump_to(tick: Tick) -> bool {
    let comes = tick <= HORIZON.load(Ordering::SeqCst);
    if comes {
        NOW.fetch_max(tick, Ordering::SeqCst);
    }
    comes
}

pub(crate) fn wall() -> u64 {
    now()
}

pub(crate) fn refine() {}
