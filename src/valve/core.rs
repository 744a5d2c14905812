//! The heart of a valve: its running count, its queue under one lock, and the way of a call through both.

use super::settings::OnStoreError;
use crate::clock::{Clock, Tick};
use crate::error::StoreError;
use crate::event::{Event, Sink};
use crate::os;
use crate::rule::RuleSet;
use crate::scheduler::{Outcome, Place, Queue, Refused, Scheduler, Ticket, TimerKey};
use crate::store::{Counts, Quick, Remote, Store};
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) struct Core {
    pub(super) id: Arc<str>,
    /// Decides between valves whose timers are due at one tick.
    pub(super) number: u64,
    pub(super) me: Weak<Core>,
    /// How many jobs run (or are being asked for), and [`SLOW`]: one word, so that a release and a waiter that sets the
    /// bit always see each other.
    pub(super) word: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) limit: u64,
    /// The greatest cost any rule can admit.
    pub(super) cost_max: u32,
    pub(super) rules: RuleSet,
    pub(super) counts: Arc<dyn Counts>,
    pub(super) store: Arc<dyn Store>,
    pub(super) remote: Option<Remote>,
    pub(super) clock: Clock,
    pub(super) scheduler: Scheduler,
    pub(super) sink: Option<Arc<Sink>>,
    pub(super) on_store_error: OnStoreError,
    /// Why a store without a breaker cannot be asked, if it cannot.
    pub(super) failing: Mutex<Option<StoreError>>,
    pub(super) queue_max: usize,
    pub(super) pause_max: Duration,
    pub(super) state: Mutex<State>,
}

/// Set while somebody waits or asks, or the valve is not open: then every call and every release takes the lock.
pub(super) const SLOW: u64 = 1 << 63;
/// "No limit": more jobs than a process can run.
pub(super) const UNLIMITED: u64 = SLOW - 1;

/// What a started job got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// When the store admitted it: microseconds of the Unix epoch by the store's clock.
    pub(crate) at: u64,
}

pub(super) type Waiting = Arc<Ticket<Grant>>;

pub(super) struct State {
    pub(super) queue: Queue<Waiting>,
    /// Slots taken for jobs that are being asked for: in `word`, but not running yet.
    pub(super) reserved: u64,
    pub(super) wake: Option<(Tick, TimerKey)>,
    pub(super) phase: Phase,
    pub(super) drains: Vec<Drain>,
    /// How many to offer a local store next: doubles while all are admitted.
    pub(super) batch: usize,
    /// A store worker was sent for.
    pub(super) errand: bool,
    /// The scheduler has stopped: nothing that takes time can be waited for.
    pub(super) orphaned: bool,
    pub(super) totals: Totals,
    pub(super) scratch: Scratch,
}

/// Who waits for the last job to end, since when and until when.
pub(super) struct Drain {
    pub(super) since: Tick,
    pub(super) deadline: Option<Tick>,
    pub(super) ticket: Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Takes no new calls; those queued go on.
    Draining,
    Closed,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub(super) timed_out: u64,
    pub(super) cancelled: u64,
    pub(super) refused: u64,
}

/// Memory used anew by each ask.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) places: Vec<Place>,
    pub(super) costs: Vec<u32>,
    pub(super) refused: Vec<Refused<Waiting>>,
}

/// What is to be done once the lock is gone.
#[derive(Default)]
pub(super) struct After {
    pub(super) wakes: Vec<Waiting>,
    pub(super) events: Vec<Event>,
}

impl After {
    pub(super) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.events.is_empty()
    }

    pub(super) fn act(&mut self, core: &Core) {
        for ticket in self.wakes.drain(..) {
            ticket.wake();
        }
        for event in self.events.drain(..) {
            core.tell(event);
        }
    }
}

impl State {
    pub(super) fn new() -> State {
        State {
            queue: Queue::new(),
            reserved: 0,
            wake: None,
            phase: Phase::Open,
            drains: Vec::new(),
            batch: 1,
            errand: false,
            orphaned: false,
            totals: Totals::default(),
            scratch: Scratch::default(),
        }
    }
}

impl Core {
    /// Starts a job without a lock, if nobody waits, a slot is free, and the store can. What it does not decide is
    /// decided by `admit`.
    #[inline]
    pub(super) fn quick(&self, cost: u32) -> Quick {
        if cost.wrapping_sub(1) >= self.cost_max {
            return Quick::Unable;
        }
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // With the bit set, `word` is above every limit.
            if word >= self.limit {
                return Quick::Unable;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        let quick = self.counts.quick(&self.rules, cost);
        match quick {
            Quick::Granted(_) => {
                self.started.fetch_add(1, Ordering::Relaxed);
            }
            Quick::Refused(_) | Quick::Unable => self.release(),
        }
        quick
    }

    /// Gives a slot back. Called without locks.
    #[inline]
    pub(super) fn release(&self) {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & SLOW != 0 {
            self.look();
        }
    }

    /// Something changed: lets the head ask if it may.
    pub(super) fn look(&self) {
        self.drive(self.state.lock());
    }

    /// How many jobs run or are being asked for.
    pub(super) fn busy(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !SLOW
    }

    pub(super) fn free(&self, _state: &State) -> usize {
        let free = self.limit.saturating_sub(self.busy());
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(sink) = &self.sink {
            self.scheduler.events().send(sink, event);
        }
    }

    /// Called at the end of every hold of the lock that may have changed something: what may be quick is quick again, and
    /// who waits for the last job to end is told.
    pub(super) fn settle_down(&self, state: &mut State, after: &mut After) {
        if state.orphaned && (!state.queue.is_empty() || state.phase != Phase::Closed) {
            self.word.fetch_or(SLOW, Ordering::AcqRel);
            self.fail_all(state, after);
        }
        if state.queue.is_idle() && state.phase == Phase::Open {
            self.word.fetch_and(!SLOW, Ordering::AcqRel);
        }
        if !state.drains.is_empty() && state.queue.is_idle() && self.busy() == 0 {
            for drain in std::mem::take(&mut state.drains) {
                if drain.ticket.settle(Outcome::Granted(Grant { at: 0 })) {
                    after.wakes.push(drain.ticket);
                }
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        let wake = self.state.lock().wake.take();
        if let Some((_, key)) = wake {
            self.scheduler.cancel(key);
        }
    }
}
