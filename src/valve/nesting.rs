//! Calls inside jobs of the same valve: which slots their own threads hold, and when waiting for another could never end.
//!
//! A slot taken by `run` belongs to its thread until the closure returns. If every slot is held by a `run` whose thread
//! waits for a slot of the same valve, without a deadline and without a token, no slot can ever come free.

use super::core::{After, Core, Grant, State};
use crate::error::Error;
use crate::planted::fault;
use crate::store::Token;
use std::cell::{Cell, RefCell};

thread_local! {
    /// The valve of the innermost `run` on this thread's stack, 0 without one. Alone, because that is all there is to most:
    /// writing a list would cost them several times as much.
    static VALVE: Cell<usize> = const { Cell::new(0) };
    /// That run's lease, if its slot is one of the fleet.
    static LEASE: Cell<Option<Token>> = const { Cell::new(None) };
    /// What both were outside of it and of those around it, as far as there was or is anything to tell.
    static OUTER: RefCell<Vec<(usize, Option<Token>)>> = const { RefCell::new(Vec::new()) };
}

/// A `run` on this thread's stack.
pub(super) struct Inside {
    /// Inside no other and without a lease.
    plain: bool,
}

impl Inside {
    #[inline]
    pub(super) fn enter(core: &Core, grant: &Grant) -> Inside {
        let outer = VALVE.replace(address(core));
        let plain = outer == 0 && grant.lease.is_none();
        if !plain {
            push(outer, grant);
        }
        Inside { plain }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        VALVE.set(if self.plain { 0 } else { pop() });
    }
}

#[cold]
fn push(outer: usize, grant: &Grant) {
    let outer = (outer, LEASE.replace(grant.lease.as_ref().map(|lease| lease.token)));
    // A thread that is ending has no list any more: its calls are not seen to be nested, which is never a false alarm.
    let _ = OUTER.try_with(|list| list.borrow_mut().push(outer));
}

#[cold]
fn pop() -> usize {
    let outer = OUTER.try_with(|list| list.borrow_mut().pop());
    let (valve, lease) = outer.ok().flatten().unwrap_or_default();
    LEASE.set(lease);
    valve
}

/// How many slots of this valve are held by `run`s on the calling thread's stack, and the leases among them.
pub(super) fn held(core: &Core) -> (u64, Vec<Token>) {
    // The model checker's threads share one of the system's, and with it its thread-locals.
    if cfg!(shuttle) {
        return (0, Vec::new());
    }
    let mut runs = OUTER.try_with(|list| list.borrow().clone()).unwrap_or_default();
    runs.push((VALVE.get(), LEASE.get()));
    runs.retain(|(valve, _)| *valve == address(core));
    (runs.len() as u64, runs.iter().filter_map(|(_, lease)| *lease).collect())
}

fn address(core: &Core) -> usize {
    std::ptr::from_ref(core).addr()
}

impl Core {
    /// Whether no slot can ever come free, because all are held by jobs that wait for one.
    fn is_circle(&self, state: &State) -> bool {
        let stuck = state.queue.stuck();
        if stuck == 0 || fault("O77") {
            return false;
        }
        let running = self.busy(state) - state.reserved;
        let local = running >= state.limits.local && stuck >= running && state.reserved == 0;
        let held = state.leases.len() as u64;
        let all_ours =
            state.limits.global.is_some_and(|global| held >= u64::from(global.limit) && stuck >= held);
        // A slot counts if its job has not lost it since, and had one of the fleet at all.
        let holds = |token: &&Token| state.leases.holds(**token);
        local || (all_ours && state.queue.stuck_leases().filter(holds).count() as u64 >= held)
    }

    /// Ends waits, the latest first, until a slot can come free again.
    pub(super) fn break_circle(&self, state: &mut State, after: &mut After) {
        while self.is_circle(state) {
            let Some(place) = state.queue.last_stuck() else { return };
            let Some(waiter) = state.queue.remove(place) else { return };
            self.fail(waiter, Error::WouldDeadlock, after);
        }
    }
}
