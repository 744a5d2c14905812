//! Pauses and resumes on their way to the store: one at a time, those of one id in the order in which they were called for.
//!
//! A lease thread makes them, one in a turn, so that however many are due, the other one and every second turn of this one
//! are left for leases. No breaker holds them back and none is made twice.

use super::super::workers::{Errand, Runner, Work};
use super::Remote;
use crate::clock::{Clock, Tick};
use crate::error::StoreError;
use crate::planted::fault;
use crate::sync::{AtomicBool, Ordering};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A pause or a resume.
pub(crate) trait Write: Send + Sync {
    /// Makes the call to the store, without any lock.
    fn make(self: Arc<Self>);
    /// It will not be made.
    fn unmade(self: Arc<Self>, why: Unmade);
    fn is_pause(&self) -> bool;
    /// Makes this pause one of valve `valve` until then at least, if it is that valve's and nobody waits for it.
    fn lengthen(&self, valve: u64, until: Tick) -> bool;
}

/// Why a write is not made.
pub(crate) enum Unmade {
    /// A resume came after it.
    Resumed,
    /// No thread could be had.
    NoThread,
}

/// The writes of all ids of one client.
#[derive(Default)]
pub(super) struct Writes {
    due: HashMap<Arc<str>, VecDeque<Arc<dyn Write>>>,
    /// Whose turn it is: each id with writes that are due, once.
    turns: VecDeque<Arc<str>>,
    /// A lease thread makes one, or was sent for.
    serving: bool,
}

impl Writes {
    fn push(&mut self, id: &Arc<str>, write: Arc<dyn Write>) {
        let due = self.due.entry(Arc::clone(id)).or_default();
        if due.is_empty() {
            self.turns.push_back(Arc::clone(id));
        }
        due.push_back(write);
    }

    fn pop(&mut self) -> Option<Arc<dyn Write>> {
        let id = self.turns.pop_front()?;
        let due = self.due.get_mut(&id)?;
        let write = due.pop_front();
        if due.is_empty() {
            self.due.remove(&id);
        } else {
            self.turns.push_back(id);
        }
        write
    }

    fn take_pauses(&mut self, id: &Arc<str>) -> Vec<Arc<dyn Write>> {
        let Some(due) = self.due.remove(id) else { return Vec::new() };
        let (pauses, others): (Vec<_>, Vec<_>) = due.into_iter().partition(|write| write.is_pause());
        if others.is_empty() {
            self.turns.retain(|other| other != id);
        } else {
            self.due.insert(Arc::clone(id), others.into());
        }
        pauses
    }

    /// Takes out all, when nobody is left to make them.
    fn take_all(&mut self) -> Vec<Arc<dyn Write>> {
        self.serving = false;
        let mut all = Vec::new();
        while let Some(write) = self.pop() {
            all.push(write);
        }
        all
    }
}

impl Remote {
    /// Puts a write in line. May be called under a valve's lock, so that the order of the calls is that of the writes;
    /// [`serve_writes`](Remote::serve_writes) must follow without.
    pub(crate) fn queue_write(&self, id: &Arc<str>, write: Arc<dyn Write>) {
        self.handle.state.lock().writes.push(id, write);
    }

    /// Lets the last write in line of this id, if it is a pause of this valve that nobody waits for, last until then.
    pub(crate) fn lengthen_last_pause(&self, id: &Arc<str>, valve: u64, until: Tick) -> bool {
        let state = self.handle.state.lock();
        let last = state.writes.due.get(id).and_then(VecDeque::back);
        last.is_some_and(|write| write.lengthen(valve, until))
    }

    /// Takes the pauses of this id out of the line: their [`unmade`](Write::unmade) is to be called, without locks.
    pub(crate) fn take_pauses(&self, id: &Arc<str>) -> Vec<Arc<dyn Write>> {
        self.handle.state.lock().writes.take_pauses(id)
    }

    /// Sends for a lease thread if writes are due and none is at it. Called without locks.
    pub(crate) fn serve_writes(&self, clock: &Clock) {
        let needed = {
            let writes = &mut self.handle.state.lock().writes;
            !writes.turns.is_empty() && !std::mem::replace(&mut writes.serving, true)
        };
        if needed {
            self.send_for_turn(clock);
        }
    }

    fn send_for_turn(&self, clock: &Clock) {
        let turn = Turn { remote: self.clone(), clock: clock.clone(), taken: AtomicBool::new(false) };
        let submitted = self.submit_leases(clock, Runner::Owned(Arc::new(turn)));
        // A turn that gets no thread is dropped, and tells those who wait.
        drop(submitted);
    }
}

/// One write, whichever is first when its thread comes to it.
struct Turn {
    remote: Remote,
    clock: Clock,
    taken: AtomicBool,
}

impl Errand for Turn {
    fn run(self: Arc<Self>, _work: Work) {
        self.taken.store(true, Ordering::Relaxed);
        let write = self.remote.handle.state.lock().writes.pop();
        if let Some(write) = write {
            write.make();
        }
        let more = {
            let mut state = self.remote.handle.state.lock();
            state.writes.serving = !state.writes.turns.is_empty();
            state.writes.serving
        };
        if more && !fault("next-write-not-sent-for") {
            self.remote.send_for_turn(&self.clock);
        }
    }

    fn store_turned(self: Arc<Self>, _down: Option<StoreError>) {}
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.taken.load(Ordering::Relaxed) || crate::os::forked() {
            return;
        }
        let unmade = self.remote.handle.state.lock().writes.take_all();
        for write in unmade {
            write.unmade(Unmade::NoThread);
        }
    }
}

#[cfg(test)]
mod tests;
