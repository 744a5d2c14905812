//! The priority heap of one valve's waiters: who is first, and who is next, with any of them removable at any
//! time.
//!
//! Higher priority comes first, then the lower sequence number. The heap is 4-ary, so that the children of a
//! node lie side by side, and indexed: each entry knows its node, so removal from the middle takes O(log n).
//! An entry may be set aside: it has its place then, but no rank, and nothing of the order sees it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::slab::{Key, NONE, Slab};
use crate::planted::fault;

#[cfg(test)]
mod tests;

const ARITY: usize = 4;

/// Below this capacity, memory is kept.
const KEPT: usize = 64;

/// Where an entry is, until it is removed; then every method answers `None` to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(Key);

#[derive(Debug)]
pub(crate) struct Heap<T> {
    nodes: Vec<Node>,
    entries: Slab<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    /// The position of the entry's node; [`NONE`] while it is set aside.
    node: u32,
    value: T,
}

/// The greatest is first.
#[derive(Clone, Copy, Debug)]
struct Node {
    sequence: u64,
    priority: i32,
    /// The slot of the node's entry.
    entry: u32,
}

impl<T> Heap<T> {
    pub(crate) fn new() -> Self {
        Self { nodes: Vec::new(), entries: Slab::new() }
    }

    /// Adds an entry. Sequence numbers are the caller's, each used once.
    pub(crate) fn push(&mut self, priority: i32, sequence: u64, value: T) -> Place {
        let place = self.set_aside(value);
        self.rank(place, priority, sequence);
        place
    }

    /// Adds an entry that has no rank until [`rank`](Heap::rank).
    pub(crate) fn set_aside(&mut self, value: T) -> Place {
        Place(self.entries.insert(Entry { node: NONE, value }))
    }

    /// Gives its rank to an entry that was set aside.
    pub(crate) fn rank(&mut self, place: Place, priority: i32, sequence: u64) {
        if !self.is_aside(place) {
            return;
        }
        let node = Node { sequence, priority, entry: place.0.index() };
        self.nodes.push(node);
        self.rise(self.nodes.len() - 1, node);
    }

    pub(crate) fn is_aside(&self, place: Place) -> bool {
        self.entries.get(place.0).is_some_and(|entry| entry.node == NONE)
    }

    pub(crate) fn peek(&self) -> Option<(Place, &T)> {
        let entry = self.nodes.first()?.entry;
        Some((Place(self.entries.linked_key(entry)), &self.entries.linked(entry).value))
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.nodes.first()?.entry;
        self.remove(Place(self.entries.linked_key(first)))
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        let entry = self.entries.remove(place.0)?;
        if entry.node == NONE {
            return Some(entry.value);
        }
        let hole = entry.node as usize;
        // The last node fills the hole, and from there it may have to go either way.
        if let Some(last) = self.nodes.pop().filter(|_| hole < self.nodes.len()) {
            let settled = self.sink(hole, last);
            if settled == hole {
                self.rise(hole, last);
            }
        }
        if self.nodes.capacity() > KEPT && self.nodes.len() < self.nodes.capacity() / 4 {
            self.nodes.shrink_to(self.nodes.capacity() / 2);
        }
        Some(entry.value)
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        self.entries.get_mut(place.0).map(|entry| &mut entry.value)
    }

    /// The priority and the sequence number of an entry in the order.
    pub(crate) fn key(&self, place: Place) -> Option<(i32, u64)> {
        let node = self.nodes.get(self.entries.get(place.0)?.node as usize)?;
        Some((node.priority, node.sequence))
    }

    /// Appends the first `n` in order, or all if there are fewer, without removing them: O(n log n), however
    /// many wait.
    pub(crate) fn first(&self, n: usize, out: &mut Vec<Place>) {
        // An entry can only be next once its parent is out, so these are all that can be next.
        let mut candidates = BinaryHeap::new();
        candidates.extend(self.nodes.first().map(|node| (*node, 0)));
        for _ in 0..n {
            let Some((node, at)) = candidates.pop() else { return };
            out.push(Place(self.entries.linked_key(node.entry)));
            candidates.extend(self.children(at).map(|child| (self.nodes[child], child)));
        }
    }

    /// Every entry of the order, in no particular one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Place, &T)> {
        let ranked = self.entries.iter().filter(|(_, entry)| entry.node != NONE);
        ranked.map(|(key, entry)| (Place(key), &entry.value))
    }

    /// Every entry that is set aside.
    pub(crate) fn aside(&self) -> impl Iterator<Item = (Place, &T)> {
        let aside = self.entries.iter().filter(|(_, entry)| entry.node == NONE);
        aside.map(|(key, entry)| (Place(key), &entry.value))
    }

    /// How many have a rank.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Puts `node` at `at` or as far above as it belongs.
    fn rise(&mut self, mut at: usize, node: Node) {
        while let Some(above) = at.checked_sub(1) {
            let parent = above / ARITY;
            if node <= self.nodes[parent] {
                break;
            }
            self.set(at, self.nodes[parent]);
            at = parent;
        }
        self.set(at, node);
    }

    /// Puts `node` at `at` or as far below as it belongs, and says where.
    fn sink(&mut self, mut at: usize, node: Node) -> usize {
        while let Some(child) = self.children(at).max_by_key(|child| self.nodes[*child]) {
            if self.nodes[child] <= node {
                break;
            }
            self.set(at, self.nodes[child]);
            at = child;
        }
        self.set(at, node);
        at
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a slab has fewer than 2^32 entries, and each has one node"
    )]
    fn set(&mut self, at: usize, node: Node) {
        self.nodes[at] = node;
        self.entries.linked_mut(node.entry).node = at as u32;
    }

    fn children(&self, at: usize) -> std::ops::Range<usize> {
        let first = at * ARITY + 1;
        first.min(self.nodes.len())..(first + ARITY).min(self.nodes.len())
    }
}

impl Place {
    /// The place as one word, for an atomic; [`Place::from_bits`] turns it back.
    pub(crate) fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(Key::from_bits(bits))
    }
}

impl Ord for Node {
    fn cmp(&self, other: &Self) -> Ordering {
        let priority = if fault("V43") { Ordering::Equal } else { self.priority.cmp(&other.priority) };
        let sequence = self.sequence.cmp(&other.sequence);
        priority.then(if fault("V44") { sequence } else { sequence.reverse() })
    }
}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Node {}
