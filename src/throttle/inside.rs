//! Which keys the calling thread runs right now: a wait for one of them could never end.

use std::cell::RefCell;
use std::sync::Arc;

#[cfg(shuttle)]
use shuttle::thread_local;

thread_local! {
    /// The throttle and the key of each run on this thread's stack.
    static RUNS: RefCell<Vec<(usize, Arc<str>)>> = const { RefCell::new(Vec::new()) };
}

/// A run on this thread's stack.
pub(super) struct Inside;

impl Inside {
    /// `throttle` is its address, which is its own as long as it runs.
    pub(super) fn enter(throttle: usize, key: &Arc<str>) -> Inside {
        // A thread that is ending has no list any more: its waits are not seen to be nested, which is never a false alarm.
        let _ = RUNS.try_with(|runs| runs.borrow_mut().push((throttle, Arc::clone(key))));
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = RUNS.try_with(|runs| runs.borrow_mut().pop());
    }
}

/// Whether this thread runs that key.
pub(super) fn runs_key(throttle: usize, key: &str) -> bool {
    count(|(its, run)| *its == throttle && **run == *key) > 0
}

/// How many runs of this throttle are on this thread's stack.
pub(super) fn runs(throttle: usize) -> usize {
    count(|(its, _)| *its == throttle)
}

fn count(meant: impl Fn(&(usize, Arc<str>)) -> bool) -> usize {
    RUNS.try_with(|runs| runs.borrow().iter().filter(|run| meant(run)).count()).unwrap_or(0)
}
