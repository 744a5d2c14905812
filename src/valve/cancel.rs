//! The handle with which one thread ends another's wait.

use super::core::Core;
use crate::event::{Abort, Callback};
use crate::scheduler::{Place, Scheduler};
use crate::sync::{AtomicBool, Mutex, Ordering};
use std::sync::{Arc, Weak};

/// Cancels the calls it was given to, from any thread, once and for all. Clones are the same token.
///
/// A call that waits ends at once with [`Error::Cancelled`](crate::Error::Cancelled) and has cost nothing, unless its
/// admission was under way: then the cost stays spent. A call made afterwards ends the same way without waiting. A job that
/// already runs sees it in [`Running::is_aborted`](crate::Running::is_aborted); its value is still returned.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use valve::{CancelToken, Error, Valve};
///
/// let valve = Valve::builder("api").concurrency(1).build()?;
/// let token = CancelToken::new();
/// let held = valve.acquire()?;
/// thread::scope(|scope| {
///     let waiting = scope.spawn(|| valve.job().cancel(&token).run(|_| "ran"));
///     token.cancel();
///     assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
/// });
/// # drop(held);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    /// Which calls wait with this token. Locked alone, never while a valve is.
    waiting: Mutex<Vec<(Weak<Core>, Place)>>,
    /// Which running jobs want to hear of it, and through whose events thread. Locked alone too.
    running: Mutex<Vec<(Arc<Callback>, Scheduler)>>,
}

impl CancelToken {
    /// A token that is not cancelled yet.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels; doing so again changes nothing. Returns once every waiting call has been told, from any thread.
    pub fn cancel(&self) {
        if crate::os::forked() {
            return;
        }
        let waiting = {
            let mut waiting = self.shared.waiting.lock();
            self.shared.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        let mut rest = waiting;
        while let Some(first) = rest.first().map(|(core, _)| core.clone()) {
            let (mine, others) = rest.into_iter().partition(|(core, _)| core.ptr_eq(&first));
            rest = others;
            if let Some(core) = first.upgrade() {
                core.cancelled(mine);
            }
        }
        let running = std::mem::take(&mut *self.shared.running.lock());
        for (callback, scheduler) in running {
            scheduler.events().abort(callback, Abort::Cancelled);
        }
    }

    /// Has `callback` called when the token is cancelled; `false` if it is already.
    pub(super) fn on_cancel(&self, callback: &Arc<Callback>, scheduler: &Scheduler) -> bool {
        let mut running = self.shared.running.lock();
        // The flag is set before the list is taken: whoever sees it clear under this lock is on the list in time.
        if self.is_cancelled() {
            return false;
        }
        running.retain(|(other, _)| other.is_wanted());
        running.push((Arc::clone(callback), scheduler.clone()));
        true
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Lists a call that has just joined its queue, until the guard goes. If the token was cancelled in between, the call
    /// is ended here: the flag and the list share one lock, so one of the two sides sees the other.
    pub(super) fn list(&self, core: &Weak<Core>, place: Place) -> Listed<'_> {
        let mut waiting = self.shared.waiting.lock();
        if !self.is_cancelled() {
            waiting.push((core.clone(), place));
            return Listed { token: self, core: core.clone(), place };
        }
        drop(waiting);
        if let Some(upgraded) = core.upgrade() {
            upgraded.cancelled(vec![(core.clone(), place)]);
        }
        Listed { token: self, core: core.clone(), place }
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// A call that waits with a token.
pub(super) struct Listed<'a> {
    token: &'a CancelToken,
    core: Weak<Core>,
    place: Place,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut waiting = self.token.shared.waiting.lock();
        let mine = waiting.iter().position(|(core, place)| *place == self.place && core.ptr_eq(&self.core));
        if let Some(mine) = mine {
            waiting.swap_remove(mine);
        }
    }
}
