//! One id of a [`ChaosStore`](super::ChaosStore): each call takes its drawn course.

use super::Shared;
use super::course::{Course, Draw, course};
use crate::clock::ticks_up;
use crate::error::{Executed, StoreError, StoreErrorKind};
use crate::rule::RuleSet;
use crate::store::{Answer, Ask, Counts, Deadline, Lease, Slots, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) struct Opened {
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Arc<dyn Counts>,
}

/// The most threads that execute something later; what would need one more never arrives.
const LATER_MAX: usize = 64;

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        count(&self.shared.asks);
        self.call(&ask.deadline, || Command::Admit(Box::new(Kept::of(ask))), || self.inner.admit(ask, answer))
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        count(&self.shared.renewals);
        let execute = || self.inner.renew(leases, deadline.clone(), held);
        self.call(&deadline, || Command::Renew(leases.to_vec()), execute)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        count(&self.shared.releases);
        self.call(&Deadline::never(), || Command::Release(tokens.to_vec()), || self.inner.release(tokens))
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.call(&deadline, || Command::Pause(length), || self.inner.pause(length, deadline.clone()))
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.call(&deadline, || Command::Resume, || self.inner.resume(deadline.clone()))
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Opened {
    fn call<T>(
        &self,
        deadline: &Deadline,
        command: impl Fn() -> Command,
        execute: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let shared = &self.shared;
        shared.thaw();
        let number = shared.calls.fetch_add(1, Ordering::Relaxed);
        let faults = shared.faults.lock().clone();
        let timeout = ticks_up(faults.remote.timeout());
        let left = deadline.left().map_or(timeout, ticks_up);
        let (course, doubled) = course(&mut Draw::new(shared.seed, number), &faults, left, timeout);
        let double = || {
            if let (Some(after), Some(command)) = (doubled, doubled.and_then(|_| command().releases())) {
                self.later(command, after);
            }
        };
        let result = match course {
            Course::Refused { at } => {
                shared.sleep(at);
                Err(StoreError::new(
                    StoreErrorKind::Unreachable,
                    Executed::No,
                    "the call was chosen to be refused",
                ))
            }
            Course::Late { until, at } => {
                let arrives = if faults.not_after { command().releases() } else { Some(command()) };
                if let Some(command) = arrives {
                    self.later(command, at);
                }
                shared.sleep(until);
                Err(timed_out())
            }
            Course::Lost { at, until } => {
                shared.sleep(at);
                let result = execute();
                double();
                shared.sleep(until - at);
                drop(result);
                Err(timed_out())
            }
            Course::Answered { at, back } => {
                shared.sleep(at);
                let result = execute();
                double();
                shared.sleep(back - at);
                result
            }
        };
        shared.thaw();
        result
    }

    /// Has a thread execute it after so long.
    fn later(&self, command: Command, after: u64) {
        if self.shared.later.fetch_add(1, Ordering::Relaxed) >= LATER_MAX {
            self.shared.later.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let (shared, inner) = (Arc::clone(&self.shared), Arc::clone(&self.inner));
        let spawned = self.shared.clock.spawn("valve-chaos", None, move || {
            shared.sleep(after);
            command.execute(&*inner);
            shared.later.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.shared.later.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, Executed::Unknown, "the call was chosen to get no reply in time")
}

/// A call, kept beyond the caller's wait for it.
enum Command {
    Admit(Box<Kept>),
    Renew(Vec<Lease>),
    Release(Vec<Token>),
    Pause(Duration),
    Resume,
}

impl Command {
    /// The part of it that counts however late it comes.
    fn releases(self) -> Option<Command> {
        match self {
            Command::Admit(ask) if !ask.releases.is_empty() => Some(Command::Release(ask.releases)),
            Command::Release(tokens) => Some(Command::Release(tokens)),
            _ => None,
        }
    }

    /// Nobody waits for what comes of it.
    fn execute(&self, counts: &dyn Counts) {
        let _ = match self {
            Command::Admit(ask) => ask.execute(counts),
            Command::Renew(leases) => counts.renew(leases, Deadline::never(), &mut Vec::new()),
            Command::Release(tokens) => counts.release(tokens),
            Command::Pause(length) => counts.pause(*length, Deadline::never()).map(drop),
            Command::Resume => counts.resume(Deadline::never()),
        };
    }
}

/// An [`Ask`] that owns what it is about.
struct Kept {
    rules: RuleSet,
    costs: Vec<u32>,
    /// Limit, TTL, floor.
    slots: Option<(u32, Duration, u64)>,
    tokens: Vec<Token>,
    releases: Vec<Token>,
    waits: bool,
}

impl Kept {
    fn of(ask: &Ask<'_>) -> Kept {
        Kept {
            rules: ask.rules.clone(),
            costs: ask.costs.to_vec(),
            slots: ask.slots.map(|slots| (slots.limit, slots.ttl, slots.floor)),
            tokens: ask.slots.map_or(Vec::new(), |slots| slots.tokens.to_vec()),
            releases: ask.releases.to_vec(),
            waits: ask.waits,
        }
    }

    fn execute(&self, counts: &dyn Counts) -> Result<(), StoreError> {
        let mut ask = Ask::new(&self.rules, &self.costs);
        ask.releases = &self.releases;
        ask.waits = self.waits;
        ask.slots = self.slots.map(|(limit, ttl, floor)| {
            let mut slots = Slots::new(limit, ttl, &self.tokens);
            slots.floor = floor;
            slots
        });
        counts.admit(&ask, &mut Answer::default())
    }
}
