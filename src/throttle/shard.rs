//! A part of a throttle's keys, all that is known of them, and when their timers are due. Lives under its own lock.

use super::calls::{Calls, owed};
use super::core::Flight;
use super::machine::{Owed, Stage, Tally};
use super::stats::ThrottleStats;
use crate::clock::Tick;
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::TimerKey;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A key and its hash, which finds its shard and its place there.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) key: Arc<str>,
    pub(super) hash: u64,
}

/// What is known of one key. There may be a million, most of them in idle windows, so what those do not need is boxed.
pub(super) struct Entry<T, E> {
    pub(super) key: Arc<str>,
    pub(super) stage: Stage<Flight>,
    pub(super) calls: Option<Box<Calls<T, E>>>,
}

impl<T, E> Entry<T, E> {
    pub(super) fn owed(&self) -> Owed {
        owed(self.calls.as_deref())
    }

    fn tally(&self) -> Tally {
        self.stage.tally(self.owed())
    }
}

pub(super) struct Shard<T, E> {
    table: HashTable<Entry<T, E>>,
    /// When which key's timer is due, by its hash. One that its key knows nothing of any more is stale.
    wakes: BinaryHeap<Reverse<(Tick, u64)>>,
    /// The timer of the earliest, or of a stale one before it.
    pub(super) armed: Option<(Tick, TimerKey)>,
    tally: Tally,
    /// Only the totals of these are kept up.
    pub(super) totals: ThrottleStats,
    /// Calls that have come to an end other than that of `destroy`, or are covered by a run that has begun.
    pub(super) accounted: u64,
    /// Calls that wait for a run and its outcome.
    pub(super) waiters: usize,
    /// Threads that acquire, run or close a key, also after the throttle was destroyed.
    pub(super) at_work: usize,
    pub(super) destroyed: bool,
}

type KeyAndCalls<T, E> = (Arc<str>, Box<Calls<T, E>>);

/// What a shard no longer needs: dropped without its lock, because it may be large and hold what is the user's.
pub(super) struct Spent<T, E> {
    table: HashTable<Entry<T, E>>,
    /// Of keys that stay.
    calls: Vec<KeyAndCalls<T, E>>,
    _wakes: BinaryHeap<Reverse<(Tick, u64)>>,
    /// To be taken back.
    pub(super) timer: Option<TimerKey>,
}

impl<T, E> Spent<T, E> {
    /// For how many keys there is something to be dropped.
    pub(super) fn len(&self) -> usize {
        self.table.len() + self.calls.len()
    }

    /// The calls that waited for a run, with their keys.
    pub(super) fn calls_mut(&mut self) -> impl Iterator<Item = (&str, &mut Calls<T, E>)> {
        let of_table = self.table.iter_mut();
        let of_table = of_table.filter_map(|entry| Some((&*entry.key, &mut **entry.calls.as_mut()?)));
        self.calls.iter_mut().map(|(key, calls)| (&**key, &mut **calls)).chain(of_table)
    }

    /// Drops everything; a destructor of the user's that panics does not keep the others from running.
    pub(super) fn discard(self) {
        let of_table = self.table.into_iter().filter_map(|entry| entry.calls);
        for calls in self.calls.into_iter().map(|(_, calls)| calls).chain(of_table) {
            let _ = caught(|| drop(calls));
        }
    }
}

