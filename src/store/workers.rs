//! Threads that make the calls that may block, started on demand.

use crate::clock::{Clock, Parker};
use crate::error::{Error, StoreError};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Work for a store worker.
pub(crate) trait Errand: Send + Sync {
    /// Makes the calls to the store that are due, if any are.
    fn run(self: Arc<Self>, work: Work);
    /// The store turned bad, or good again.
    fn store_turned(self: Arc<Self>, down: Option<StoreError>);
}

/// Which calls an errand is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Admissions for those who wait.
    Ask,
    /// Renewals and releases.
    Leases,
}

/// Whose errand it is: a valve's, which may be gone by then, or one that must be run whoever is gone.
pub(crate) enum Runner {
    Weak(Weak<dyn Errand>),
    Owned(Arc<dyn Errand>),
}

/// Up to so many threads of one name that run errands in the order in which they came.
pub(super) struct Workers {
    name: &'static str,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    due: VecDeque<(Runner, Work)>,
    idle: Vec<Arc<Parker>>,
    started: usize,
    stopping: bool,
}

impl Workers {
    pub(super) fn new(name: &'static str, most: usize) -> Arc<Workers> {
        Arc::new(Workers { name, most, state: Mutex::new(State::default()) })
    }

    /// Has a worker run the errand soon; `Err` if no thread could be had at all.
    pub(super) fn submit(self: &Arc<Self>, clock: &Clock, errand: Runner, work: Work) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.due.push_back((errand, work));
        if let Some(idle) = state.idle.pop() {
            drop(state);
            idle.unpark();
            return Ok(());
        }
        if state.started == self.most {
            return Ok(());
        }
        let number = state.started;
        state.started += 1;
        drop(state);
        let (workers, its_clock) = (Arc::clone(self), clock.clone());
        let spawned =
            clock.spawn(&format!("{}-{number}", self.name), None, move || workers.serve(&its_clock));
        spawned.or_else(|error| {
            let mut state = self.state.lock();
            state.started -= 1;
            if state.started > 0 {
                return Ok(());
            }
            let unserved = std::mem::take(&mut state.due);
            drop(state);
            drop(unserved);
            Err(Error::Spawn(Arc::new(error)))
        })
    }

    /// Lets the threads end once nothing is due.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        for parker in idle {
            parker.unpark();
        }
    }

    fn serve(&self, clock: &Clock) {
        let parker = Arc::new(Parker::new(clock));
        loop {
            let mut state = self.state.lock();
            if let Some((errand, work)) = state.due.pop_front() {
                drop(state);
                let errand = match errand {
                    Runner::Weak(errand) => errand.upgrade(),
                    Runner::Owned(errand) => Some(errand),
                };
                if let Some(errand) = errand {
                    errand.run(work);
                }
                continue;
            }
            if state.stopping {
                return;
            }
            state.idle.push(Arc::clone(&parker));
            drop(state);
            parker.park();
        }
    }
}
