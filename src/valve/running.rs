//! What a running job sees: whether it should stop, and how to hear of it.

use super::cancel::CancelToken;
use super::core::{Core, Grant};
use super::permit::admitted_at;
use crate::event::{Abort, Callback};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::SystemTime;

/// What a running job sees of its permit: handed to the closure of [`Job::run`](crate::Job::run).
pub struct Running<'a> {
    core: &'a Core,
    grant: &'a Grant,
    token: Option<&'a CancelToken>,
}

impl<'a> Running<'a> {
    pub(super) fn new(core: &'a Core, grant: &'a Grant, token: Option<&'a CancelToken>) -> Running<'a> {
        Running { core, grant, token }
    }

    /// When the store admitted the job, by the store's clock.
    #[must_use]
    pub fn admitted_at(&self) -> SystemTime {
        admitted_at(self.grant)
    }

    /// Whether the job should stop, and why, as of this instant: the end of its lease is compared with the clock itself, so
    /// the answer is right at once in a process that was frozen. What was lost or cancelled stays so. Of two reasons the
    /// lost lease is given.
    #[must_use]
    pub fn aborted(&self) -> Option<Abort> {
        if self.core.is_lost(self.grant) {
            return Some(Abort::LeaseLost);
        }
        self.token.is_some_and(CancelToken::is_cancelled).then_some(Abort::Cancelled)
    }

    /// Whether the job should stop. To be asked between the steps of a job; nothing else stops it.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.aborted().is_some()
    }

    /// A number greater than that of every job admitted before it under the same id, as long as the store keeps its state.
    /// Whatever the job changes can refuse one that is smaller than the greatest it has seen, and with it a job that lost its
    /// slot. `None` without a fleet-wide limit.
    #[must_use]
    pub fn fencing_token(&self) -> Option<NonZeroU64> {
        self.grant.lease.as_ref().and_then(|lease| lease.fence)
    }

    /// Has `call` called once when the job should stop, on the events thread, soon after it is noticed; at once if it
    /// should stop already. It may block, but others' calls and events wait for it. Dropping the guard takes the wish back; a
    /// call that has begun goes on. A panic in it is logged.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use valve::{Abort, CancelToken, Valve};
    ///
    /// let valve = Valve::builder("api").build()?;
    /// let token = CancelToken::new();
    /// let why = valve.job().cancel(&token).run(|running| {
    ///     let (sender, receiver) = mpsc::channel();
    ///     let _guard = running.on_abort(move |why| sender.send(why).unwrap());
    ///     token.cancel();
    ///     receiver.recv().unwrap()
    /// })?;
    /// assert_eq!(why, Abort::Cancelled);
    /// # Ok::<(), valve::Error>(())
    /// ```
    #[must_use = "the wish is taken back when the guard is dropped"]
    pub fn on_abort(&self, call: impl FnOnce(Abort) + Send + 'static) -> OnAbort {
        let callback = Callback::new(call);
        let events = self.core.scheduler.clone();
        if self.grant.lease.as_ref().is_some_and(|lease| !lease.on_loss(&callback)) {
            events.events().abort(Arc::clone(&callback), Abort::LeaseLost);
        }
        if self.token.is_some_and(|token| !token.on_cancel(&callback, &events)) {
            events.events().abort(Arc::clone(&callback), Abort::Cancelled);
        }
        OnAbort { callback }
    }
}

impl std::fmt::Debug for Running<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Running").field("aborted", &self.aborted()).finish_non_exhaustive()
    }
}

/// A wish to be called when a job should stop. Dropping it takes the wish back.
pub struct OnAbort {
    callback: Arc<Callback>,
}

impl Drop for OnAbort {
    fn drop(&mut self) {
        self.callback.forget();
    }
}

impl std::fmt::Debug for OnAbort {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("OnAbort").finish_non_exhaustive()
    }
}
