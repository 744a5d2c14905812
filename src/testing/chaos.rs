//! A store that fails in every way in which a distant one can, for tests.

mod course;
mod opened;
#[cfg(test)]
mod tests;

use crate::clock::{Clock, Tick, duration, ticks_up};
use crate::error::StoreError;
use crate::store::{Counts, Notice, Noticed, Remote, Store, Wake};
use crate::testing::ManualClock;
use course::{Draw, Faults};
use opened::Opened;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A store around another that loses, delays, doubles and refuses calls as a network and a server do. To put between a
/// valve and a [`MemoryStore`](crate::MemoryStore) in a test of what your program does when the real store has trouble.
///
/// Without settings it changes nothing but that its calls count as ones that may block. Probabilities are per mille: 0, the
/// default of each, is never; 1,000 and more is always. What becomes of a call follows from the seed and the number of the
/// call alone, so on a [`ManualClock`], where one program makes its calls in one order, the same seed gives the same
/// trouble.
///
/// A call takes at most until its deadline; one without a deadline, as each release is, at most the
/// [timeout](Remote::timeout) of its [`Remote`]. Only [`freeze`](ChaosStore::freeze) makes it take longer.
///
/// Clones are the same store, and settings may be changed at any time. Waiting takes place on the inner store's clock: on a
/// `ManualClock` all callers must then be its participants or threads of a valve; on the machine's clock the calling thread
/// sleeps.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::testing::ChaosStore;
/// use valve::{Error, MemoryStore, OnStoreError, Rule, Valve};
///
/// let store = ChaosStore::new(MemoryStore::new(), 42);
/// let valve = Valve::builder("api")
///     .rule(Rule::gcra(10, Duration::from_secs(1)).burst(10))
///     .store(store.clone())
///     .on_store_error(OnStoreError::Fail)
///     .build()?;
/// valve.run(|| ())?;
///
/// store.set_down(true);
/// assert!(matches!(valve.run(|| ()), Err(Error::StoreUnavailable(_))));
/// assert_eq!(store.asks(), 2);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct ChaosStore {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Box<dyn Store>,
    clock: Clock,
    manual: Option<ManualClock>,
    seed: u64,
    /// All calls, and all notices, so far.
    calls: AtomicU64,
    notices: AtomicU64,
    asks: AtomicU64,
    renewals: AtomicU64,
    releases: AtomicU64,
    /// Threads that will execute something later.
    later: AtomicUsize,
    faults: Mutex<Faults>,
    /// Those who watch, each behind a relay that may lose what it is told.
    relays: Mutex<Vec<Arc<Relay>>>,
}

impl ChaosStore {
    /// Puts `inner` behind a network that works, until it is told otherwise.
    #[must_use]
    pub fn new(inner: impl Store, seed: u64) -> ChaosStore {
        let inner: Box<dyn Store> = Box::new(inner);
        let manual = manual_clock(&*inner);
        let shared = Shared {
            clock: manual.as_ref().map_or(Clock::System, ManualClock::clock),
            manual,
            inner,
            seed,
            calls: AtomicU64::new(0),
            notices: AtomicU64::new(0),
            asks: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            later: AtomicUsize::new(0),
            faults: Mutex::new(Faults::none(Remote::default())),
            relays: Mutex::new(Vec::new()),
        };
        ChaosStore { shared: Arc::new(shared) }
    }

    /// How valves built from here on call this store; clones of it included. Default: [`Remote::default`], as a real store
    /// would have it.
    pub fn served_by(self, remote: Remote) -> ChaosStore {
        self.set(|faults| faults.remote = remote)
    }

    /// How often, per mille, a call is refused before it is sent:
    /// [`Unreachable`](crate::StoreErrorKind::Unreachable), [not executed](crate::Executed::No). Default: 0.
    pub fn errors(self, per_mille: u32) -> ChaosStore {
        self.set(|faults| faults.errors = per_mille)
    }

    /// How often, per mille, a call is executed and its reply lost: at its deadline the caller is told
    /// [`Timeout`](crate::StoreErrorKind::Timeout), [unknown](crate::Executed::Unknown). Default: 0.
    pub fn lost_replies(self, per_mille: u32) -> ChaosStore {
        self.set(|faults| faults.lost_replies = per_mille)
    }

    /// How often, per mille, a call reaches the inner store only after its deadline, by up to as much time again as it was
    /// given. The caller is told what it is told of a lost reply. What happens then, [`not_after`](ChaosStore::not_after)
    /// says. Default: 0.
    pub fn late(self, per_mille: u32) -> ChaosStore {
        self.set(|faults| faults.late = per_mille)
    }

    /// Whether the inner store refuses to execute what reaches it after its deadline, as this crate's real stores do.
    /// Releases are executed however late, those that ride on an ask too. `false` is a store that breaks the contract of
    /// [`Ask::deadline`](crate::Ask): to see what it would cost. Default: `true`.
    pub fn not_after(self, kept: bool) -> ChaosStore {
        self.set(|faults| faults.not_after = kept)
    }

    /// The longest time, each way, that a call spends on its way: from 0 to this, whole microseconds, all equally likely. A
    /// call that its deadline overtakes ends there, with its reply lost or itself late. Default: 0.
    pub fn delays(self, longest: Duration) -> ChaosStore {
        self.set(|faults| faults.delay = ticks_up(longest))
    }

