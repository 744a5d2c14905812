//! A hierarchical timer wheel: what is due next, for any number of timers, ticks of a microsecond and any
//! horizon.
//!
//! The scheme is that of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987). Level 0 has
//! a slot for each of 64 ticks, level 1 a slot for each 64 ticks, and so on, until eleven levels cover all of
//! `u64`. A timer lives at the level of the highest digit (base 64) in which its tick differs from now, in
//! the slot of that digit. Then:
//!
//! - every timer of a lower level is due before every timer of a higher one, and within a level slots are in
//!   order, so the first occupied slot of the first occupied level holds the earliest timer;
//! - when now reaches a slot above level 0, its timers move to lower levels, and all of those are empty at
//!   that moment. So the timers of one tick stay in the order of their insertion.
//!
//! Each slot keeps a lower bound of its earliest tick, so moving timers down needs no wake-up of its own: it
//! happens when a timer is due. The wheel never reads a clock.

use super::slab::{Key, NONE, Slab};

#[cfg(test)]
mod tests;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 11;

/// Names a timer until it expires or is cancelled; then [`Wheel::cancel`] answers `None` to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey(Key);

#[derive(Debug)]
pub(crate) struct Wheel<T> {
    now: u64,
    timers: Slab<Timer<T>>,
    /// One bit for each level with an occupied slot.
    occupied_levels: u32,
    levels: [Level; LEVELS],
}

/// A timer that was due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expired<T> {
    pub(crate) key: TimerKey,
    pub(crate) order: u64,
    pub(crate) value: T,
}

#[derive(Debug)]
struct Level {
    /// One bit for each slot with a timer.
    occupied: u64,
    slots: [Slot; SLOTS],
}

/// A doubly linked list, in the order of insertion.
#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// No timer of the slot is due earlier. Cancelling leaves it as it is.
    earliest: u64,
}

#[derive(Debug)]
struct Timer<T> {
    when: u64,
    order: u64,
    previous: u32,
    next: u32,
    level: usize,
    value: T,
}

impl<T> Wheel<T> {
    pub(crate) fn new(now: u64) -> Self {
        Self { now, timers: Slab::new(), occupied_levels: 0, levels: [Level::EMPTY; LEVELS] }
    }

    /// Adds a timer due at `when`, or now if that has passed. Timers of one tick expire in the order of
    /// `order`, equal ones in that of their insertion.
    pub(crate) fn insert(&mut self, when: u64, order: u64, value: T) -> TimerKey {
        let when = when.max(self.now);
        let key = self.timers.insert(Timer { when, order, previous: NONE, next: NONE, level: 0, value });
        self.link(key.index());
        TimerKey(key)
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.timers.get(key.0)?;
        self.unlink(key.0.index());
        self.timers.remove(key.0).map(|timer| timer.value)
    }

    /// No timer is due earlier. One is due exactly then, unless the earliest was cancelled. Takes constant
    /// time.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        let (level, slot) = self.first_occupied()?;
        Some(self.levels[level].slots[slot].earliest)
    }

    /// Takes all timers of the earliest tick into `out`, sorted, if that tick is at most `until`, and moves
    /// now to it. Otherwise answers `None` and moves now to `until`. Now never goes back.
    pub(crate) fn expire_first(&mut self, until: u64, out: &mut Vec<Expired<T>>) -> Option<u64> {
        let until = until.max(self.now);
        while let Some((level, slot)) = self.first_occupied() {
            let earliest = self.levels[level].slots[slot].earliest;
            if level == 0 && earliest <= until {
                self.now = earliest;
                self.take_slot(slot, out);
                return Some(earliest);
            }
            // A slot that now does not reach stays as it is; and above level 0 it starts before its earliest
            // timer.
            if level == 0 || until >> shift(level) < earliest >> shift(level) {
                break;
            }
            self.now = earliest.min(until);
            self.move_down(level, slot);
        }
        self.now = until;
        None
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// The tick up to which timers have expired.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn first_occupied(&self) -> Option<(usize, usize)> {
        if self.occupied_levels == 0 {
            return None;
        }
        let level = self.occupied_levels.trailing_zeros() as usize;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    /// Takes a slot of level 0, whose timers are all due at one tick.
    fn take_slot(&mut self, slot: usize, out: &mut Vec<Expired<T>>) {
        let first = out.len();
        let mut index = self.empty_slot(0, slot);
        while index != NONE {
            let key = self.timers.linked_key(index);
            let Some(timer) = self.timers.remove(key) else { break };
            index = timer.next;
            out.push(Expired { key: TimerKey(key), order: timer.order, value: timer.value });
        }
        out[first..].sort_by_key(|expired| expired.order);
    }

    /// Moves a slot's timers to where they belong now.
    fn move_down(&mut self, level: usize, slot: usize) {
        let mut index = self.empty_slot(level, slot);
        while index != NONE {
            let next = self.timers.linked(index).next;
            self.link(index);
            index = next;
        }
    }

    /// Unlinks a slot's list as a whole, and answers its first timer.
    fn empty_slot(&mut self, level: usize, slot: usize) -> u32 {
        let head = self.levels[level].slots[slot].head;
        self.levels[level].slots[slot] = Slot::EMPTY;
        self.mark_empty(level, slot);
        head
    }

    fn link(&mut self, index: u32) {
        let timer = self.timers.linked_mut(index);
        let level = level_of(timer.when, self.now);
        let slot = digit(timer.when, level);
        let list = &mut self.levels[level].slots[slot];
        (timer.level, timer.previous, timer.next) = (level, list.tail, NONE);
        list.earliest = list.earliest.min(timer.when);
        match std::mem::replace(&mut list.tail, index) {
            NONE => list.head = index,
            previous => self.timers.linked_mut(previous).next = index,
        }
        self.levels[level].occupied |= 1 << slot;
        self.occupied_levels |= 1 << level;
    }

    fn unlink(&mut self, index: u32) {
        let &Timer { when, level, previous, next, .. } = self.timers.linked(index);
        let slot = digit(when, level);
        let list = &mut self.levels[level].slots[slot];
        match previous {
            NONE => list.head = next,
            previous => self.timers.linked_mut(previous).next = next,
        }
        match next {
            NONE => list.tail = previous,
            next => self.timers.linked_mut(next).previous = previous,
        }
        if list.head == NONE {
            list.earliest = u64::MAX;
            self.mark_empty(level, slot);
        }
    }

    fn mark_empty(&mut self, level: usize, slot: usize) {
        self.levels[level].occupied &= !(1 << slot);
        if self.levels[level].occupied == 0 {
            self.occupied_levels &= !(1 << level);
        }
    }
}

impl Level {
    const EMPTY: Self = Self { occupied: 0, slots: [Slot::EMPTY; SLOTS] };
}

impl Slot {
    const EMPTY: Self = Self { head: NONE, tail: NONE, earliest: u64::MAX };
}

/// The highest digit in which two ticks differ, 0 if none does.
fn level_of(when: u64, now: u64) -> usize {
    let differing = (when ^ now) | 1;
    (differing.ilog2() / BITS) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "masked to a slot's number")]
fn digit(when: u64, level: usize) -> usize {
    (when >> shift(level)) as usize & (SLOTS - 1)
}

#[expect(clippy::cast_possible_truncation, reason = "at most 60")]
fn shift(level: usize) -> u32 {
    level as u32 * BITS
}
