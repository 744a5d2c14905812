//! A valve's figures at one instant.

use crate::error::{Blocked, StoreError};
use std::time::Duration;

/// What [`Valve::stats`](crate::Valve::stats) saw: taken at one instant, under one lock.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that wait.
    pub queued: usize,
    /// Jobs that run.
    pub running: u64,
    /// Retries that wait for their back-off to pass. They hold no slot, and [`drain`](crate::Valve::drain) waits for them.
    pub backing_off: usize,
    /// Jobs started since the valve was built, each attempt of a retried one: `running + finished`. A call that is being
    /// decided on another thread at this instant counts as running.
    pub started: u64,
    /// Jobs that ended since the valve was built. Never goes back.
    pub finished: u64,
    /// Calls that ended because their `max_wait` passed or would: with [`Error::Timeout`](crate::Error::Timeout), or, once they
    /// had been tried, with the error of their last attempt.
    pub timed_out: u64,
    /// Calls that ended with [`Error::Cancelled`](crate::Error::Cancelled).
    pub cancelled: u64,
    /// Calls that ended with [`Error::WouldWait`](crate::Error::WouldWait).
    pub refused: u64,
    /// What is left of the pause that is known here.
    pub paused_for: Option<Duration>,
    /// What holds up the head of the queue; `None` if nobody waits, or the store is being asked.
    pub blocked_by: Option<Blocked>,
    /// Why the store cannot be asked, if it cannot.
    pub store_down: Option<StoreError>,
}
