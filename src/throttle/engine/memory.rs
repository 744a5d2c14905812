//! The engine of one process: a map in shards whose keys expire by the monotonic clock.

#[cfg(test)]
mod tests;

use super::{Engine, SetOptions};
use crate::clock::{Clock, Tick, ticks_up};
use crate::error::{Error, Executed, StoreError, StoreErrorKind};
use crate::os;
use crate::planted::fault;
use crate::scheduler::{Scheduler, Timed, Timer, TimerKey};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
#[cfg(any(test, feature = "testing"))]
use crate::testing::ManualClock;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Windows in this process's memory, for several throttles to share. A throttle that is given no engine keeps its windows
/// likewise, where no other can see them.
///
/// Clones are the same engine: two throttles with the same prefix on it behave like two instances of a service. Expiry goes
/// by the monotonic clock, so the system's time may jump as it likes. Expired keys are as good as gone; what they occupy is
/// given back when they are next read or by a sweep, every 60 s while there are keys. The sweep runs on the process's
/// scheduler thread, a part at a time, and needs no thread of its own.
///
/// Its calls never block and never fail, but for [`StoreErrorKind::Other`] in a forked child.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Engine, MemoryEngine, SetOptions};
///
/// let engine = MemoryEngine::new();
/// let minute = SetOptions::new(Duration::from_secs(60));
/// assert!(engine.set("job", "1", minute.if_absent())?);
/// assert!(!engine.clone().set("job", "2", minute.if_absent())?);
/// assert_eq!(engine.get("job")?.as_deref(), Some("1"));
/// # Ok::<(), valve::StoreError>(())
/// ```
#[derive(Clone)]
pub struct MemoryEngine {
    shared: Arc<Shared>,
    #[cfg(any(test, feature = "testing"))]
    manual: Option<ManualClock>,
}

/// Settings of a [`MemoryEngine`].
#[derive(Debug, Clone)]
pub struct MemoryEngineBuilder {
    sweep_interval: Duration,
    #[cfg(any(test, feature = "testing"))]
    manual: Option<ManualClock>,
}

const SHARDS: usize = 64;

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

struct Shared {
    clock: Clock,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// Keys in all shards, expired ones included. Changed under their shards' locks.
    keys: AtomicU64,
    sweep_interval: Tick,
    sweeper: Mutex<Sweeper>,
}

/// Keys whose hash ends alike. Its own cache line: threads on different keys should not meet.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    entries: HashMap<Box<str>, Entry>,
}

struct Entry {
    value: String,
    /// From this tick on it is gone.
    expires: Tick,
}

/// The one timer that sweeps. It is set exactly while there are keys: whoever adds the first or removes the last looks,
/// under this lock, at how many there are *then*, so that the last to look leaves it right.
struct Sweeper {
    /// `None` until the first key: an engine that is never used starts no thread.
    scheduler: Option<Scheduler>,
    timer: Option<TimerKey>,
    /// Counts starts and stops: a timer that was due as it was stopped must not go on beside its successor.
    round: u64,
}

/// At one tick a sweep comes last: it changes nothing for anybody.
const SWEEPS_LAST: u64 = u64::MAX;

/// After so many keys a sweep lets the scheduler serve other timers first. A part takes about a millisecond at most.
const SWEPT_AT_ONCE: usize = 10_000;

impl MemoryEngine {
    /// An empty engine that sweeps every 60 s.
    #[must_use]
    pub fn new() -> MemoryEngine {
        MemoryEngine::on(Clock::System, None, SWEEP_INTERVAL)
    }

    /// Settings for an engine.
    #[must_use]
    pub fn builder() -> MemoryEngineBuilder {
        MemoryEngineBuilder {
            sweep_interval: SWEEP_INTERVAL,
            #[cfg(any(test, feature = "testing"))]
            manual: None,
        }
    }

    /// How many keys are held, those included that have expired and were neither read nor swept since.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.shared.keys.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// On a clock, and on a scheduler that lives by the same; on the process's if `None`.
    pub(crate) fn on(clock: Clock, scheduler: Option<Scheduler>, sweep_interval: Duration) -> MemoryEngine {
        let shared = Shared {
            clock,
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            keys: AtomicU64::new(0),
            sweep_interval: ticks_up(sweep_interval),
            sweeper: Mutex::new(Sweeper { scheduler, timer: None, round: 0 }),
        };
        MemoryEngine {
            shared: Arc::new(shared),
            #[cfg(any(test, feature = "testing"))]
            manual: None,
        }
    }
}

