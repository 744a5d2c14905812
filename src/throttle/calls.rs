//! The calls that wait for one run of a key: their newest closure, how many they are, and who waits for the outcome.

use super::core::Core;
use super::error::ThrottleError;
use super::job::Work;
use super::machine::Owed;
use crate::clock::{Clock, Tick, duration};
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::{Outcome, Ticket, Timed};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// How often a call may lose the race for its window. Then it is dropped.
const LOSSES_MAX: u64 = 10;

/// Counts calls by how often they lost. Pure.
#[derive(Debug, Default)]
pub(super) struct Streak {
    /// The races lost since the first of these calls came.
    lost: u64,
    calls: usize,
    /// The calls that came after so many losses, modulo ten.
    joined: [u32; 10],
}

impl Streak {
    /// Takes a call in. What it is known by when it is dropped.
    pub(super) fn join(&mut self) -> u64 {
        self.calls += 1;
        let slot = self.slot();
        self.joined[slot] = self.joined[slot].saturating_add(1);
        self.lost
    }

    /// A race was lost: who joined when, and how many they are, of those that are dropped now.
    pub(super) fn lose(&mut self) -> Option<(u64, usize)> {
        self.lost += 1;
        let slot = self.slot();
        let joined = self.lost.checked_sub(LOSSES_MAX).filter(|_| !fault("T17"))?;
        let dropped = std::mem::take(&mut self.joined[slot]) as usize;
        self.calls -= dropped;
        (dropped > 0).then_some((joined, dropped))
    }

    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    fn slot(&self) -> usize {
        const { assert!(LOSSES_MAX == 10) }
        (self.lost % LOSSES_MAX) as usize
    }
}

/// What a run gives to each call that it covers.
pub(super) type Settled<T, E> = Result<T, ThrottleError<E>>;

/// All calls that wait for one run.
pub(super) struct Calls<T, E> {
    pub(super) work: Work<T, E>,
    /// A later call's closure has taken the place of the first one's.
    pub(super) replaced: bool,
    pub(super) streak: Streak,
    /// Those that wait for the outcome, and when they joined.
    pub(super) waiters: Vec<(u64, Arc<Waiter<T, E>>)>,
    /// Flushes that wait for the run.
    pub(super) flushes: Vec<Hurried>,
    /// While calls wait for a run, the throttle stays, whoever drops it.
    _keep: Option<Arc<Core<T, E>>>,
}

impl<T, E> Calls<T, E> {
    pub(super) fn first(
        work: Work<T, E>,
        waiter: Option<Arc<Waiter<T, E>>>,
        keep: Arc<Core<T, E>>,
    ) -> Box<Calls<T, E>> {
        let mut streak = Streak::default();
        let joined = streak.join();
        let waiters = waiter.into_iter().map(|waiter| (joined, waiter)).collect();
        let keep = Some(keep).filter(|_| !fault("handle-not-kept"));
        Box::new(Calls { work, replaced: false, streak, waiters, flushes: Vec::new(), _keep: keep })
    }

    /// Takes a call in; the closure that its own replaces is to be dropped without a lock.
    pub(super) fn join(&mut self, work: Work<T, E>, waiter: Option<Arc<Waiter<T, E>>>) -> Work<T, E> {
        let joined = self.streak.join();
        if let Some(waiter) = waiter {
            self.forget_timed_out();
            self.waiters.push((joined, waiter));
        }
        if fault("T24") {
            return work;
        }
        self.replaced = true;
        std::mem::replace(&mut self.work, work)
    }

    /// Before the list grows: those whose deadlines have passed wait no more, and there may be no end of them while one key's
    /// run does not come.
    fn forget_timed_out(&mut self) {
        if self.waiters.len() < self.waiters.capacity() {
            return;
        }
        self.waiters.retain(|(_, waiter)| !waiter.ticket.is_settled());
        // Room for as many again, so that looking through all of them is rare.
        self.waiters.reserve(self.waiters.len() + 1);
    }

