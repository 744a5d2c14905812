//! The store's side of the protocol: what `MemoryStore` does, in ticks of the model.
//!
//! `compared.rs` puts this and the real store through the same calls.

use super::rules::{Broken, NAMES, TTL};

pub(crate) const PROCESSES: usize = 3;

/// The leases of one id, by process and name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Store {
    /// Ticks left of each lease; 0 if there is none.
    left: [[u8; NAMES]; PROCESSES],
    /// The last fencing token.
    pub(crate) fence: u64,
}

/// A lease that has ended and is in the way all the same.
const IN_THE_WAY: u8 = TTL + 1;

impl Store {
    /// What is left of a lease, for the state's own key.
    pub(crate) fn left(&self, process: usize, name: usize) -> u8 {
        self.left[process][name]
    }

    pub(crate) fn holds(&self, process: usize, name: usize) -> bool {
        let left = self.left[process][name];
        left != 0 && left != IN_THE_WAY
    }

    /// How many leases there are in truth.
    pub(crate) fn live(&self) -> usize {
        let mut count = 0;
        for left in self.left.as_flattened() {
            count += usize::from(*left != 0 && *left != IN_THE_WAY);
        }
        count
    }

    /// How many slots the store believes are held. `memory/slots.rs`, `Held::count`: what has ended is gone first.
    fn count(&self) -> usize {
        let mut count = 0;
        for left in self.left.as_flattened() {
            count += usize::from(*left != 0);
        }
        count
    }

    /// Grants a slot under this name if one is free; its fencing token. `memory.rs`, `State::decide`, and `Held::take`:
    /// the lease lasts its full length from now, and the token is greater than the last, the floor and the time.
    pub(crate) fn take(
        &mut self,
        process: usize,
        name: usize,
        slots: usize,
        floor: u64,
        now: u64,
        broken: Option<Broken>,
    ) -> Option<u64> {
        if self.count() >= slots {
            return None;
        }
        self.left[process][name] = TTL;
        let floor = if broken == Some(Broken::FloorIgnored) { 0 } else { floor };
        self.fence = self.fence.max(floor).max(now) + 1;
        Some(self.fence)
    }

    /// Makes a lease that still holds last its full length from now; whether it did. `Held::renew`.
    pub(crate) fn renew(&mut self, process: usize, name: usize, broken: Option<Broken>) -> bool {
        let renewed = self.holds(process, name) || broken == Some(Broken::RenewalRevives);
        if renewed {
            self.left[process][name] = TTL;
        }
        renewed
    }

    /// Ends the lease of this name, if there is one. `Held::end`.
    pub(crate) fn end(&mut self, process: usize, name: usize, broken: Option<Broken>) {
        if broken == Some(Broken::ReleaseBySlot) && self.left[process][name] == 0 {
            self.end_any();
        }
        self.left[process][name] = 0;
        self.forget_fence(broken);
    }

    /// A tick passes. A lease ends at its last instant, not after it.
    pub(crate) fn pass(&mut self, broken: Option<Broken>) {
        if broken == Some(Broken::LeaseWithoutEnd) {
            return;
        }
        let ended = if broken == Some(Broken::PurgeForgotten) { IN_THE_WAY } else { 0 };
        for left in self.left.as_flattened_mut() {
            if *left == 1 {
                *left = ended;
            } else if *left != 0 && *left != IN_THE_WAY {
                *left -= 1;
            }
        }
        self.forget_fence(broken);
    }

    /// The process uses a new name; what was its present one is the one before.
    pub(crate) fn rename(&mut self, process: usize) {
        self.left[process].swap(0, 1);
    }

    /// Puts the processes in another order.
    pub(crate) fn reorder(&mut self, order: [usize; PROCESSES]) {
        let before = self.left;
        for (place, &from) in order.iter().enumerate() {
            self.left[place] = before[from];
        }
    }

    fn end_any(&mut self) {
        if let Some(left) = self.left.as_flattened_mut().iter_mut().find(|left| **left != 0) {
            *left = 0;
        }
    }

    fn forget_fence(&mut self, broken: Option<Broken>) {
        if broken == Some(Broken::FenceForgotten) && self.count() == 0 {
            self.fence = 0;
        }
    }
}
