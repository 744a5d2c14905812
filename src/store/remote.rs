//! How a store that may block is called: its worker threads, its time limit, and the breaker that spares it while it is down.

mod writes;

use super::workers::{Errand, Runner, Work, Workers};
use crate::clock::{Clock, Tick, ticks_up};
use crate::error::{Error, Executed, StoreError};
use crate::os;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use writes::Writes;

pub(crate) use writes::{Unmade, Write};

/// The settings and the state that all ids of one remote store share. Clones are the same one.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::Remote;
///
/// let remote = Remote::new(2, Duration::from_millis(200))?;
/// assert!(Remote::new(0, Duration::from_millis(200)).is_err());
/// # drop(remote);
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Clone)]
pub struct Remote {
    handle: Arc<Handle>,
}

struct Handle {
    timeout: Duration,
    /// The greatest fencing token that any valve of this client has seen.
    floor: AtomicU64,
    state: Mutex<State>,
    asks: Arc<Workers>,
    leases: Arc<Workers>,
}

/// How many threads renew and release: two, so that one slow call does not hold up every lease of the client.
const LEASE_WORKERS: usize = 2;

#[derive(Default)]
struct State {
    members: Vec<Weak<dyn Errand>>,
    breaker: Breaker,
    writes: Writes,
}

/// Whether an admission may be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Send it, and report how it went.
    Go,
    /// The store is down: not before this tick.
    Down(Tick),
}

/// The breaker's whole state: pure, told the time.
#[derive(Debug, Default)]
struct Breaker {
    /// The last call's outcome is unknown; one more failure and the store is down.
    suspect: bool,
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    failures: u32,
    next_try: Tick,
    trying: bool,
    error: StoreError,
}

/// The pauses between tries, in milliseconds; the last repeats.
const BACK_OFF_MS: [u64; 4] = [50, 100, 200, 400];

impl Breaker {
    fn gate(&mut self, now: Tick, timeout: Tick) -> Gate {
        match &mut self.down {
            None => Gate::Go,
            Some(down) if !down.trying && now >= down.next_try => {
                down.trying = true;
                // A try that never reports is given up after twice the time it may take.
                down.next_try = now + 2 * timeout;
                Gate::Go
            }
            Some(down) if down.trying && now >= down.next_try => {
                down.next_try = now + 2 * timeout;
                Gate::Go
            }
            Some(down) => Gate::Down(down.next_try),
        }
    }

    /// Whether the store was down until now.
    fn good(&mut self) -> bool {
        self.suspect = false;
        self.down.take().is_some()
    }

    /// Whether the store is down from now on and was not before. `spread` is a random byte for the 20 % around the pause.
    fn bad(&mut self, error: &StoreError, now: Tick, spread: u8) -> bool {
        let failures = match &self.down {
            // It was on its way when the store went down, and says nothing new.
            Some(down) if !down.trying => return false,
            Some(down) => down.failures + 1,
            None if error.executed() == Executed::No || self.suspect => 0,
            None => {
                self.suspect = true;
                return false;
            }
        };
        let pause = BACK_OFF_MS[(failures as usize).min(BACK_OFF_MS.len() - 1)] * 1_000;
        let pause = pause * 4 / 5 + pause * 2 / 5 * u64::from(spread) / 255;
        let before =
            self.down.replace(Down { failures, next_try: now + pause, trying: false, error: error.clone() });
        before.is_none()
    }
}

impl Remote {
    /// At most `workers` threads that ask for waiting jobs, started on demand, and `timeout` for each call, over all its
    /// commands and retries. Two more threads renew and release leases, from the first lease on; a renewal has no more time
    /// than a third of its lease's length.
    ///
    /// The [`Default`] is 4 workers, enough to hide a slow connection behind others, and 500 ms, far above a healthy
    /// round trip and short enough for a caller to bear.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no workers, more than 64, or a timeout outside 1 ms ..= 1 h.
    pub fn new(workers: usize, timeout: Duration) -> Result<Remote, Error> {
        if !(1..=64).contains(&workers) {
            return Err(Error::invalid("workers", format!("{workers} is not in 1..=64")));
        }
        if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(3600) {
            return Err(Error::invalid("timeout", format!("{timeout:?} is not in 1 ms ..= 1 h")));
        }
        Ok(Remote::with(workers, timeout))
    }

    fn with(workers: usize, timeout: Duration) -> Remote {
        let asks = Workers::new("valve-store", workers);
        let leases = Workers::new("valve-lease", LEASE_WORKERS);
        Remote {
            handle: Arc::new(Handle {
                timeout,
                floor: AtomicU64::new(0),
                state: Mutex::new(State::default()),
                asks,
                leases,
            }),
        }
    }

    /// How long one call may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.handle.timeout
    }

    /// Counts `member` among those who are told when the store turns.
    pub(crate) fn join(&self, member: Weak<dyn Errand>) {
        let mut state = self.handle.state.lock();
        state.members.retain(|other| other.strong_count() > 0);
        state.members.push(member);
    }

    /// Has an admission worker run the errand soon; `Err` if no thread could be had at all.
    pub(crate) fn submit(&self, clock: &Clock, errand: Weak<dyn Errand>) -> Result<(), Error> {
        self.handle.asks.submit(clock, Runner::Weak(errand), Work::Ask)
    }

    /// Has a lease thread run the errand soon: never behind admissions.
    pub(crate) fn submit_leases(&self, clock: &Clock, errand: Runner) -> Result<(), Error> {
        self.handle.leases.submit(clock, errand, Work::Leases)
    }

    /// Whether an admission may be sent; who is let through must report.
    pub(crate) fn gate(&self, now: Tick) -> Gate {
        self.handle.state.lock().breaker.gate(now, ticks_up(self.handle.timeout))
    }

    /// Reports how a call went. The members are told if the store turned, outside the lock.
    pub(crate) fn report(&self, result: Result<(), &StoreError>, now: Tick) {
        let mut state = self.handle.state.lock();
        let turned = match result {
            Ok(()) => state.breaker.good(),
            Err(error) => state.breaker.bad(error, now, spread(now)),
        };
        if !turned {
            return;
        }
        let members: Vec<_> = state.members.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for member in members {
            member.store_turned(result.err().cloned());
        }
    }

    /// Notes a fencing token; the greatest of all so far.
    pub(crate) fn floor(&self, seen: u64) -> u64 {
        self.handle.floor.fetch_max(seen, Ordering::Relaxed).max(seen)
    }

    /// Why the store counts as down, if it does.
    pub(crate) fn down(&self) -> Option<StoreError> {
        self.handle.state.lock().breaker.down.as_ref().map(|down| down.error.clone())
    }
}

/// Spreads the tries of many processes: a few bits of when the failure was noticed are random enough.
fn spread(now: Tick) -> u8 {
    let mixed = now.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed.to_be_bytes()[0]
}

impl Default for Remote {
    fn default() -> Remote {
        Remote::with(4, Duration::from_millis(500))
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Remote").field("timeout", &self.handle.timeout).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !os::forked() {
            self.asks.stop();
            self.leases.stop();
        }
    }
}

#[cfg(test)]
mod tests;
