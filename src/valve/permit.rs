//! What a started job holds: its place among the running, given back on drop.

use super::core::{Core, Grant};
use super::nesting::Inside;
use crate::error::Error;
use crate::os;
use crate::planted::fault;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Leave to run one job, borrowed from its valve; dropping it gives the slot back, from any thread.
///
/// The cost is spent and does not come back. Forgetting a permit (`mem::forget`) keeps its slot as long as its valve lives; a
/// fleet-wide slot then ends with its lease.
///
/// # Examples
///
/// ```
/// use valve::{Error, Valve};
///
/// let valve = Valve::builder("api").concurrency(1).build()?;
/// let permit = valve.acquire()?;
/// assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. })));
/// permit.finish()?; // or just drop it
/// assert!(valve.try_acquire().is_ok());
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the job may run only while the permit is held"]
pub struct Permit<'a> {
    held: Held<&'a Core>,
}

/// A [`Permit`] that keeps its valve alive instead of borrowing it.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use valve::Valve;
///
/// let valve = Valve::builder("api").concurrency(1).build()?;
/// let permit = valve.acquire_owned()?;
/// thread::spawn(move || drop(permit)).join().unwrap();
/// assert!(valve.try_acquire().is_ok());
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the job may run only while the permit is held"]
pub struct OwnedPermit {
    held: Held<Arc<Core>>,
}

/// A slot and how to give it back.
struct Held<C: AsRef<Core>> {
    core: C,
    grant: Grant,
}

impl<C: AsRef<Core>> std::fmt::Debug for Held<C> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} at {} us", self.core.as_ref().id, self.grant.at)
    }
}

impl AsRef<Core> for Core {
    fn as_ref(&self) -> &Core {
        self
    }
}

impl<C: AsRef<Core>> Drop for Held<C> {
    #[inline]
    fn drop(&mut self) {
        if os::forked() || (fault("V53") && std::thread::panicking()) {
            return;
        }
        self.core.as_ref().end_job(&self.grant);
    }
}

impl Core {
    /// Gives back what a job got.
    #[inline]
    pub(super) fn end_job(&self, grant: &Grant) {
        // First the lease, so that an ask made for the freed slot takes its release along.
        if let Some(lease) = &grant.lease {
            self.end_lease(lease);
        }
        self.release(grant.striped);
    }
}

macro_rules! permit_methods {
    () => {
        /// When the store admitted the job, by the store's clock. This instant is what every bound counts by.
        #[must_use]
        pub fn admitted_at(&self) -> SystemTime {
            admitted_at(&self.held.grant)
        }

        /// Whether the job lost its fleet-wide slot and should stop, as of this instant: the end of its lease is compared with
        /// the clock itself, so the answer is right at once in a process that was frozen. Once true, it stays so. Without a
        /// fleet-wide limit it never is.
        #[inline]
        #[must_use]
        pub fn is_aborted(&self) -> bool {
            self.held.core.is_lost(&self.held.grant)
        }

        /// A number greater than that of every job admitted before it under the same id, as long as the store keeps its state.
        /// Whatever the job changes can refuse one that is smaller than the greatest it has seen, and with it a job that
        /// lost its slot. `None` without a fleet-wide limit.
        #[must_use]
        pub fn fencing_token(&self) -> Option<NonZeroU64> {
            self.held.grant.lease.as_ref().and_then(|lease| lease.fence)
        }

        /// Gives the slot back and says whether it was held to the end, by our own clock and what the store has said so far.
        /// Does not wait for the store.
        ///
        /// # Errors
        ///
        /// [`Error::LeaseLost`] if it was not; without a fleet-wide limit that cannot be. [`Error::Forked`] in a forked
        /// child, where nothing is given back.
        #[inline]
        pub fn finish(self) -> Result<(), Error> {
            self.outcome()
        }

        /// What [`finish`](Self::finish) says, for those who drop the permit where it is: moving it there costs them more
        /// than asking.
        #[inline]
        pub(super) fn outcome(&self) -> Result<(), Error> {
            if os::forked() {
                return Err(Error::Forked);
            }
            if self.is_aborted() && !fault("V56") { Err(Error::LeaseLost) } else { Ok(()) }
        }
    };
}

impl<'a> Permit<'a> {
    #[inline]
    pub(super) fn new(core: &'a Core, grant: Grant) -> Permit<'a> {
        Permit { held: Held { core, grant } }
    }

    #[inline]
    pub(super) fn grant(&self) -> &Grant {
        &self.held.grant
    }

    permit_methods!();
}

impl OwnedPermit {
    pub(super) fn new(core: Arc<Core>, grant: Grant) -> OwnedPermit {
        OwnedPermit { held: Held { core, grant } }
    }

    /// Marks the calling thread as one whose job holds this slot.
    pub(super) fn enter(&self) -> Inside {
        Inside::enter(&self.held.core, &self.held.grant)
    }

    permit_methods!();
}

pub(super) fn admitted_at(grant: &Grant) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(grant.at)
}