impl Default for MemoryEngine {
    fn default() -> MemoryEngine {
        MemoryEngine::new()
    }
}

impl std::fmt::Debug for MemoryEngine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryEngine").field("keys", &self.len()).finish()
    }
}

impl MemoryEngineBuilder {
    /// How often expired keys are removed: whole milliseconds, 1 ms ..= 2^31-1 ms. Default: 60 s, because what is swept only
    /// occupies memory.
    #[must_use]
    pub fn sweep_interval(mut self, interval: Duration) -> MemoryEngineBuilder {
        self.sweep_interval = interval;
        self
    }

    /// The clock the engine lives by. Default: the system's.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn clock(mut self, clock: &ManualClock) -> MemoryEngineBuilder {
        self.manual = Some(clock.clone());
        self
    }

    /// Makes the engine.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a sweep interval that is out of range or no whole number of milliseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Error, MemoryEngine};
    ///
    /// let engine = MemoryEngine::builder().sweep_interval(Duration::from_secs(5)).build()?;
    /// assert!(engine.is_empty());
    ///
    /// match MemoryEngine::builder().sweep_interval(Duration::ZERO).build() {
    ///     Err(Error::Invalid { field, .. }) => assert_eq!(field, "sweep_interval"),
    ///     other => panic!("no interval is zero, yet: {other:?}"),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn build(self) -> Result<MemoryEngine, Error> {
        const LONGEST: u128 = (1 << 31) - 1;
        let interval = self.sweep_interval;
        let whole = interval.subsec_nanos() % 1_000_000 == 0;
        if !whole || !(1..=LONGEST).contains(&interval.as_millis()) {
            let reason = format!("{interval:?}; whole milliseconds from 1 to {LONGEST} are allowed");
            return Err(Error::invalid("sweep_interval", reason));
        }
        #[cfg(any(test, feature = "testing"))]
        if let Some(manual) = self.manual {
            let engine = MemoryEngine::on(manual.clock(), Some(manual.scheduler().clone()), interval);
            return Ok(MemoryEngine { manual: Some(manual), ..engine });
        }
        Ok(MemoryEngine::on(Clock::System, None, interval))
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        let mut shard = self.shared.shard(key)?;
        let Some(entry) = shard.entries.get(key) else { return Ok(None) };
        if self.shared.clock.now() < entry.expires || fault("T73") {
            return Ok(Some(entry.value.clone()));
        }
        let removed = shard.entries.remove(key);
        self.shared.removed(shard, usize::from(removed.is_some()));
        Ok(None)
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let mut shard = self.shared.shard(key)?;
        let now = self.shared.clock.now();
        let expires = now.saturating_add(options.ticks());
        match shard.entries.get_mut(key) {
            Some(entry) if options.is_if_absent() && now < entry.expires && !fault("T74") => {
                return Ok(false);
            }
            Some(entry) => {
                entry.value.clear();
                entry.value.push_str(value);
                entry.expires = if fault("T75") { expires.max(entry.expires) } else { expires };
            }
            None => {
                shard.entries.insert(key.into(), Entry { value: value.to_owned(), expires });
                let first = self.shared.keys.fetch_add(1, Ordering::Relaxed) == 0;
                drop(shard);
                if first {
                    self.shared.look_at_sweeper();
                }
            }
        }
        Ok(true)
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        let mut shard = self.shared.shard(key)?;
        let removed = shard.entries.remove(key);
        self.shared.removed(shard, usize::from(removed.is_some()));
        Ok(())
    }

    fn clear(&self) -> Result<(), StoreError> {
        refuse_if_forked()?;
        for shard in &self.shared.shards {
            let mut shard = shard.lock();
            let entries = std::mem::take(&mut shard.entries);
            self.shared.removed(shard, entries.len());
        }
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    fn clock(&self) -> Option<&ManualClock> {
        self.manual.as_ref()
    }
}

