//! The heart of a throttle: its keys in shards, and how a call enters.

use super::breaker::Pass;
use super::calls::{Calls, Latch, Settled, Waiter};
use super::ending::Ending;
use super::engine::Engine;
use super::error::ThrottleError;
use super::inside;
use super::job::{Phase, Ran, Work};
use super::log::{LogLevel, Logger};
use super::machine::{Owed, Sharing, Stage, Timings};
use super::run::Outcome;
use super::settings::{Spawner, ThrottleWindowBuilder};
use super::shard::{Entry, Shard, Slot};
use super::shared::Shared;
use super::stats::ThrottleStats;
use super::workers::{Urgency, Workers};
use crate::clock::{Clock, LONGEST, Tick, duration, ticks_up};
use crate::event::caught;
use crate::os;
use crate::planted::fault;
use crate::scheduler::{Scheduler, Timed, Timer, TimerKey, is_indispensable};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::valve::Valve;
#[cfg(any(test, feature = "testing"))]
use foldhash::fast::FixedState;
use foldhash::fast::RandomState;
use std::fmt::Display;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64 as Counter, Ordering as Order};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(super) struct Core<T, E> {
    pub(super) prefix: Box<str>,
    pub(super) timings: Timings,
    /// What is shared with other instances; `None` keeps the windows here alone.
    pub(super) shared: Option<Shared>,
    pub(super) valve: Option<Valve>,
    pub(super) spawner: Option<Spawner>,
    pub(super) workers: Workers,
    pub(super) logger: Logger,
    /// Until when an unusual number of keys is not worth a line again.
    large_said: AtomicU64,
    pub(super) shards: Box<[Padded<T, E>]>,
    hasher: Hasher,
    /// Those who wait for the last run to end.
    pub(super) endings: Mutex<Vec<Ending>>,
    /// The scheduler has stopped: no window ends any more.
    orphaned: AtomicBool,
    /// Decides between throttles whose timers are due at one tick.
    number: u64,
    pub(super) clock: Clock,
    pub(super) scheduler: Scheduler,
}

/// A shard on cache lines of its own, because any thread may write any of them.
#[repr(align(128))]
pub(super) struct Padded<T, E>(pub(super) Mutex<Shard<T, E>>);

/// What is kept of an extension that is on its way.
pub(super) struct Flight {
    pub(super) pass: Pass,
    /// The thread that waits for it to land.
    pub(super) landed: Option<Arc<Latch>>,
}

/// Hashes keys under a secret; on a clock that a test turns always alike, so that the course of events is.
enum Hasher {
    Secret(RandomState),
    #[cfg(any(test, feature = "testing"))]
    Fixed(FixedState),
}

/// Whether a call waits for the outcome.
#[derive(Debug, Clone, Copy)]
enum Waits {
    No,
    ForEver,
    Until(Tick),
}

/// How a call has entered.
enum Entered<T, E> {
    /// A run to come covers it. The closure that its own replaced is the user's to drop.
    Joined { replaced: Option<Work<T, E>>, waiter: Option<Arc<Waiter<T, E>>> },
    /// The key was idle and nobody is to be asked: it runs at once.
    Runs { slot: Slot, work: Work<T, E> },
    /// The key was idle.
    Leads { slot: Slot, waiter: Option<Arc<Waiter<T, E>>> },
    /// The closure is to be dropped without the lock.
    Destroyed(Work<T, E>),
}

const SHARDS: usize = 64;
/// The longest key, in bytes.
const KEY_MAX: usize = 10_240;
/// So many keys at once are unusual.
const KEYS_USUAL: usize = 5_000;
/// How often that is worth a line.
const LARGE_EVERY: Tick = 60_000_000;

/// Timers of one tick: valves' first, then throttles', then deadlines.
const ORDER: u64 = 1 << 62;
const DEADLINES_LAST: u64 = 1 << 63;

