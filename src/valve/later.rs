//! A permit that no thread waits for: whoever grants it calls back.

use super::Valve;
use super::call::Call;
use super::core::{After, Core, Direct, Grant, Phase, SLOW};
use super::permit::OwnedPermit;
use crate::error::Error;
use crate::os;
use crate::scheduler::{Outcome, Ticket};
use crate::sync::Ordering;
use std::sync::Arc;

impl Valve {
    /// Asks for a permit of cost 1. `then` gets it, or the refusal, exactly once and without a lock: on this thread before the
    /// call returns, or later on whichever thread decides it, the scheduler's too, so it must be quick. Never blocks: a store
    /// that can is asked by its workers.
    pub(crate) fn request(&self, then: impl FnOnce(Result<OwnedPermit, Error>) + Send + 'static) {
        let core = Arc::clone(&self.core);
        let valve = Arc::clone(&self.core);
        let then = move |grant: Result<Grant, Error>| {
            then(grant.map(|grant| OwnedPermit::new(valve, grant)));
        };
        core.request(then);
    }
}

impl OwnedPermit {
    /// Runs `work` as [`Valve::run`] would, so that calls of the same valve inside it are seen to be nested.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _inside = self.enter();
        work()
    }
}

impl Core {
    fn request(&self, then: impl FnOnce(Result<Grant, Error>) + Send + 'static) {
        if os::forked() {
            return then(Err(Error::Forked));
        }
        if let Direct::Granted(grant) = self.quick(1) {
            return then(Ok(grant));
        }
        let now = self.clock.now();
        let mut state = self.state.lock();
        let refusal = match state.limits.rules.check_cost(1) {
            Err(error) => Some(error),
            Ok(()) if state.phase != Phase::Open => Some(Error::Closed),
            Ok(()) => {
                self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
                self.refused_at_once(&mut state, &Call::PLAIN, None, now)
            }
        };
        if let Some(error) = refusal {
            self.drive(state);
            return then(Err(error));
        }
        let ticket = Arc::new(Ticket::calling(|outcome| match outcome {
            Outcome::Granted(grant) => then(Ok(grant)),
            Outcome::Failed(error) => then(Err(error)),
        }));
        let sequence = state.queue.number();
        self.join(&mut state, &Call::PLAIN, sequence, &ticket, None, (0, Vec::new()), now);
        let mut after = After::default();
        self.break_circle(&mut state, &mut after);
        self.drive(state);
        after.act(self);
    }
}