    /// A race was lost: those that are dropped now, and how many calls that is.
    pub(super) fn lose(&mut self) -> (usize, Vec<Arc<Waiter<T, E>>>) {
        let Some((joined, dropped)) = self.streak.lose() else { return (0, Vec::new()) };
        // They came in order, so the dropped are in front.
        let first_kept = self.waiters.partition_point(|(when, _)| *when <= joined);
        let waiters = self.waiters.drain(..first_kept).map(|(_, waiter)| waiter).collect();
        (dropped, waiters)
    }
}

/// What waits for a run, of a key's calls.
pub(super) fn owed<T, E>(calls: Option<&Calls<T, E>>) -> Owed {
    match calls {
        None => Owed::Nothing,
        Some(calls) if calls.flushes.is_empty() => Owed::Run,
        Some(_) => Owed::RunNow,
    }
}

/// A call that waits for the outcome, perhaps with a deadline.
pub(super) struct Waiter<T, E> {
    ticket: Ticket<Settled<T, E>>,
    key: Arc<str>,
    /// For the error, once the deadline has come.
    timeout: Tick,
}

impl<T, E> Waiter<T, E> {
    /// For the calling thread, which alone may wait.
    pub(super) fn new(clock: &Clock, key: Arc<str>, timeout: Tick) -> Arc<Waiter<T, E>> {
        Arc::new(Waiter { ticket: Ticket::new(clock), key, timeout })
    }

    /// Ends the wait, if nothing has before. Without locks: the outcome of one who is gone is dropped here.
    pub(super) fn settle(&self, settled: Settled<T, E>) {
        if self.ticket.settle(Outcome::Granted(settled)) {
            self.ticket.wake();
        }
    }

    pub(super) fn wait(&self) -> Settled<T, E> {
        match self.ticket.wait() {
            Outcome::Granted(settled) => settled,
            Outcome::Failed(error) => Err(ThrottleError::Valve(error)),
        }
    }
}

/// Gives each waiter the outcome; a `clone` of the user's that panics costs only the one that it was for.
pub(super) fn settle_all<T: Clone, E>(
    waiters: Vec<(u64, Arc<Waiter<T, E>>)>,
    key: &str,
    outcome: impl Fn() -> Settled<T, E>,
) {
    for (_, waiter) in waiters {
        let settled =
            caught(&outcome).unwrap_or_else(|| Err(ThrottleError::Panicked { key: key.to_owned() }));
        let _ = caught(|| waiter.settle(settled));
    }
}

impl<T: Send + 'static, E: Send + Sync + 'static> Timed for Waiter<T, E> {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        let timeout = duration(self.timeout);
        self.settle(Err(ThrottleError::Timeout { key: self.key.to_string(), timeout }));
    }

    fn stopped(self: Arc<Self>) {
        self.settle(Err(ThrottleError::Destroyed { key: self.key.to_string() }));
    }
}

/// What one thread waits for that is neither an outcome nor a permit: that so many things are done, or that a timer comes.
pub(super) struct Latch {
    left: AtomicU64,
    ticket: Ticket<bool>,
}

impl Latch {
    /// For the calling thread, which alone may wait, until [`done`](Latch::done) was called once, and once for each
    /// [`also`](Latch::also).
    pub(super) fn new(clock: &Clock) -> Arc<Latch> {
        Arc::new(Latch { left: AtomicU64::new(1), ticket: Ticket::new(clock) })
    }

    pub(super) fn also(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(true);
        }
    }

    /// Whether all was done; `false` if the timer came first.
    pub(super) fn wait(&self) -> bool {
        matches!(self.ticket.wait(), Outcome::Granted(true))
    }

    fn end(&self, all_done: bool) {
        if self.ticket.settle(Outcome::Granted(all_done)) {
            self.ticket.wake();
        }
    }
}

impl Timed for Latch {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        self.end(false);
    }

    fn stopped(self: Arc<Self>) {
        self.end(false);
    }
}

/// One thing that a latch waits for: done when it is dropped.
pub(super) struct Hurried(Arc<Latch>);

impl Hurried {
    pub(super) fn new(latch: &Arc<Latch>) -> Hurried {
        latch.also();
        Hurried(Arc::clone(latch))
    }
}

impl Drop for Hurried {
    fn drop(&mut self) {
        self.0.done();
    }
}

#[cfg(test)]
mod tests;
