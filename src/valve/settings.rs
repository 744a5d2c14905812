//! The settings of a valve, and where all of them are checked: [`ValveBuilder`].

use super::Valve;
use super::core::{Core, SLOW, State, UNLIMITED};
use super::leasing::Names;
use super::limits::{Concurrency, Fast, Limits};
use crate::clock::{Clock, Tick};
use crate::error::{Error, StoreError};
use crate::event::{Event, Handler, Sink, caught};
use crate::feedback::PAUSE_MAX;
use crate::os;
use crate::planted::fault;
use crate::rule::{Rule, RuleSet};
use crate::scheduler::Scheduler;
use crate::store::{MemoryStore, Noticed, Store, Wake};
use crate::sync::{AtomicU64, Mutex};
use std::sync::atomic::{AtomicU64 as Counter, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// What a valve does while its store cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Jobs stay queued; the store is tried again, with growing pauses, until each job's own `max_wait`. The default: no
    /// limit is passed and no job is lost, at the price of waiting.
    #[default]
    Wait,
    /// The jobs concerned end with [`Error::StoreUnavailable`].
    Fail,
    /// Jobs start without the rules. **Rate bounds do not hold meanwhile**; the local concurrency limit and a pause that
    /// is known do. Not together with a fleet-wide limit, which nobody could count then.
    Open,
}

/// Settings of a [`Valve`]; [`build`](ValveBuilder::build) checks them all.
#[must_use]
pub struct ValveBuilder {
    id: String,
    rules: Vec<Rule>,
    concurrency: Concurrency,
    store: Option<Arc<dyn Store>>,
    on_store_error: OnStoreError,
    queue_max: Option<usize>,
    pause_max: Duration,
    handler: Option<Handler>,
    scheduler: Option<Scheduler>,
    #[cfg(any(test, feature = "testing"))]
    clock: Option<crate::testing::ManualClock>,
}

/// The longest id, in bytes.
const ID_MAX: usize = 10_240;

/// Plain even under the model checker: it orders valves and decides nothing.
static NUMBER: Counter = Counter::new(1);

impl ValveBuilder {
    pub(super) fn new(id: String) -> ValveBuilder {
        ValveBuilder {
            id,
            rules: Vec::new(),
            concurrency: Concurrency::unlimited(),
            store: None,
            on_store_error: OnStoreError::default(),
            queue_max: None,
            pause_max: PAUSE_MAX,
            handler: None,
            scheduler: None,
            #[cfg(any(test, feature = "testing"))]
            clock: None,
        }
    }

    /// Adds a rate rule; a job starts when every rule admits it, and then pays to all. At most 16. Default: none, so that
    /// only concurrency limits.
    pub fn rule(mut self, rule: impl Into<Rule>) -> ValveBuilder {
        self.rules.push(rule.into());
        self
    }

    /// At most so many jobs of *this valve* run at once, whatever they cost; its clones count as the same valve, another
    /// valve of the same id does not. `1 ..= u32::MAX`. Default: no limit, because rules alone are a common use.
    pub fn concurrency(mut self, limit: u32) -> ValveBuilder {
        self.concurrency = self.concurrency.local(limit);
        self
    }

    /// At most so many jobs of all valves that share this id and store run at once, each holding a lease that is renewed
    /// every third of `lease_ttl` while it runs. A dead worker's slots come free after `lease_ttl`; a job whose lease is lost
    /// is told to stop, and its call ends with [`Error::LeaseLost`]. Each valve goes by its own `limit`.
    ///
    /// `limit` is `1 ..= u32::MAX`, `lease_ttl` 100 ms ..= 24 h; may be combined with
    /// [`concurrency`](ValveBuilder::concurrency), but not with [`OnStoreError::Open`]. Default: no limit; there is no default
    /// `lease_ttl`, because only you know how long a dead worker's slot may stay taken.
    pub fn global_concurrency(mut self, limit: u32, lease_ttl: Duration) -> ValveBuilder {
        self.concurrency = self.concurrency.global(limit, lease_ttl);
        self
    }

