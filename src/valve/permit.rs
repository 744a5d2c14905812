//! What a started job holds: its place among the running, given back on drop.

use super::core::{Core, Grant};
use crate::error::Error;
use crate::os;
use crate::planted::fault;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Leave to run one job, borrowed from its valve; dropping it gives the slot back, from any thread.
///
/// The cost is spent and does not come back. Forgetting a permit (`mem::forget`) keeps its slot for ever.
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
        let core = self.core.as_ref();
        // First the lease, so that an ask made for the freed slot takes its release along.
        if let Some(lease) = &self.grant.lease {
            core.end_lease(lease);
        }
        core.release();
    }
}

macro_rules! permit_methods {
    () => {
        /// When the store admitted the job, by the store's clock. This instant is what every bound counts by.
        #[must_use]
        pub fn admitted_at(&self) -> SystemTime {
            admitted_at(&self.held.grant)
        }

        /// Whether the job lost its right to run, as of this instant. Without a fleet-wide limit it never does.
        #[must_use]
        pub fn is_aborted(&self) -> bool {
            self.held.core.is_lost(&self.held.grant)
        }

        /// A number greater than that of every job before it with the same id, to be checked by whatever the job changes.
        /// `None` without a fleet-wide limit.
        #[must_use]
        pub fn fencing_token(&self) -> Option<NonZeroU64> {
            self.held.grant.lease.as_ref().and_then(|lease| lease.fence)
        }

        /// Gives the slot back and says whether it was held to the end. Does not wait for the store.
        ///
        /// # Errors
        ///
        /// [`Error::LeaseLost`] if it was not; without a fleet-wide limit that cannot be.
        pub fn finish(self) -> Result<(), Error> {
            if os::forked() {
                return Err(Error::Forked);
            }
            if self.is_aborted() { Err(Error::LeaseLost) } else { Ok(()) }
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

    permit_methods!();
}

pub(super) fn admitted_at(grant: &Grant) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(grant.at)
}
