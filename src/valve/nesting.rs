//! Calls inside jobs of the same valve: which slots their own threads hold, and when waiting for another could never end.
//!
//! A slot taken by `run` belongs to its thread until the closure returns. If every slot is held by a `run` whose thread
//! waits for a slot of the same valve, without a deadline and without a token, no slot can ever come free.

use super::core::{After, Core, State};
use crate::error::Error;
use crate::planted::fault;
use std::cell::RefCell;

thread_local! {
    /// The valves whose slots the `run`s on this thread's stack hold, the innermost last.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A `run` on this thread's stack.
pub(super) struct Inside(());

impl Inside {
    #[inline]
    pub(super) fn enter(core: &Core) -> Inside {
        // A thread that is ending has no list any more: its calls are not seen to be nested, which is never a false alarm.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push(address(core)));
        Inside(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}

/// How many slots of this valve are held by `run`s on the calling thread's stack.
pub(super) fn depth(core: &Core) -> u64 {
    let of_core = |inside: &RefCell<Vec<usize>>| {
        let count = inside.borrow().iter().filter(|&&other| other == address(core)).count();
        u64::try_from(count).unwrap_or(u64::MAX)
    };
    INSIDE.try_with(of_core).unwrap_or(0)
}

fn address(core: &Core) -> usize {
    std::ptr::from_ref(core).addr()
}

impl Core {
    /// Whether no slot can ever come free, because all are held by jobs that wait for one. `more` such slots come with a
    /// call that is about to wait.
    pub(super) fn is_circle(&self, state: &State, more: u64) -> bool {
        let stuck = state.queue.stuck() + more;
        if stuck == 0 || fault("nested-calls-unseen") {
            return false;
        }
        let running = self.busy() - state.reserved;
        let local = running >= state.limits.local && stuck >= running && state.reserved == 0;
        let held = state.leases.len() as u64;
        let global = state.limits.global.is_some_and(|global| held >= u64::from(global.limit) && stuck >= held);
        local || global
    }

    /// Ends waits, the latest first, until a slot can come free again.
    pub(super) fn break_circle(&self, state: &mut State, after: &mut After) {
        while self.is_circle(state, 0) {
            let Some(place) = state.queue.last_stuck() else { return };
            let Some(waiter) = state.queue.remove(place) else { return };
            self.fail(waiter, Error::WouldDeadlock, after);
        }
    }
}
