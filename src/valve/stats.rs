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
    /// Jobs started since the valve was built: `running + finished`. A call that is being decided on another thread at this
    /// instant counts as running.
    pub started: u64,
    /// Jobs that ended since the valve was built. Never goes back.
    pub finished: u64,
    /// Calls that ended with [`Error::Timeout`](crate::Error::Timeout).
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
