//! What happens when a key's timer comes, and how its run gets to a thread.

use super::calls::Calls;
use super::core::{Core, Flight, hash_in};
use super::error::ThrottleError;
use super::job::Phase;
use super::log::LogLevel;
use super::machine::{Due, Owed, Write};
use super::shard::{Entry, Fate, Slot, Spent};
use super::workers::{Task, Urgency};
use crate::clock::Tick;
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::Timed;
use crate::valve::OwnedPermit;
use std::cell::RefCell;
use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;

#[cfg(shuttle)]
use shuttle::thread_local;

/// How many keys of a shard are looked at before its lock is let go.
const BATCH: usize = 256;

/// What the timers of a shard have led to.
#[derive(Default)]
struct Found {
    runs: Vec<Slot>,
    extensions: Vec<(Slot, Tick, Write)>,
    /// Extensions that never came back.
    given_up: Vec<(Slot, Flight)>,
    /// Planted: keys that are forgotten without another look.
    unseen: Vec<Slot>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Timed for Core<T, E> {
    fn due(self: Arc<Self>, timer: u64, now: Tick) {
        let shard = usize::try_from(timer).unwrap_or_default();
        let hash = hash_in(shard);
        while self.look_at(hash, now) {}
        if self.is_orphaned() {
            self.destroy_from_afar();
        }
        self.bury();
    }

    fn stopped(self: Arc<Self>) {
        self.destroy_from_afar();
        self.bury();
    }
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    /// Looks at the next keys of a shard that are due; whether there are more.
    fn look_at(self: &Arc<Self>, hash: u64, now: Tick) -> bool {
        let mut found = Found::default();
        let mut shard = self.shard(hash);
        if shard.armed.is_some_and(|(at, _)| at <= now) {
            shard.armed = None;
        }
        let mut looked = 0;
        let hasher = |key: &str| self.hash(key);
        while looked < BATCH
            && shard.next_due(now, hasher, |entry, at| self.decide(entry, at, now, &mut found))
        {
            looked += 1;
        }
        let more = looked == BATCH;
        let spent = if more { None } else { shard.tidy(|key| self.hash(key)) };
        let next = if more { None } else { shard.next_wake() };
        if let Some(at) = next {
            self.arm(&mut shard, hash, at);
        }
        drop(shard);
        self.bin(spent);
        self.act(found);
        more
    }

    fn decide(&self, entry: &mut Entry<T, E>, at: Tick, now: Tick, found: &mut Found) -> Fate {
        let owed: Owed = entry.owed();
        let slot = |entry: &Entry<T, E>| Slot { key: Arc::clone(&entry.key), hash: self.hash(&entry.key) };
        let mut given_up = None;
        let due = entry.stage.due(at, now, owed, &self.timings, |before| {
            given_up = before;
            self.shared.as_ref()?.depart(now)
        });
        if let Some(flight) = given_up {
            found.given_up.push((slot(entry), flight));
        }
        match due {
            Due::Nothing => {}
            Due::Forget if fault("forgotten-unseen") => found.unseen.push(slot(entry)),
            Due::Forget => return Fate::Goes,
            Due::Run => found.runs.push(slot(entry)),
            Due::Extend { sent, write } => found.extensions.push((slot(entry), sent, write)),
        }
        Fate::Stays
    }

    fn act(self: &Arc<Self>, found: Found) {
        for (slot, flight) in found.given_up {
            let opened = self.shared.as_ref().is_some_and(|shared| self.give_up(shared, flight.pass));
            if opened {
                // Here no sink may be called.
                let line = Opened { core: Arc::clone(self), key: slot.key };
                self.scheduler.events().bury(Box::new(line));
            }
        }
        for (slot, sent, write) in found.extensions {
            self.extend(slot, sent, write);
        }
        for slot in found.unseen {
            let gone = self.shard(slot.hash).remove(slot.hash, &slot.key);
            drop(gone);
        }
        for slot in found.runs {
            self.dispatch(slot, Phase::Trailing, Urgency::InTurn);
        }
    }

    /// Gets a run to a thread, through the valve in front if there is one. Never blocks.
    pub(super) fn dispatch(self: &Arc<Self>, slot: Slot, phase: Phase, urgency: Urgency) {
        let core = Arc::clone(self);
        let mut order = Order { core: Some(Arc::clone(self)), slot, phase, permit: None, refusal: None };
        let Some(valve) = &self.valve else { return self.submit(order, urgency) };
        valve.request(move |granted| {
            match granted {
                Ok(permit) => {
                    order.permit = Some(permit);
                    core.submit(order, urgency);
                }
                Err(error) => {
                    order.refusal = Some(ThrottleError::Valve(error));
                    drop(order);
                }
            }
            core.bury();
        });
    }

    fn submit(self: &Arc<Self>, order: Order<T, E>, urgency: Urgency) {
        let run: Task = Box::new(move || order.run());
        let task = match &self.spawner {
            None => run,
            Some(spawner) => {
                let spawner = Arc::clone(spawner);
                Box::new(move || spawner(run))
            }
        };
        self.workers.submit(task, urgency);
    }

    /// Nothing will run for the calls that wait: each gets `error`. What is left of them, to be dropped where the user's
    /// destructors may run.
    #[must_use]
    pub(super) fn refuse(self: &Arc<Self>, slot: &Slot, error: &ThrottleError<E>) -> Option<Refused<T, E>> {
        let mut shard = self.shard(slot.hash);
        let calls = shard.remove(slot.hash, &slot.key)?.calls;
        let spent = shard.tidy(|key| self.hash(key));
        if let Some(calls) = &calls {
            shard.totals.refused += calls.streak.calls() as u64;
            shard.account_for(calls.streak.calls(), calls.waiters.len());
        }
        drop(shard);
        self.bin(spent);
        let mut calls = calls?;
        for (_, waiter) in std::mem::take(&mut calls.waiters) {
            waiter.settle(Err(error.clone()));
        }
        Some(Refused {
            core: Arc::clone(self),
            key: Arc::clone(&slot.key),
            error: in_full(error),
            _calls: calls,
        })
    }

    /// Drops what a shard no longer needs; there are no calls in it.
    pub(super) fn bin(&self, spent: Option<Spent<T, E>>) {
        if let Some(timer) = spent.and_then(|spent| spent.timer) {
            self.scheduler.cancel(timer);
        }
    }

    /// Ends a borrowed hold on the throttle. If every other handle went meanwhile, what its owner gave to it is dropped on the
    /// events thread and not on the scheduler's.
    fn bury(self: Arc<Self>) {
        let scheduler = self.scheduler.clone();
        if let Some(core) = Arc::into_inner(self) {
            scheduler.events().bury(Box::new(core));
        }
    }
}

/// A run on its way to a thread. Dropped without having run, because no thread could be had, a pool of the user's dropped it or
/// the valve refused it, it ends its calls.
struct Order<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> {
    /// Taken once it runs.
    core: Option<Arc<Core<T, E>>>,
    slot: Slot,
    phase: Phase,
    permit: Option<OwnedPermit>,
    refusal: Option<ThrottleError<E>>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Order<T, E> {
    fn run(mut self) {
        let Some(core) = self.core.take() else { return };
        let slot = &self.slot;
        let now = core.clock.now();
        let mut shard = core.shard(slot.hash);
        let write = shard.change(slot.hash, &slot.key, |entry| entry.stage.begin(now)).flatten();
        shard.at_work += usize::from(write.is_some());
        drop(shard);
        if let Some(write) = write {
            let attempt = core.attempt(slot, self.phase, write, self.permit.take());
            // It may hold what a closure panicked with.
            let _ = caught(|| drop(attempt));
        }
    }
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Drop for Order<T, E> {
    fn drop(&mut self) {
        let Some(core) = self.core.take() else { return };
        let refusal = self.refusal.take();
        let error = refusal.unwrap_or_else(|| ThrottleError::Spawn { key: self.slot.key.to_string() });
        if let Some(refused) = core.refuse(&self.slot, &error) {
            core.scheduler.events().bury(Box::new(refused));
        }
        core.bury();
        if let Some(permit) = self.permit.take() {
            give_back(permit);
        }
    }
}

/// Gives back the permit of an order that found no thread. The valve grants it to the next order right here, which may find
/// none either: a long line of them must not become a deep stack.
fn give_back(permit: OwnedPermit) {
    thread_local! {
        static UNUSED: RefCell<Option<Vec<OwnedPermit>>> = const { RefCell::new(None) };
    }
    let mut mine = Some(permit);
    let nested = UNUSED.try_with(|unused| match &mut *unused.borrow_mut() {
        Some(others) => {
            others.extend(mine.take());
            true
        }
        unused => {
            *unused = Some(Vec::new());
            false
        }
    });
    if nested.unwrap_or(true) {
        return;
    }
    while let Some(permit) = mine.take() {
        drop(permit);
        mine = UNUSED.with(|unused| unused.borrow_mut().as_mut().and_then(Vec::pop));
    }
    UNUSED.with(|unused| *unused.borrow_mut() = None);
}

/// The line that the breaker opened, written when it is dropped.
struct Opened<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> {
    core: Arc<Core<T, E>>,
    key: Arc<str>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Drop for Opened<T, E> {
    fn drop(&mut self) {
        self.core.say_unanswered(&self.key);
    }
}

/// With what caused it: that the valve in front refused does not say why.
fn in_full(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Calls that no run will cover.
pub(super) struct Refused<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> {
    core: Arc<Core<T, E>>,
    key: Arc<str>,
    error: String,
    _calls: Box<Calls<T, E>>,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Drop for Refused<T, E> {
    fn drop(&mut self) {
        let fields = [("key", &*self.key), ("error", &*self.error)];
        self.core.logger.write(LogLevel::Error, "run refused", &fields);
    }
}