    /// Where the counts live. Default: a [`MemoryStore`] of this valve's own, because sharing should be said.
    pub fn store(mut self, store: impl Store) -> ValveBuilder {
        self.store = Some(Arc::new(store));
        self
    }

    /// What happens while the store cannot be asked. Default: [`OnStoreError::Wait`], which keeps every limit.
    pub fn on_store_error(mut self, mode: OnStoreError) -> ValveBuilder {
        self.on_store_error = mode;
        self
    }

    /// The most calls that may wait; one more ends with [`Error::QueueFull`]. At least 1. Default: no limit, because the
    /// threads that call are one already.
    pub fn max_queue(mut self, limit: usize) -> ValveBuilder {
        self.queue_max = Some(limit);
        self
    }

    /// The longest pause; longer ones are cut to it. At most 31 days, which is the default: longer than any provider asks
    /// for, and short enough that a nonsensical one ends.
    pub fn max_pause(mut self, length: Duration) -> ValveBuilder {
        self.pause_max = length;
        self
    }

    /// Is told what happens to the valve, on a thread of its own: it may block, panic or call the valve. At most 1,024
    /// events wait for it; then the oldest are dropped and counted. Default: nobody is told, which costs no thread.
    pub fn on_event(mut self, handler: impl Fn(&Event) + Send + Sync + 'static) -> ValveBuilder {
        self.handler = Some(Box::new(handler));
        self
    }

    /// Which scheduler serves the timers. Default: the one of the process, which costs no thread more.
    pub fn scheduler(mut self, scheduler: &Scheduler) -> ValveBuilder {
        self.scheduler = Some(scheduler.clone());
        self
    }