impl<T, E> Shard<T, E> {
    pub(super) fn new() -> Shard<T, E> {
        Shard {
            table: HashTable::new(),
            wakes: BinaryHeap::new(),
            armed: None,
            tally: Tally::default(),
            totals: ThrottleStats::default(),
            accounted: 0,
            waiters: 0,
            at_work: 0,
            destroyed: false,
        }
    }

    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, key: &str) -> Option<&mut Entry<T, E>> {
        self.table.find_mut(hash, |entry| *entry.key == *key)
    }

    /// Changes what is known of a key, if it is there, and the figures with it.
    pub(super) fn change<R>(
        &mut self,
        hash: u64,
        key: &str,
        change: impl FnOnce(&mut Entry<T, E>) -> R,
    ) -> Option<R> {
        let entry = self.table.find_mut(hash, |entry| *entry.key == *key)?;
        let before = entry.tally();
        let result = change(entry);
        self.tally.replace(before, entry.tally());
        Some(result)
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, hash: u64, entry: Entry<T, E>, hasher: impl Fn(&str) -> u64) {
        self.tally.replace(Tally::default(), entry.tally());
        self.table.insert_unique(hash, entry, |entry| hasher(&entry.key));
    }

    pub(super) fn remove(&mut self, hash: u64, key: &str) -> Option<Entry<T, E>> {
        let (entry, _) = self.table.find_entry(hash, |entry| *entry.key == *key).ok()?.remove();
        self.tally.replace(entry.tally(), Tally::default());
        Some(entry)
    }

    /// Notes when a key's timer is due.
    pub(super) fn plan(&mut self, hash: u64, at: Tick) {
        self.wakes.push(Reverse((at, hash)));
    }

    /// Changes the next key whose timer is due by `now`, or forgets it if `change` says so. `false` if none is due any more.
    pub(super) fn next_due(
        &mut self,
        now: Tick,
        hasher: impl Fn(&str) -> u64,
        change: impl FnOnce(&mut Entry<T, E>, Tick) -> Fate,
    ) -> bool {
        let due = self.wakes.peek().filter(|Reverse((at, _))| *at <= now);
        let Some(&Reverse((at, hash))) = due else { return false };
        self.wakes.pop();
        // The table goes by a few bits of the hash, so others may be where this key would be. Of two keys with one hash and one
        // tick either may be meant: the other's turn comes with the other's note.
        let is_meant = |entry: &Entry<T, E>| entry.stage.wakes_at() == Some(at) && hasher(&entry.key) == hash;
        let Ok(mut found) = self.table.find_entry(hash, is_meant) else { return true };
        let before = found.get().tally();
        match change(found.get_mut(), at) {
            Fate::Stays => {
                let after = found.get().tally();
                if let Some(next) = found.get().stage.wakes_at() {
                    self.wakes.push(Reverse((next, hash)));
                }
                self.tally.replace(before, after);
            }
            Fate::Goes => {
                found.remove();
                self.tally.replace(before, Tally::default());
            }
        }
        true
    }

    /// When the next timer is due that a key still waits for.
    pub(super) fn next_wake(&mut self) -> Option<Tick> {
        while let Some(&Reverse((at, hash))) = self.wakes.peek() {
            if self.table.find(hash, |entry| entry.stage.wakes_at() == Some(at)).is_some() {
                return Some(at);
            }
            self.wakes.pop();
        }
        None
    }

    /// Gives up memory that is not needed any more: all of it with the last key, else what is three quarters empty.
    pub(super) fn tidy(&mut self, hasher: impl Fn(&str) -> u64) -> Option<Spent<T, E>> {
        if self.table.is_empty() {
            return Some(self.empty());
        }
        if self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(self.table.len() * 2, |entry| hasher(&entry.key));
        }
        if self.wakes.len() < self.wakes.capacity() / 8 {
            self.wakes.shrink_to(self.wakes.len() * 2);
        }
        None
    }

    /// Forgets every key but those that hold the engine's until their runs end.
    pub(super) fn destroy(&mut self, hasher: impl Fn(&str) -> u64) -> Spent<T, E> {
        self.destroyed = !fault("destroyed-late");
        self.totals.destroyed = self.totals.calls - self.accounted;
        self.waiters = 0;
        let holds = self.tally.active > 0 && !fault("T59");
        let mut spent = self.empty();
        if holds {
            for mut entry in spent.table.extract_if(|entry| entry.stage.is_held()) {
                spent.calls.extend(entry.calls.take().map(|calls| (Arc::clone(&entry.key), calls)));
                let hash = hasher(&entry.key);
                if let Some(at) = entry.stage.wakes_at() {
                    self.plan(hash, at);
                }
                self.insert(hash, entry, &hasher);
            }
        }
        spent
    }

    /// These calls are taken out.
    pub(super) fn account_for(&mut self, calls: usize, waiters: usize) {
        self.accounted += calls as u64;
        self.waiters = self.waiters.saturating_sub(waiters);
    }

    fn empty(&mut self) -> Spent<T, E> {
        self.tally = Tally::default();
        Spent {
            table: std::mem::take(&mut self.table),
            calls: Vec::new(),
            _wakes: std::mem::take(&mut self.wakes),
            timer: self.armed.take().map(|(_, timer)| timer),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<T, E>> {
        self.table.iter_mut()
    }

    /// Adds this shard's figures to those of the others.
    pub(super) fn add_to(&self, stats: &mut ThrottleStats) {
        if !self.destroyed {
            stats.active += self.tally.active;
            stats.pending += self.tally.pending;
            stats.keys += self.table.len();
            stats.timers += self.tally.timers;
        }
        stats.calls += self.totals.calls;
        stats.coalesced += self.totals.coalesced;
        stats.leading += self.totals.leading;
        stats.trailing += self.totals.trailing;
        stats.failed += self.totals.failed;
        stats.races_lost += self.totals.races_lost;
        stats.dropped += self.totals.dropped;
        stats.refused += self.totals.refused;
        stats.destroyed += self.totals.destroyed;
    }
}

/// What becomes of a key whose timer has come.
pub(super) enum Fate {
    Stays,
    Goes,
}

impl Tally {
    fn replace(&mut self, before: Tally, after: Tally) {
        self.active = self.active + after.active - before.active;
        self.pending = self.pending + after.pending - before.pending;
        self.timers = self.timers + after.timers - before.timers;
    }
}