    /// How often, per mille, a release is executed a second time, up to one timeout later. Default: 0.
    pub fn doubled_releases(self, per_mille: u32) -> ChaosStore {
        self.set(|faults| faults.doubled_releases = per_mille)
    }

    /// How often, per mille, a notice of a pause, resume or release is lost. From 1,000 on, this store says that it does not
    /// [notify](Store::notifies) at all; valves ask that when they are built. Default: 0.
    pub fn lost_notices(self, per_mille: u32) -> ChaosStore {
        self.set(|faults| faults.lost_notices = per_mille)
    }

    /// Refuses every call, like [`errors`](ChaosStore::errors), and loses every notice, until it is told `false`. Calls under
    /// way go on.
    pub fn set_down(&self, down: bool) {
        self.shared.faults.lock().down = down;
    }

    /// Lets no call begin or return for `length` from now: how it looks to a process that is stopped for so long. What is on
    /// its way reaches the inner store meanwhile; whoever waits for the reply gets it afterwards, however late. A longer
    /// freeze that is under way stays.
    pub fn freeze(&self, length: Duration) {
        let until = self.shared.clock.now() + ticks_up(length);
        let mut faults = self.shared.faults.lock();
        faults.frozen_until = faults.frozen_until.max(until);
    }

    /// Takes every fault back: what is called from now on reaches the inner store at once. Calls under way go on as they
    /// were, those in a freeze until its end.
    pub fn heal(&self) {
        let mut faults = self.shared.faults.lock();
        *faults = Faults::none(faults.remote.clone());
    }

    /// How many asks were made of it, the refused ones too.
    #[must_use]
    pub fn asks(&self) -> u64 {
        self.shared.asks.load(Ordering::Relaxed)
    }

    /// How many calls to renew leases were made of it, each for up to 500 leases.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.shared.renewals.load(Ordering::Relaxed)
    }

    /// How many calls to release leases were made of it. Releases that ride on asks are not in this figure.
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.shared.releases.load(Ordering::Relaxed)
    }

    fn set(self, change: impl FnOnce(&mut Faults)) -> ChaosStore {
        change(&mut self.shared.faults.lock());
        self
    }
}

impl Store for ChaosStore {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        let inner = self.shared.inner.open(id)?;
        Ok(Arc::new(Opened { shared: Arc::clone(&self.shared), inner }))
    }

    fn remote(&self) -> Option<Remote> {
        Some(self.shared.faults.lock().remote.clone())
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        let relay = Arc::new(Relay { shared: Arc::downgrade(&self.shared), wake });
        let target: Weak<dyn Noticed> = Arc::<Relay>::downgrade(&relay);
        let relayed = Wake::new(relay.wake.id().into(), target);
        let mut relays = self.shared.relays.lock();
        relays.retain(|other| !other.wake.is_stale());
        relays.push(relay);
        drop(relays);
        self.shared.inner.watch(relayed)
    }

    fn notifies(&self) -> bool {
        self.shared.faults.lock().lost_notices < 1_000 && self.shared.inner.notifies()
    }

    #[cfg(feature = "testing")]
    fn clock(&self) -> Option<&ManualClock> {
        self.shared.manual.as_ref()
    }
}

/// Tells one watcher, or does not.
struct Relay {
    shared: Weak<Shared>,
    wake: Wake,
}

impl Noticed for Relay {
    fn noticed(self: Arc<Self>, notice: Notice) {
        let lost = self.shared.upgrade().is_some_and(|shared| shared.loses_notice());
        if !lost {
            self.wake.notify(notice);
        }
    }
}

impl Shared {
    fn loses_notice(&self) -> bool {
        let faults = self.faults.lock().clone();
        let number = self.notices.fetch_add(1, Ordering::Relaxed);
        // Notices are numbered apart from calls, so that how many are told does not change what becomes of calls.
        faults.down || Draw::new(!self.seed, number).hits(faults.lost_notices)
    }

    fn sleep(&self, length: Tick) {
        match &self.manual {
            Some(clock) => clock.sleep(duration(length)),
            None => sleep_really(duration(length)),
        }
    }

    /// Waits until no freeze is on.
    fn thaw(&self) {
        loop {
            let left = self.faults.lock().frozen_until.saturating_sub(self.clock.now());
            if left == 0 {
                return;
            }
            self.sleep(left);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it stands for a slow network on the machine's own clock, in tests"
)]
fn sleep_really(length: Duration) {
    if !length.is_zero() {
        std::thread::sleep(length);
    }
}

#[cfg(feature = "testing")]
fn manual_clock(store: &dyn Store) -> Option<ManualClock> {
    store.clock().cloned()
}

/// Only with the feature do stores say on which clock they are; our own unit tests without it have the machine's.
#[cfg(not(feature = "testing"))]
fn manual_clock(_store: &dyn Store) -> Option<ManualClock> {
    None
}

impl std::fmt::Debug for ChaosStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls = self.shared.calls.load(Ordering::Relaxed);
        out.debug_struct("ChaosStore")
            .field("seed", &self.shared.seed)
            .field("calls", &calls)
            .finish_non_exhaustive()
    }
}
