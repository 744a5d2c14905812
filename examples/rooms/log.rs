//! What happened, in its order: every event, and every start and end of a run, written down by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[derive(Clone)]
pub(crate) struct Log {
    begun: Instant,
    entries: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) room: usize,
    pub(crate) instance: usize,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Event,
    Start,
    End,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log { begun: Instant::now(), entries: Arc::default() }
    }

    pub(crate) fn event(&self, room: usize, instance: usize) {
        self.note(room, instance, What::Event);
    }

    pub(crate) fn starts(&self, room: usize, instance: usize) {
        self.note(room, instance, What::Start);
    }

    pub(crate) fn ends(&self, room: usize, instance: usize) {
        self.note(room, instance, What::End);
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().clone()
    }

    /// The time is read under the lock, so that it never goes back from one entry to the next.
    fn note(&self, room: usize, instance: usize, what: What) {
        let mut entries = self.entries.lock();
        entries.push(Entry { at: self.begun.elapsed(), room, instance, what });
    }
}
