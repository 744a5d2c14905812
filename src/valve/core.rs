//! The heart of a valve: its running count, its queue under one lock, and the way of a call through both.

use super::leasing::Names;
use super::limits::{Fast, Global, Limits};
use super::recount::Recount;
use super::settings::OnStoreError;
use super::stripes::Begun;
use crate::clock::{Clock, Tick};
use crate::error::StoreError;
use crate::event::{Event, Sink};
use crate::lease::{Lease, Leases};
use crate::os;
use crate::planted::fault;
use crate::rule::RuleSet;
use crate::scheduler::{Outcome, Place, Queue, Refused, Scheduler, Ticket, TimerKey};
use crate::store::{Counts, Quick, Remote, Store, Token};
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

pub(crate) struct Core {
    pub(super) id: Arc<str>,
    /// Decides between valves whose timers are due at one tick.
    pub(super) number: u64,
    pub(super) me: Weak<Core>,
    /// What the lock-free path reads and writes.
    pub(super) fast: Fast,
    pub(super) counts: Arc<dyn Counts>,
    /// Calls refused without a lock; the others are in the totals.
    pub(super) refused: AtomicU64,
    pub(super) store: Arc<dyn Store>,
    pub(super) remote: Option<Remote>,
    /// Names for leases, from when the first may be taken.
    pub(super) names: OnceLock<Names>,
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
pub(super) const SLOW: u64 = 1 << 31;
/// The bits that count running jobs.
pub(super) const RUNNING: u64 = SLOW - 1;
/// "No limit": more jobs than a process can run.
pub(super) const UNLIMITED: u64 = RUNNING;
/// One job that ended, in the upper half of the word.
pub(super) const ENDED: u64 = 1 << 32;
/// So many have ended that the count must be moved to the totals: the next release takes the lock and does.
pub(super) const FULL: u64 = 1 << 63;

/// What a started job got.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// When the store admitted it: microseconds of the Unix epoch by the store's clock.
    pub(crate) at: u64,
    /// Its hold on a fleet-wide slot.
    pub(crate) lease: Option<Arc<Lease>>,
    /// It is counted in the stripes and not in the word.
    pub(super) striped: bool,
}

/// How the lock-free path ended.
pub(super) enum Direct {
    Granted(Grant),
    /// Not for so many microseconds, because of the only rule.
    Refused(u64),
    /// The call takes the long way.
    Unable,
}

pub(super) type Waiting = Arc<Ticket<Grant>>;

pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) queue: Queue<Waiting>,
    /// How soon a waiter for a fleet-wide slot asks again if nobody tells it to.
    pub(super) recheck: Tick,
    /// Slots taken for jobs that are being asked for: in `word`, but not running yet.
    pub(super) reserved: u64,
    /// Jobs that a limit counts now are counted in the stripes: they started before there was one.
    pub(super) leftover: bool,
    pub(super) recount: Recount,
    /// Pauses observed here whose writes have not ended: a resume that is heard of meanwhile may not mean them.
    pub(super) pauses_due: usize,
    pub(super) wake: Option<(Tick, TimerKey)>,
    pub(super) leases: Leases,
    /// When a notice was last heeded, and the timer for one that came soon after.
    pub(super) noticed: Option<Tick>,
    pub(super) notice_timer: Option<TimerKey>,
    /// The timer for what the leases need next.
    pub(super) lease_timer: Option<(Tick, TimerKey)>,
    /// A lease thread was sent for to renew.
    pub(super) renewal_due: bool,
    /// When releases that no ask took along are sent.
    pub(super) release_at: Option<Tick>,
    pub(super) phase: Phase,
    pub(super) drains: Vec<Drain>,
    /// How many to offer a local store next: doubles while all are admitted.
    pub(super) batch: usize,
    /// How often in a row the store failed for this valve alone.
    pub(super) failures: u32,
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
    pub(super) ended: u64,
}

/// Memory used anew by each ask.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) places: Vec<Place>,
    pub(super) offer: Offer,
    pub(super) refused: Vec<Refused<Waiting>>,
}

/// One ask, as it was under the lock.
#[derive(Default)]
pub(super) struct Offer {
    pub(super) rules: RuleSet,
    pub(super) costs: Vec<u32>,
    pub(super) global: Option<Global>,
    /// With fleet-wide slots: a name for each job's lease.
    pub(super) tokens: Vec<Token>,
    pub(super) releases: Vec<Token>,
    pub(super) floor: u64,
    /// Whether those refused will wait.
    pub(super) waits: bool,
}

/// What is to be done once the lock is gone.
#[derive(Default)]
pub(super) struct After {
    pub(super) wakes: Vec<Waiting>,
    pub(super) events: Vec<Event>,
    /// Releases are to be made now, on a store that does not block.
    pub(super) release: bool,
}

impl After {
    pub(super) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.events.is_empty() && !self.release
    }

    pub(super) fn act(&mut self, core: &Core) {
        for ticket in self.wakes.drain(..) {
            ticket.wake();
        }
        for event in self.events.drain(..) {
            core.tell(event);
        }
        if std::mem::take(&mut self.release) {
            core.send_releases();
        }
    }
}