fn refuse_if_forked() -> Result<(), StoreError> {
    if !os::forked() {
        return Ok(());
    }
    // Its locks may be held by threads that exist only in the parent.
    let message =
        "this process was forked after the engine was used: fork before that, or execute another program";
    Err(StoreError::new(StoreErrorKind::Other, Executed::No, message))
}

impl Shared {
    fn shard(&self, key: &str) -> Result<MutexGuard<'_, Shard>, StoreError> {
        refuse_if_forked()?;
        // Each map has a hasher of its own: with this one, all keys of a shard would crowd into a 64th of its buckets.
        #[expect(clippy::cast_possible_truncation, reason = "only the last digit matters")]
        let number = self.hasher.hash_one(key) as usize % SHARDS;
        Ok(self.shards[number].lock())
    }

    /// So many keys left this shard.
    fn removed(self: &Arc<Self>, mut shard: MutexGuard<'_, Shard>, count: usize) {
        if count == 0 {
            return;
        }
        if shard.entries.is_empty() {
            shard.entries = HashMap::new();
        }
        let last = self.forget(count);
        drop(shard);
        if last {
            self.look_at_sweeper();
        }
    }

    /// Whether these were the last.
    fn forget(&self, count: usize) -> bool {
        let count = count as u64;
        self.keys.fetch_sub(count, Ordering::Relaxed) == count
    }

    fn look_at_sweeper(self: &Arc<Self>) {
        let mut sweeper = self.sweeper.lock();
        let wanted = self.keys.load(Ordering::Relaxed) > 0 || fault("T65");
        if wanted == sweeper.timer.is_some() {
            return;
        }
        sweeper.round += 1;
        if wanted {
            self.set_timer(&mut sweeper, 0, self.clock.now().saturating_add(self.sweep_interval));
        } else if let (Some(timer), Some(scheduler)) = (sweeper.timer.take(), &sweeper.scheduler) {
            scheduler.cancel(timer);
        }
    }

    /// Without a thread to serve it there is no sweep: expired keys then stay until they are read or overwritten.
    fn set_timer(self: &Arc<Self>, sweeper: &mut Sweeper, shard: usize, when: Tick) {
        if sweeper.scheduler.is_none() {
            sweeper.scheduler = Scheduler::global().ok();
        }
        let Some(scheduler) = &sweeper.scheduler else { return };
        let weak = Arc::downgrade(self);
        let owner: Weak<dyn Timed> = weak;
        let timer = Timer { owner, timer: sweeper.round * SHARDS as u64 + shard as u64 };
        sweeper.timer = scheduler.set(when, SWEEPS_LAST, timer).ok();
    }

    /// Sweeps shards from this one on; answers the one to go on with, if enough was done at once.
    fn sweep(&self, from: usize, now: Tick) -> Option<usize> {
        let mut seen = 0;
        for (number, shard) in self.shards.iter().enumerate().skip(from) {
            if seen >= SWEPT_AT_ONCE {
                return Some(number);
            }
            let mut shard = shard.lock();
            let before = shard.entries.len();
            shard.entries.retain(|_, entry| now < entry.expires || fault("T64"));
            let after = shard.entries.len();
            if after < before {
                self.forget(before - after);
            }
            if shard.entries.capacity() > 4 * after {
                shard.entries.shrink_to(2 * after);
            }
            seen += before;
        }
        None
    }
}

impl Timed for Shared {
    fn due(self: Arc<Self>, timer: u64, now: Tick) {
        let (round, shard) = (timer / SHARDS as u64, timer % SHARDS as u64);
        #[expect(clippy::cast_possible_truncation, reason = "less than 64")]
        let next = self.sweep(shard as usize, now);
        let mut sweeper = self.sweeper.lock();
        if sweeper.round != round {
            return;
        }
        sweeper.timer = None;
        if self.keys.load(Ordering::Relaxed) > 0 {
            let when = if next.is_some() { now } else { now.saturating_add(self.sweep_interval) };
            self.set_timer(&mut sweeper, next.unwrap_or(0), when);
        }
    }

    fn stopped(self: Arc<Self>) {
        self.sweeper.lock().timer = None;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        let sweeper = self.sweeper.lock();
        if let (Some(timer), Some(scheduler)) = (sweeper.timer, &sweeper.scheduler) {
            scheduler.cancel(timer);
        }
    }
}