/// Plain even under the model checker: it orders throttles and decides nothing.
static NUMBER: Counter = Counter::new(1);

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    pub(super) fn new(
        settings: ThrottleWindowBuilder<T, E>,
        clock: Clock,
        scheduler: Scheduler,
    ) -> Arc<Core<T, E>> {
        let sharing = if settings.engine.is_some() { Sharing::Shared } else { Sharing::Private };
        let timings = Timings::new(ticks_up(settings.window), sharing, ticks_up(settings.engine_timeout));
        let prefix = settings.prefix;
        let name = settings.name.unwrap_or_else(|| {
            prefix.strip_suffix(':').filter(|_| !fault("T28")).unwrap_or(&prefix).to_owned()
        });
        // With a spawner one thread hands the tasks over, so that no user code runs on the scheduler.
        let workers = if settings.spawner.is_some() { 1 } else { settings.workers };
        Arc::new(Core {
            prefix: prefix.into(),
            timings,
            shared: settings.engine.map(|engine: Arc<dyn Engine>| Shared::new(engine, &timings, &clock)),
            valve: settings.valve,
            spawner: settings.spawner,
            workers: Workers::new("valve-run", workers, &clock),
            logger: Logger::new(name, settings.log),
            large_said: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::new()))).collect(),
            hasher: Hasher::new(&clock),
            endings: Mutex::new(Vec::new()),
            orphaned: AtomicBool::new(false),
            number: NUMBER.fetch_add(1, Order::Relaxed),
            clock,
            scheduler,
        })
    }

    pub(super) fn exec(self: &Arc<Self>, key: &str, work: Work<T, E>) -> Result<Ran, ThrottleError<E>> {
        let hash = self.admit(key)?;
        match self.enter(hash, key, work, Waits::No) {
            Entered::Joined { replaced, .. } => {
                // A destructor of another caller's that panics must not end this call.
                let _ = caught(|| drop(replaced));
                Ok(Ran::Later)
            }
            Entered::Runs { slot, work } => {
                self.note_size(hash);
                match self.run_at_once(&slot, work) {
                    Outcome::Gave(_) => Ok(Ran::Now),
                    Outcome::Failed(error) => Err(ThrottleError::Run(error)),
                    Outcome::Panicked(payload) => std::panic::resume_unwind(payload),
                }
            }
            Entered::Leads { slot, .. } => {
                self.note_size(hash);
                self.lead(&slot)
            }
            Entered::Destroyed(_work) => Err(ThrottleError::Destroyed { key: key.to_owned() }),
        }
    }

    pub(super) fn wait(
        self: &Arc<Self>,
        key: &str,
        work: Work<T, E>,
        timeout: Option<Duration>,
    ) -> Settled<T, E> {
        let hash = self.admit(key)?;
        let waits = match timeout {
            Some(Duration::ZERO) if !fault("T48") => {
                let reason = "zero leaves no time for a run; use exec, which does not wait";
                return Err(ThrottleError::invalid("timeout", reason));
            }
            Some(timeout) if timeout < duration(LONGEST) => Waits::Until(ticks_up(timeout)),
            _ => Waits::ForEver,
        };
        if (inside::runs_key(self.address(), key) && !fault("T101")) || is_indispensable() {
            return Err(ThrottleError::WouldDeadlock { key: key.to_owned() });
        }
        let since = self.clock.now();
        let waiter = match self.enter(hash, key, work, waits) {
            Entered::Joined { replaced, waiter } => {
                let _ = caught(|| drop(replaced));
                waiter
            }
            Entered::Runs { slot, work } => {
                self.note_size(hash);
                return match self.run_at_once(&slot, work) {
                    Outcome::Gave(value) => Ok(value),
                    Outcome::Failed(error) => Err(ThrottleError::Run(error)),
                    Outcome::Panicked(payload) => std::panic::resume_unwind(payload),
                };
            }
            Entered::Leads { slot, waiter } => {
                self.note_size(hash);
                if matches!(waits, Waits::Until(_)) && !fault("T47") {
                    self.dispatch(slot, Phase::Leading, Urgency::AtOnce);
                } else {
                    // What it gives, the waiter gets too.
                    let _ = self.lead(&slot);
                }
                waiter
            }
            Entered::Destroyed(_work) => None,
        };
        let Some(waiter) = waiter else { return Err(ThrottleError::Destroyed { key: key.to_owned() }) };
        let deadline = match waits {
            Waits::Until(timeout) => self.set_deadline(&waiter, since + timeout),
            Waits::No | Waits::ForEver => None,
        };
        let settled = waiter.wait();
        if let Some(timer) = deadline.filter(|_| !fault("T46")) {
            self.scheduler.cancel(timer);
        }
        settled
    }

    pub(super) fn stats(&self) -> ThrottleStats {
        let mut stats = ThrottleStats::default();
        for shard in &self.shards {
            shard.0.lock().add_to(&mut stats);
        }
        stats
    }

    /// What every call asks first. Gives the key's hash.
    #[inline]
    fn admit(&self, key: &str) -> Result<u64, ThrottleError<E>> {
        if os::forked() {
            return Err(ThrottleError::Forked);
        }
        if key.is_empty() || (key.len() > KEY_MAX && !fault("T35")) {
            let reason = format!("{} bytes; 1 to {KEY_MAX} are allowed", key.len());
            return Err(ThrottleError::invalid("key", reason));
        }
        Ok(self.hash(key))
    }

    /// The critical section in which every call begins: it joins those that wait for a run, or leads.
    #[inline]
    fn enter(self: &Arc<Self>, hash: u64, key: &str, work: Work<T, E>, waits: Waits) -> Entered<T, E> {
        let mut shard = self.shard(hash);
        if shard.destroyed {
            drop(shard);
            return Entered::Destroyed(work);
        }
        shard.totals.calls += 1;
        shard.totals.coalesced += 1;
        let Some(entry) = shard.find_mut(hash, key) else {
            return self.enter_idle(shard, Slot { key: key.into(), hash }, work, waits);
        };
        if let Some(calls) = &mut entry.calls {
            let waiter = self.waiter(&entry.key, waits);
            let before = calls.waiters.len();
            let replaced = Some(calls.join(work, waiter.clone()));
            let after = calls.waiters.len();
            shard.waiters = (shard.waiters + after).saturating_sub(before);
            return Entered::Joined { replaced, waiter };
        }
        let slot = Slot { key: Arc::clone(&entry.key), hash };
        if entry.stage.has_passed(self.clock.now(), Owed::Nothing) {
            shard.remove(hash, key);
            return self.enter_idle(shard, slot, work, waits);
        }
        let waiter = self.waiter(&slot.key, waits);
        let calls = Calls::first(work, waiter.clone(), Arc::clone(self));
        shard.waiters += usize::from(waiter.is_some());
        shard.change(hash, key, |entry| entry.calls = Some(calls));
        Entered::Joined { replaced: None, waiter }
    }

    /// The call of an idle key.
    #[inline]
    fn enter_idle(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard<T, E>>,
        slot: Slot,
        work: Work<T, E>,
        waits: Waits,
    ) -> Entered<T, E> {
        shard.totals.coalesced -= 1;
        let runs = self.shared.is_none() && self.valve.is_none() && !matches!(waits, Waits::Until(_));
        let (entered, stage, calls) = if runs {
            shard.totals.leading += 1;
            shard.account_for(1, 0);
            (Entered::Runs { slot: slot.clone(), work }, Stage::Running(None), None)
        } else {
            let waiter = self.waiter(&slot.key, waits);
            let calls = Calls::first(work, waiter.clone(), Arc::clone(self));
            let stage = Stage::Acquiring(Phase::Leading);
            shard.waiters += usize::from(waiter.is_some());
            (Entered::Leads { slot: slot.clone(), waiter }, stage, Some(calls))
        };
        // A worker is at work from when it takes the run up.
        shard.at_work += usize::from(!matches!(waits, Waits::Until(_)));
        let entry = Entry { key: slot.key, stage, calls };
        shard.insert(slot.hash, entry, |key| self.hash(key));
        entered
    }

    fn waiter(&self, key: &Arc<str>, waits: Waits) -> Option<Arc<Waiter<T, E>>> {
        let timeout = match waits {
            Waits::No => return None,
            Waits::ForEver => Tick::MAX,
            Waits::Until(timeout) => timeout,
        };
        Some(Waiter::new(&self.clock, Arc::clone(key), timeout))
    }

    fn set_deadline(self: &Arc<Self>, waiter: &Arc<Waiter<T, E>>, at: Tick) -> Option<TimerKey> {
        let weak = Arc::downgrade(waiter);
        let owner: Weak<dyn Timed> = weak;
        let timer = self.scheduler.set(at, DEADLINES_LAST | self.number, Timer { owner, timer: 0 }).ok();
        if timer.is_none() {
            self.destroy();
        }
        timer
    }

    /// Sets the timer of a shard, unless it comes early enough.
    pub(super) fn arm(self: &Arc<Self>, shard: &mut Shard<T, E>, hash: u64, at: Tick) {
        if shard.armed.is_some_and(|(when, _)| when <= at || fault("timer-not-moved-up")) {
            return;
        }
        if let Some((_, timer)) = shard.armed.take() {
            self.scheduler.cancel(timer);
        }
        let index = shard_of(hash);
        let weak = Arc::downgrade(self);
        let owner: Weak<dyn Timed> = weak;
        let order = ORDER | (self.number << 6) | index as u64;
        match self.scheduler.set(at, order, Timer { owner, timer: index as u64 }) {
            Ok(timer) => shard.armed = Some((at, timer)),
            Err(_) => self.orphaned.store(true, Ordering::Relaxed),
        }
    }

    /// Called without a lock after timers were set: without a scheduler nothing would ever run.
    pub(super) fn look_after_orphans(self: &Arc<Self>) {
        if self.is_orphaned() {
            self.destroy();
        }
    }

    pub(super) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Relaxed)
    }

    /// A key was added: says so if there are unusually many.
    fn note_size(&self, hash: u64) {
        if !self.logger.is_on() {
            return;
        }
        // Keys spread evenly, so this shard alone tells whether the sum is worth making.
        let may_be_large = self.shard(hash).len() > KEYS_USUAL / SHARDS / 4;
        let now = self.clock.now();
        let quiet_until = self.large_said.load(Ordering::Relaxed);
        if !may_be_large || now < quiet_until {
            return;
        }
        let keys = self.stats().keys;
        let next = now + LARGE_EVERY;
        let turn = || {
            let order = Ordering::Relaxed;
            self.large_said.compare_exchange(quiet_until, next, order, order).is_ok()
        };
        if keys > KEYS_USUAL && turn() {
            self.logger.write(LogLevel::Debug, "unusually many keys", &[("keys", &keys.to_string())]);
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &str) -> u64 {
        match &self.hasher {
            Hasher::Secret(state) => state.hash_one(key),
            #[cfg(any(test, feature = "testing"))]
            Hasher::Fixed(state) => state.hash_one(key),
        }
    }

    #[inline]
    pub(super) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<T, E>> {
        self.shards[shard_of(hash)].0.lock()
    }

    /// What a thread knows this throttle by.
    pub(super) fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

impl<T, E> Core<T, E> {
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The timers of windows that nobody waits for go with the throttle: they may be due in weeks.
impl<T, E> Drop for Core<T, E> {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        for shard in &self.shards {
            let armed = shard.0.lock().armed.take();
            if let Some((_, timer)) = armed {
                self.scheduler.cancel(timer);
            }
        }
    }
}

/// Bits that the table does not go by.
#[inline]
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// A hash whose shard this is.
pub(super) fn hash_in(shard: usize) -> u64 {
    (shard as u64) << 40
}

impl Hasher {
    #[cfg(not(any(test, feature = "testing")))]
    fn new(_clock: &Clock) -> Hasher {
        Hasher::Secret(RandomState::default())
    }

    #[cfg(any(test, feature = "testing"))]
    fn new(clock: &Clock) -> Hasher {
        match clock {
            Clock::System => Hasher::Secret(RandomState::default()),
            Clock::Virtual(_) => Hasher::Fixed(FixedState::default()),
        }
    }
}