impl State {
    pub(super) fn new(limits: Limits, recheck: Tick) -> State {
        State {
            limits,
            queue: Queue::new(),
            recheck,
            reserved: 0,
            leftover: false,
            recount: Recount::default(),
            pauses_due: 0,
            wake: None,
            leases: Leases::default(),
            noticed: None,
            notice_timer: None,
            lease_timer: None,
            renewal_due: false,
            release_at: None,
            phase: Phase::Open,
            drains: Vec::new(),
            batch: 1,
            failures: 0,
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
    pub(super) fn quick(&self, cost: u32) -> Direct {
        let fast = &self.fast;
        if u64::from(cost).wrapping_sub(1) >= fast.cost_max.load(Ordering::Relaxed) {
            return Direct::Unable;
        }
        let rules = fast.striped.load(Ordering::Acquire);
        if rules != 0 {
            if fast.word.load(Ordering::Acquire) & SLOW != 0 {
                return Direct::Unable;
            }
            if let Some(begun) = fast.stripes.begin() {
                return self.quick_striped(begun, rules, cost);
            }
        }
        self.quick_counted(cost)
    }

    /// Without a limit on jobs. The store's decision by a rule is what orders this call and whoever closes this way: see
    /// [`Counts::part_quick`].
    #[inline]
    fn quick_striped(&self, begun: Begun<'_>, rules: u64, cost: u32) -> Direct {
        let quick = self.counts.quick(rules, cost);
        let closed = self.fast.striped.load(Ordering::Acquire) != rules;
        match quick {
            Quick::Granted(at) if !closed || self.is_unlimited() => {
                return Direct::Granted(Grant { at, lease: None, striped: true });
            }
            _ => begun.withdraw(),
        }
        if closed {
            self.look();
        }
        match quick {
            Quick::Refused(wait) => Direct::Refused(wait),
            // Who closed this way may have counted without it: what it spent stays spent.
            Quick::Granted(_) | Quick::Unable => Direct::Unable,
        }
    }

    #[cold]
    fn is_unlimited(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Open && state.limits.is_unlimited()
    }

    #[inline]
    fn quick_counted(&self, cost: u32) -> Direct {
        let fast = &self.fast;
        let (local, rules) = (fast.local.load(Ordering::Acquire), fast.rules.load(Ordering::Relaxed));
        let mut word = fast.word.load(Ordering::Acquire);
        loop {
            // With the slow bit set, this is above every limit.
            if word & (SLOW | RUNNING) >= local {
                return Direct::Unable;
            }
            match fast.word.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        // A limit set between the two reads counts others without this one.
        if fast.local.load(Ordering::Relaxed) == local {
            match self.counts.quick(rules, cost) {
                Quick::Granted(at) => return Direct::Granted(Grant { at, lease: None, striped: false }),
                Quick::Refused(wait) => {
                    self.withdraw();
                    return Direct::Refused(wait);
                }
                Quick::Unable => {}
            }
        }
        self.withdraw();
        Direct::Unable
    }

    /// Gives back a slot that no job ran in.
    #[cold]
    fn withdraw(&self) {
        if self.fast.word.fetch_sub(1, Ordering::AcqRel) & SLOW != 0 {
            self.look();
        }
    }

    /// A job ended: gives its slot back. Called without locks.
    #[inline]
    pub(super) fn release(&self, striped: bool) {
        if self.count_end(striped) {
            self.look();
        }
    }

    /// Counts a slot as given back; whether somebody must look at the queue, unless the caller does.
    #[inline]
    pub(super) fn count_end(&self, striped: bool) -> bool {
        if striped {
            self.fast.stripes.end();
            // Who set the bit just now may be missed: see `recount`.
            self.fast.word.load(Ordering::Acquire) & SLOW != 0
        } else {
            self.fast.word.fetch_add(ENDED - 1, Ordering::AcqRel) & (SLOW | FULL) != 0
        }
    }

    /// Something changed: lets the head ask if it may.
    pub(super) fn look(&self) {
        self.drive(self.state.lock());
    }

    /// How many jobs that a limit counts run or are being asked for.
    pub(super) fn busy(&self, state: &State) -> u64 {
        let leftover = if state.leftover { self.fast.stripes.running() } else { 0 };
        self.fast.running() + leftover
    }

    pub(super) fn free(&self, state: &State) -> usize {
        let free = state.limits.local.saturating_sub(self.busy(state));
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
        if self.fast.word.load(Ordering::Relaxed) & FULL != 0 {
            self.fast.word.fetch_sub(FULL, Ordering::AcqRel);
            state.totals.ended += FULL / ENDED;
        }
        if state.orphaned && (!state.queue.is_empty() || state.phase != Phase::Closed) {
            self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
            self.fail_all(state, after);
        }
        let leftover = state.leftover;
        self.count_leftover(state);
        if state.queue.is_idle() && state.phase == Phase::Open {
            self.fast.word.fetch_and(!SLOW, Ordering::AcqRel);
        }
        let drained = || self.fast.running() == 0 && self.fast.stripes.running() == 0;
        let backs_off = state.queue.backing_off() > 0 && !fault("back-offs-not-owed");
        let owed = backs_off || !state.queue.is_idle();
        if !state.drains.is_empty() && !owed && drained() {
            for drain in std::mem::take(&mut state.drains) {
                if drain.ticket.settle(Outcome::Granted(Grant { at: 0, lease: None, striped: false })) {
                    after.wakes.push(drain.ticket);
                }
            }
        }
        self.plan_recount(state, leftover);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        let mut state = self.state.lock();
        let timers = [state.wake.take(), state.lease_timer.take()].map(|timer| timer.map(|(_, key)| key));
        let others = [state.recount.timer.take(), state.notice_timer.take()];
        let mut unsent = Vec::new();
        state.leases.stranded();
        state.leases.unsent(usize::MAX, self.clock.now(), &mut unsent);
        drop(state);
        self.send_last_releases(unsent);
        for key in timers.into_iter().chain(others).flatten() {
            self.scheduler.cancel(key);
        }
    }
}
