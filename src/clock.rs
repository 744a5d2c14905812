//! Time in whole microseconds, from the machine or from a test, and the one way in which threads of this crate wait.
//!
//! Nothing outside this module reads a clock of the system; decisions take the time as an argument.

mod parker;
#[cfg(not(shuttle))]
mod system;
#[cfg(shuttle)]
#[path = "clock/stepped.rs"]
mod system;
#[cfg(any(test, feature = "testing"))]
mod virtual_time;

#[cfg(any(test, feature = "testing"))]
use std::sync::Arc;
use std::time::Duration;

pub(crate) use parker::Parker;
#[cfg(all(test, shuttle))]
pub(crate) use system::begin;
#[cfg(shuttle)]
pub(crate) use system::jump_to;
#[cfg(any(test, feature = "testing"))]
pub(crate) use virtual_time::VirtualTime;

/// A point in time: whole microseconds on a monotonic clock, counted from when the process, or the test, began.
pub(crate) type Tick = u64;

/// The longest wait, pause or interval that enters a sum: ten years. Longer ones mean the same.
pub(crate) const LONGEST: Tick = 10 * 365 * 24 * 3600 * 1_000_000;

/// Where the time comes from.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The machine's monotonic clock.
    System,
    /// A clock that a test turns.
    #[cfg(any(test, feature = "testing"))]
    Virtual(Arc<VirtualTime>),
}

impl Clock {
    /// The time now. Never less than an earlier answer to the same thread.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        match self {
            Clock::System => system::now(),
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(time) => time.now(),
        }
    }

    /// The time now at the least price, for who does not mind if it goes back where the machine's counter does.
    #[inline]
    pub(crate) fn reading(&self) -> Tick {
        match self {
            Clock::System => system::reading(),
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(time) => time.now(),
        }
    }

    /// What this clock shows now in microseconds of the Unix epoch: read once, then carried on by the monotonic clock.
    pub(crate) fn wall(&self) -> u64 {
        match self {
            Clock::System => system::wall(),
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(time) => time.now(),
        }
    }

    /// Lets a slow path correct the rate of the cheap clock.
    pub(crate) fn refine(&self) {
        match self {
            Clock::System => system::refine(),
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(_) => {}
        }
    }

    /// Starts a thread that this clock knows of: on a virtual clock it takes part in the order of events.
    pub(crate) fn spawn(
        &self,
        name: &str,
        stack_size: Option<usize>,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        match self {
            Clock::System => crate::sync::spawn(name, stack_size, body),
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(time) => {
                let begin = time.enlist(name);
                crate::sync::spawn(name, stack_size, move || begin.run(body))
            }
        }
    }

    /// Called when the last of those who could turn a virtual clock is gone.
    pub(crate) fn retire(&self) {
        match self {
            Clock::System => {}
            #[cfg(any(test, feature = "testing"))]
            Clock::Virtual(time) => time.retire(),
        }
    }

    /// Whether both show the same time.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn same(&self, other: &Clock) -> bool {
        match (self, other) {
            (Clock::System, Clock::System) => true,
            (Clock::Virtual(this), Clock::Virtual(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }
}

/// Whole microseconds of a duration, rounded up and cut at ten years.
pub(crate) fn ticks_up(length: Duration) -> Tick {
    let seconds = length.as_secs().min(LONGEST / 1_000_000);
    (seconds * 1_000_000 + u64::from(length.subsec_nanos().div_ceil(1_000))).min(LONGEST)
}

/// The duration of that many microseconds.
pub(crate) const fn duration(ticks: Tick) -> Duration {
    Duration::from_micros(ticks)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
