//! How a throttle is emptied and how it ends: flushed, destroyed, shut down.

use super::calls::{Hurried, Latch};
use super::core::{Core, hash_in};
use super::error::ThrottleError;
use super::inside;
use super::job::Phase;
use super::machine::Stage;
use super::shard::{Slot, Spent};
use super::workers::Urgency;
use crate::clock::{LONGEST, Tick, duration, ticks_up};
use crate::error::{Blocked, Error};
use crate::planted::fault;
use crate::scheduler::{Timed, Timer};
use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Somebody waits until no more than so many threads are at work.
pub(super) struct Ending {
    own: usize,
    latch: Arc<Latch>,
}

/// More keys than this `destroy` leaves to a worker to drop, because that takes far longer than all the rest.
const MANY: usize = 100_000;

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    pub(super) fn flush(self: &Arc<Self>) -> usize {
        let latch = Latch::new(&self.clock);
        let mut count = 0;
        let mut due = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            if shard.destroyed {
                continue;
            }
            // The stage of each is looked at twice, because only `change` keeps the figures.
            for entry in shard.iter_mut() {
                // What a leading run is about to cover is not pending.
                if matches!(entry.stage, Stage::Acquiring(Phase::Leading)) {
                    continue;
                }
                let Some(calls) = &mut entry.calls else { continue };
                calls.flushes.push(Hurried::new(&latch));
                count += 1;
                if matches!(entry.stage, Stage::Window { .. }) && !fault("T61") {
                    due.push(Slot { key: Arc::clone(&entry.key), hash: self.hash(&entry.key) });
                }
            }
            for slot in &due {
                shard.change(slot.hash, &slot.key, |entry| entry.stage.hurry());
            }
            drop(shard);
            for slot in due.drain(..) {
                self.dispatch(slot, Phase::Trailing, Urgency::InTurn);
            }
        }
        latch.done();
        if inside::runs(self.address()) == 0 {
            latch.wait();
        }
        count
    }

    pub(super) fn destroy(self: &Arc<Self>) {
        self.destroy_keys(MANY);
    }

    /// On the scheduler's thread, where nothing of the user's is dropped.
    pub(super) fn destroy_from_afar(self: &Arc<Self>) {
        self.destroy_keys(0);
    }

    /// If there are more keys than `most`, a worker drops them.
    fn destroy_keys(self: &Arc<Self>, most: usize) {
        let mut left = Vec::new();
        for (index, shard) in self.shards.iter().enumerate() {
            let mut guard = shard.0.lock();
            if guard.destroyed {
                continue;
            }
            let waiters = guard.waiters;
            let mut spent = guard.destroy(|key| self.hash(key));
            if let Some(at) = guard.next_wake() {
                self.arm(&mut guard, hash_in(index), at);
            }
            drop(guard);
            if let Some(timer) = spent.timer.take() {
                self.scheduler.cancel(timer);
            }
            if waiters > 0 && !fault("T55") {
                end_waits(&mut spent);
            }
            if fault("destroyed-late") {
                shard.0.lock().destroyed = true;
            }
            left.push(spent);
        }
        // What waits for a worker has nothing to run any more.
        drop(self.workers.clear());
        let keys: usize = left.iter().map(Spent::len).sum();
        let discard = move || left.into_iter().for_each(Spent::discard);
        if keys > most {
            self.workers.submit(Box::new(discard), Urgency::AtOnce);
        } else {
            discard();
        }
        self.workers.dismiss();
    }

    pub(super) fn shutdown(self: &Arc<Self>, timeout: Duration) -> Result<(), Error> {
        let since = self.clock.now();
        self.destroy();
        let own = inside::runs(self.address());
        let latch = Latch::new(&self.clock);
        self.endings.lock().push(Ending { own, latch: Arc::clone(&latch) });
        self.tell_endings();
        let deadline = (timeout < duration(LONGEST)).then(|| since + ticks_up(timeout));
        let timer = deadline.map(|at| {
            let weak = Arc::downgrade(&latch);
            let owner: Weak<dyn Timed> = weak;
            self.scheduler.set(at, Tick::MAX, Timer { owner, timer: 0 })
        });
        // Without a scheduler the deadline would never come.
        let ended = if matches!(timer, Some(Err(_))) { self.at_work() <= own } else { latch.wait() };
        if let Some(Ok(timer)) = timer {
            self.scheduler.cancel(timer);
        }
        self.endings.lock().retain(|ending| !Arc::ptr_eq(&ending.latch, &latch));
        if ended {
            return Ok(());
        }
        let waited = duration(self.clock.now() - since);
        Err(Error::Timeout { waited, retry_after: None, blocked_by: Blocked::Queue })
    }

    /// A thread has done with a key of a destroyed throttle, or somebody began to wait for that.
    pub(super) fn tell_endings(&self) {
        let mut endings = self.endings.lock();
        if endings.is_empty() {
            return;
        }
        let at_work = self.at_work();
        let (done, left) =
            std::mem::take(&mut *endings).into_iter().partition(|ending| at_work <= ending.own);
        *endings = left;
        drop(endings);
        let done: Vec<Ending> = done;
        for ending in done {
            ending.latch.done();
        }
    }

    fn at_work(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().at_work).sum()
    }
}

fn end_waits<T, E>(spent: &mut Spent<T, E>) {
    for (key, calls) in spent.calls_mut() {
        for (_, waiter) in std::mem::take(&mut calls.waiters) {
            waiter.settle(Err(ThrottleError::Destroyed { key: key.to_owned() }));
        }
    }
}
