//! The scheduler's inner structures, for `benches/core` to time; not part of the interface.

#[cfg(feature = "redis")]
pub use crate::store::BareAdmissions;

use crate::scheduler::{Expired, Heap, Place, TimerKey, Wheel};

/// The heap of a valve's waiters, with values of their size.
#[derive(Debug)]
pub struct MeasuredHeap {
    heap: Heap<[u64; 7]>,
    sequence: u64,
}

/// The wheel of a scheduler, with values of a timer's size.
#[derive(Debug)]
pub struct MeasuredWheel {
    wheel: Wheel<[u64; 3]>,
    expired: Vec<Expired<[u64; 3]>>,
}

/// Where a waiter is in a [`MeasuredHeap`].
#[derive(Debug, Clone, Copy)]
pub struct MeasuredPlace(Place);

/// A timer in a [`MeasuredWheel`].
#[derive(Debug, Clone, Copy)]
pub struct MeasuredTimer(TimerKey);

impl MeasuredHeap {
    /// One in which nobody waits.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "only the bench makes one")]
    pub fn new() -> MeasuredHeap {
        MeasuredHeap { heap: Heap::new(), sequence: 0 }
    }

    /// Adds a waiter.
    pub fn insert(&mut self, priority: i32) -> MeasuredPlace {
        self.sequence += 1;
        MeasuredPlace(self.heap.push(priority, self.sequence, [self.sequence; 7]))
    }

    /// Takes a waiter out, if it is still there.
    pub fn cancel(&mut self, place: MeasuredPlace) -> bool {
        self.heap.remove(place.0).is_some()
    }

    /// Takes the first waiter out, if there is one.
    pub fn pop(&mut self) -> bool {
        self.heap.pop().is_some()
    }
}

impl MeasuredWheel {
    /// One without timers, at tick 0.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "only the bench makes one")]
    pub fn new() -> MeasuredWheel {
        MeasuredWheel { wheel: Wheel::new(0), expired: Vec::new() }
    }

    /// Adds a timer that is due so many ticks from now.
    pub fn insert(&mut self, ticks: u64) -> MeasuredTimer {
        MeasuredTimer(self.wheel.insert(self.wheel.now() + ticks, 0, [ticks; 3]))
    }

    /// Takes a timer back, if it has not expired.
    pub fn cancel(&mut self, timer: MeasuredTimer) -> bool {
        self.wheel.cancel(timer.0).is_some()
    }

    /// Moves on to the next tick at which timers expire, and says how many do.
    pub fn expire_first(&mut self) -> usize {
        self.expired.clear();
        self.wheel.expire_first(u64::MAX, &mut self.expired);
        self.expired.len()
    }
}