    /// A clock that a test turns; it brings its own scheduler. Default: the machine's clock.
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: &crate::testing::ManualClock) -> ValveBuilder {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes the valve. Starts the scheduler of the process if it is the first; does no I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a setting out of range, naming it, or two that exclude each other; [`Error::StoreUnavailable`] if
    /// the store refuses the id, or the system has no random numbers to name leases with;
    /// [`Error::Spawn`] if the system refuses a thread; [`Error::Forked`] in a forked child. Nothing is left behind then.
    ///
    /// # Examples
    ///
    /// ```
    /// use valve::{Error, Valve};
    ///
    /// match Valve::builder("api").concurrency(0).build() {
    ///     Err(Error::Invalid { field, .. }) => assert_eq!(field, "concurrency"),
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    pub fn build(self) -> Result<Valve, Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        os::watch_forks();
        let rules = RuleSet::new(self.rules.clone())?;
        self.check()?;
        let (clock, scheduler) = self.time()?;
        // Planted: a limit without being asked, and one divided among the valves of a store.
        let shares = if fault("V49") && self.store.is_some() { 2 } else { 1 };
        let store = self.store.unwrap_or_else(|| own_store(&clock));
        let opened = caught(|| Ok((store.open(&self.id)?, store.remote())));
        let (counts, remote) =
            opened.unwrap_or_else(|| Err(StoreError::panicked())).map_err(Error::StoreUnavailable)?;
        if self.handler.is_some() {
            scheduler.events().start()?;
        }
        let limits = Limits::new(rules, self.concurrency);
        let limits = Limits { local: limits.local / shares, ..limits };
        let recheck = if caught(|| store.notifies()).unwrap_or(false) { RECHECK_NOTIFIED } else { RECHECK };
        let core = Arc::new_cyclic(|me: &Weak<Core>| Core {
            id: self.id.into(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            me: me.clone(),
            refused: AtomicU64::new(0),
            fast: Fast::default(),
            counts,
            remote,
            names: OnceLock::new(),
            store,
            clock,
            scheduler,
            sink: self.handler.map(Sink::new),
            on_store_error: self.on_store_error,
            failing: Mutex::new(None),
            queue_max: self.queue_max.unwrap_or(usize::MAX),
            pause_max: self.pause_max,
            state: Mutex::new(State::new(limits, recheck)),
        });
        const { assert!(UNLIMITED < SLOW) };
        core.set_fast(&mut core.state.lock());
        core.check_mode(&self.concurrency)?;
        let target: Weak<dyn Noticed> = core.me.clone();
        let wake = Wake::new(Arc::clone(&core.id), target);
        let watched = caught(|| core.store.watch(wake));
        watched.unwrap_or_else(|| Err(StoreError::panicked())).map_err(Error::StoreUnavailable)?;
        if let Some(remote) = &core.remote {
            remote.join(core.me.clone());
            // It will be told when the store is back, so it has to be told that it is down.
            if let Some(error) = remote.down() {
                core.turned(Some(error));
            }
        }
        Ok(Valve { core })
    }

    fn check(&self) -> Result<(), Error> {
        if self.id.is_empty() || self.id.len() > ID_MAX {
            return Err(Error::invalid("id", format!("{} bytes; 1 to {ID_MAX} are allowed", self.id.len())));
        }
        self.concurrency.check()?;
        if self.queue_max == Some(0) {
            return Err(Error::invalid("max_queue", "0 lets nobody wait; use try_acquire for that"));
        }
        if self.pause_max.is_zero() || self.pause_max > PAUSE_MAX {
            return Err(Error::invalid(
                "max_pause",
                format!("{:?} is not in 1 ns ..= 31 days", self.pause_max),
            ));
        }
        Ok(())
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn time(&self) -> Result<(Clock, Scheduler), Error> {
        Ok((Clock::System, self.system_scheduler()?))
    }

    /// One clock for all: the builder's, or the store's.
    #[cfg(any(test, feature = "testing"))]
    fn time(&self) -> Result<(Clock, Scheduler), Error> {
        #[cfg(feature = "testing")]
        let of_store = self.store.as_ref().and_then(|store| store.clock().cloned());
        #[cfg(not(feature = "testing"))]
        let of_store: Option<crate::testing::ManualClock> = None;
        let manual = self.clock.clone().or(of_store.clone());
        let Some(manual) = manual else { return Ok((Clock::System, self.system_scheduler()?)) };
        let clock = manual.clock();
        let store_clock = of_store.map_or(Clock::System, |clock| clock.clock());
        if self.store.is_some() && !clock.same(&store_clock) {
            return Err(Error::invalid(
                "clock",
                "the valve and its store are on different clocks; give both the same",
            ));
        }
        if self.scheduler.is_some() {
            return Err(Error::invalid(
                "scheduler",
                "a manual clock brings its own; leave one of the two out",
            ));
        }
        Ok((clock, manual.scheduler().clone()))
    }

    fn system_scheduler(&self) -> Result<Scheduler, Error> {
        self.scheduler.clone().map_or_else(Scheduler::global, Ok)
    }
}

/// How soon a waiter for a fleet-wide slot asks again, before up to 8 ms that differ between processes: without notices
/// often, with them once a second in case one is lost.
pub(super) const RECHECK: Tick = 50_000;
pub(super) const RECHECK_NOTIFIED: Tick = 990_000;

impl Core {
    /// What concurrency needs of the other settings. Names for leases are made when they are first needed.
    pub(super) fn check_mode(&self, concurrency: &Concurrency) -> Result<(), Error> {
        if concurrency.global.is_none() {
            return Ok(());
        }
        if self.on_store_error == OnStoreError::Open && !fault("V66") {
            let reason =
                "Open starts jobs without the store, which a global limit cannot survive; use Wait or Fail";
            return Err(Error::invalid("on_store_error", reason));
        }
        if self.names.get().is_none() {
            let names = Names::new().map_err(Error::StoreUnavailable)?;
            // Another thread may have been faster; either's names are good.
            let _ = self.names.set(names);
        }
        Ok(())
    }
}

fn own_store(clock: &Clock) -> Arc<dyn Store> {
    Arc::new(MemoryStore::on(clock.clone()))
}

impl std::fmt::Debug for ValveBuilder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ValveBuilder")
            .field("id", &self.id)
            .field("rules", &self.rules)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}
