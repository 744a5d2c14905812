//! The timer behind ends of jobs that nobody may have noticed.
//!
//! A job counted in the stripes writes its end and then reads whether anybody cares. A processor may do the two in the
//! other order: it keeps the write to itself for a while, and the read finds `SLOW` clear just before somebody sets it and
//! counts without the end. The write comes out by itself, in well under a microsecond, but nobody is told of it. So whoever
//! waits for such jobs counts again a little later, and then rarely, while all ends that come later are noticed at once.

use super::core::{Core, State};
use super::told::RECOUNT;
use crate::clock::Tick;
use crate::scheduler::TimerKey;

/// The first count after this, the next ones after twice the time of the last, up to a second.
const SOON: Tick = 10_000;
const RARELY: Tick = 1_000_000;

#[derive(Default)]
pub(super) struct Recount {
    pub(super) timer: Option<TimerKey>,
    /// How long the last one waited.
    waited: Tick,
}

impl Core {
    /// Sets the timer while a drain or a waiter for a slot depends on jobs that are counted in the stripes: whatever the sum is
    /// by now, for what was decided in this hold of the lock was decided by an earlier one. So was what `leftover` says.
    pub(super) fn plan_recount(&self, state: &mut State, leftover: bool) {
        let drains = !state.drains.is_empty() && self.fast.stripes.are_used();
        let waiters = leftover && !state.queue.is_empty();
        if !drains && !waiters {
            state.recount.waited = 0;
            if let Some(key) = state.recount.timer.take() {
                self.scheduler.cancel(key);
            }
        } else if state.recount.timer.is_none() {
            let wait = (state.recount.waited * 2).clamp(SOON, RARELY);
            state.recount.waited = wait;
            state.recount.timer = self.set_timer(state, self.clock.now() + wait, self.number, RECOUNT);
        }
    }

    pub(super) fn recount_due(&self) {
        let mut state = self.state.lock();
        state.recount.timer = None;
        self.drive(state);
    }
}
