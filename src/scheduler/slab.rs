//! A slab: values at stable indices, under keys that go stale when their value leaves.

#[cfg(test)]
mod tests;

/// No index: the end of a list of slots.
pub(crate) const NONE: u32 = u32::MAX;

/// Below this many slots, memory is kept: a short queue that empties and fills would only buy and sell it.
const KEPT: usize = 64;

/// Names one value for as long as it is inside; afterwards it names nothing, even when the slot is used
/// again.
///
/// The generation counts the insertions of the whole slab, so a key is only ever met again after exactly a
/// multiple of 2^32 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// Insertion and removal take constant time; the memory of a crowd is given back once it has left.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The first vacant slot.
    free: u32,
    len: usize,
    generation: u32,
    removed_since_trim: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Vacant { next: u32 },
    Occupied { generation: u32, value: T },
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, len: 0, generation: 0, removed_since_trim: 0 }
    }

    /// # Panics
    ///
    /// With 2^32 - 1 values inside.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.generation = self.generation.wrapping_add(1);
        self.len += 1;
        let occupied = Slot::Occupied { generation: self.generation, value };
        let index = match self.slots.get_mut(self.free as usize) {
            Some(slot) => {
                let Slot::Vacant { next } = *slot else { unreachable!("the free list holds vacant slots") };
                *slot = occupied;
                std::mem::replace(&mut self.free, next)
            }
            None => {
                let index = u32::try_from(self.slots.len()).unwrap_or(NONE);
                assert!(index != NONE, "a slab holds fewer than 2^32 - 1 values");
                self.slots.push(occupied);
                index
            }
        };
        Key { index, generation: self.generation }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let slot = &mut self.slots[key.index as usize];
        let Slot::Occupied { value, .. } = std::mem::replace(slot, Slot::Vacant { next: self.free }) else {
            unreachable!("a valid key names an occupied slot")
        };
        self.free = key.index;
        self.len -= 1;
        self.removed_since_trim += 1;
        self.trim_if_worthwhile();
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.index as usize)? {
            Slot::Occupied { generation, value } if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize)? {
            Slot::Occupied { generation, value } if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The value in a slot which its owner's own links say is occupied.
    pub(crate) fn linked(&self, index: u32) -> &T {
        match &self.slots[index as usize] {
            Slot::Occupied { value, .. } => value,
            Slot::Vacant { .. } => unreachable!("a linked slot is occupied"),
        }
    }

    /// As [`Slab::linked`].
    pub(crate) fn linked_mut(&mut self, index: u32) -> &mut T {
        match &mut self.slots[index as usize] {
            Slot::Occupied { value, .. } => value,
            Slot::Vacant { .. } => unreachable!("a linked slot is occupied"),
        }
    }

    /// The key of such a slot.
    pub(crate) fn linked_key(&self, index: u32) -> Key {
        match &self.slots[index as usize] {
            Slot::Occupied { generation, .. } => Key { index, generation: *generation },
            Slot::Vacant { .. } => unreachable!("a linked slot is occupied"),
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Every value, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| match slot {
            Slot::Occupied { generation, value } => Some((Key { index, generation: *generation }, value)),
            Slot::Vacant { .. } => None,
        })
    }

    #[inline]
    fn trim_if_worthwhile(&mut self) {
        let slots = self.slots.len();
        // A trim looks at every slot, so half as many removals must have paid for it. The last value to leave
        // always trims: it takes all slots with it, and their insertions paid.
        let paid = self.len == 0 || (self.len < slots / 4 && self.removed_since_trim >= slots / 2);
        if slots > KEPT && paid {
            self.trim();
        }
    }

    /// Drops the vacant slots at the end, and sorts the others: those in front are used first, so that the
    /// end empties.
    fn trim(&mut self) {
        while self.slots.len() > KEPT && matches!(self.slots.last(), Some(Slot::Vacant { .. })) {
            self.slots.pop();
        }
        self.free = NONE;
        for (index, slot) in self.slots.iter_mut().enumerate().rev() {
            if let Slot::Vacant { next } = slot {
                *next = std::mem::replace(&mut self.free, u32::try_from(index).unwrap_or(NONE));
            }
        }
        self.slots.shrink_to(self.slots.len() * 2);
        self.removed_since_trim = 0;
    }
}

impl Key {
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    pub(crate) fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = bits.to_le_bytes();
        Self { index: u32::from_le_bytes([a, b, c, d]), generation: u32::from_le_bytes([e, f, g, h]) }
    }
}
