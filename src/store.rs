//! Where counts live: the traits that a store implements, and what passes through them.
//!
//! A [`Store`] opens one [`Counts`] for each valve. A valve asks its counts on whichever thread [`remote`](Store::remote)
//! allows, never with a lock of this crate held, and treats every answer as atomic: all of an ask is decided at one instant
//! of the store's clock. **This interface is unstable until 1.0.**

mod memory;
#[cfg(feature = "redis")]
mod redis;
mod remote;
mod workers;

use crate::clock::{Clock, Tick, duration};
use crate::error::StoreError;
use crate::rule::RuleSet;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use memory::MemoryStore;
#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryStoreBuilder;
#[cfg(all(feature = "redis", feature = "testing"))]
pub use redis::BareAdmissions;
#[cfg(feature = "redis")]
pub(crate) use redis::Reply;
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisBuilder, RedisStore, Subscriber};
pub use remote::Remote;
pub(crate) use remote::{Gate, Unmade, Write};
pub(crate) use workers::{Errand, Runner, Work};

/// Where the counts of many ids live: in this process, or somewhere that a fleet shares.
///
/// # Examples
///
/// A store that counts what it is asked, around one that decides:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
/// use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Rule, Store, StoreError, Token, Valve};
///
/// #[derive(Clone, Default)]
/// struct Counting {
///     inner: MemoryStore,
///     asks: Arc<AtomicUsize>,
/// }
///
/// impl Store for Counting {
///     fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
///         Ok(Arc::new(Opened { inner: self.inner.open(id)?, asks: Arc::clone(&self.asks) }))
///     }
///     fn remote(&self) -> Option<valve::Remote> {
///         None // it never blocks
///     }
/// }
///
/// struct Opened {
///     inner: Arc<dyn Counts>,
///     asks: Arc<AtomicUsize>,
/// }
///
/// impl Counts for Opened {
///     fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
///         self.asks.fetch_add(1, Ordering::Relaxed);
///         self.inner.admit(ask, answer)
///     }
///     fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
///         self.inner.renew(leases, deadline, held)
///     }
///     fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
///         self.inner.release(tokens)
///     }
///     fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
///         self.inner.pause(length, deadline)
///     }
///     fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
///         self.inner.resume(deadline)
///     }
/// }
///
/// let store = Counting::default();
/// let valve = Valve::builder("api").rule(Rule::gcra(10, Duration::from_secs(1))).store(store.clone()).build()?;
/// valve.run(|| ())?;
/// assert_eq!(store.asks.load(Ordering::Relaxed), 1);
/// # Ok::<(), valve::Error>(())
/// ```
pub trait Store: Send + Sync + 'static {
    /// Gives the counts of one id. Does no I/O; called once by each valve.
    ///
    /// # Errors
    ///
    /// If this store cannot hold such an id.
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError>;

    /// How a store that may block is called: by whom, how long, and what happens when it fails. All ids of one client
    /// should share one [`Remote`]: keep it in the store and return a clone.
    ///
    /// `None` promises that no call ever blocks; it may then be made on any thread, the scheduler's included. The default
    /// is a new `Remote` with its own defaults.
    fn remote(&self) -> Option<Remote> {
        Some(Remote::default())
    }

    /// Asks to be told of pauses, resumes and releases of `wake.id()`. They only save time: a store that tells nothing
    /// is right too. The default tells nothing.
    ///
    /// # Errors
    ///
    /// If it cannot tell, ever.
    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        drop(wake);
        Ok(())
    }

    /// Whether those who watch are told of releases, as a rule at once. Waiters for a fleet-wide slot then ask again each
    /// second only, in case a notice is lost or a lease ends unreleased; else each 50 ms and up to 10 more. It is asked
    /// once by each valve; what changes later is told as [`Notice::Listening`] and [`Notice::Silent`]. The default is
    /// `false`.
    fn notifies(&self) -> bool {
        false
    }

    /// The clock that this store runs on, if a test turns it.
    #[cfg(feature = "testing")]
    fn clock(&self) -> Option<&crate::testing::ManualClock> {
        None
    }
}

/// The counts of one id.
pub trait Counts: Send + Sync {
    /// Admits the longest prefix of the ask's jobs that fits, and spends for exactly those; the rest changes nothing.
    ///
    /// # Errors
    ///
    /// Whose [`executed`](StoreError::executed) says whether anything may have been spent.
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError>;

    /// Extends leases that still hold to their full length from now, and says for each whether it held, in their order;
    /// what `held` holds before is overwritten. An ended lease is never revived. Called with at most 500 leases.
    ///
    /// # Errors
    ///
    /// If it is unknown which were extended.
    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError>;

    /// Ends these leases and no others. May come late, and twice. Called with at most 500, by the thread whose job ended if
    /// the store never blocks.
    ///
    /// # Errors
    ///
    /// If some may not be ended.
    fn release(&self, tokens: &[Token]) -> Result<(), StoreError>;

    /// Admits nothing for `length` from now, or longer if a longer pause holds; gives what is left of it.
    ///
    /// # Errors
    ///
    /// If it may not be recorded.
    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError>;

    /// Ends a pause, whoever made it.
    ///
    /// # Errors
    ///
    /// If it may still hold.
    fn resume(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Whether an ask would be sent at once. If not, a call leaves it to a store worker, whose turn comes, and waits on its
    /// own terms. The default is `true`.
    #[doc(hidden)]
    fn ready(&self) -> bool {
        true
    }

    /// Decides one job without locks, if this store can for the rule set of this number: the same decision as
    /// [`admit`](Counts::admit). The default cannot.
    #[doc(hidden)]
    #[inline]
    fn quick(&self, _rules: u64, _cost: u32) -> Quick {
        Quick::Unable
    }

    /// Parts the quick calls: what was written before a [`quick`](Counts::quick) that was granted before this is seen by
    /// whoever called this, and what was written before this is seen after every later such grant by a rule. `false`, the
    /// default, if this store cannot. Never blocks, and is called under a valve's lock.
    #[doc(hidden)]
    fn part_quick(&self) -> bool {
        false
    }
}

/// What [`Counts::quick`] answers.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quick {
    /// Admitted at this time of the store's clock.
    Granted(u64),
    /// Not for so many microseconds, because of the only rule.
    Refused(u64),
    /// Ask with [`Counts::admit`].
    Unable,
}

/// What a valve asks of its counts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ask<'a> {
    /// The rules to keep; limits are the asker's own.
    pub rules: &'a RuleSet,
    /// The jobs in their order: the cost of each.
    pub costs: &'a [u32],
    /// The fleet-wide slots, if each job needs one.
    pub slots: Option<Slots<'a>>,
    /// Leases to end first, whatever becomes of the ask. At most 256.
    pub releases: &'a [Token],
    /// When the caller gives up: the ask must not take effect later.
    pub deadline: Deadline,
    /// Whether a job that is refused will wait, so that a release is worth a notice.
    pub waits: bool,
}

impl<'a> Ask<'a> {
    /// An ask for jobs of these costs, without slots, releases or a deadline.
    #[must_use]
    pub fn new(rules: &'a RuleSet, costs: &'a [u32]) -> Ask<'a> {
        Ask { rules, costs, slots: None, releases: &[], deadline: Deadline::never(), waits: false }
    }
}

/// The fleet-wide slots that an ask is for.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Slots<'a> {
    /// The most that may be held at once, by the asker's own setting.
    pub limit: u32,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// The names under which the jobs would hold them, one for each cost.
    pub tokens: &'a [Token],
    /// Fencing tokens must be greater than this.
    pub floor: u64,
}

impl<'a> Slots<'a> {
    /// Slots of which `limit` may be held, each for `ttl`, under these names.
    #[must_use]
    pub fn new(limit: u32, ttl: Duration, tokens: &'a [Token]) -> Slots<'a> {
        Slots { limit, ttl, tokens, floor: 0 }
    }
}

/// The name of one holding of a slot: 128 bits that nobody else makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u128);

/// A lease to be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Which.
    pub token: Token,
    /// Its full length.
    pub ttl: Duration,
}

/// What the counts answer. The valve lends one and it is overwritten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// How many of the jobs may start.
    pub granted: usize,
    /// When they were admitted: microseconds of the Unix epoch by the store's clock.
    pub at: u64,
    /// With slots: the fencing token of the first; the others have the numbers that follow.
    pub fence: Option<NonZeroU64>,
    /// Why the next one may not.
    pub refusal: Option<Refusal>,
}

/// Why a job was refused; at least one of the three holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusal {
    /// A rate rule, by its number in the ask, and how long until it alone would admit the job.
    pub rate: Option<(usize, Duration)>,
    /// How long the pause lasts.
    pub pause: Option<Duration>,
    /// No fleet-wide slot is free.
    pub slots: bool,
}

/// When a caller gives up.
#[derive(Clone)]
pub struct Deadline(Option<(Clock, Tick)>);

impl Deadline {
    /// No deadline.
    #[must_use]
    pub fn never() -> Deadline {
        Deadline(None)
    }

    pub(crate) fn after(clock: &Clock, length: Duration) -> Deadline {
        Deadline(Some((clock.clone(), clock.now().saturating_add(crate::clock::ticks_up(length)))))
    }

    /// What is left: zero once it passed, `None` if there is no deadline.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.0.as_ref().map(|(clock, at)| duration(at.saturating_sub(clock.now())))
    }
}

impl std::fmt::Debug for Deadline {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.left() {
            None => out.write_str("Deadline(never)"),
            Some(left) => write!(out, "Deadline(in {left:?})"),
        }
    }
}

/// What a store tells those who watch an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Notice {
    /// A pause began or grew.
    Paused,
    /// A pause was lifted.
    Resumed,
    /// A slot became free.
    Released,
    /// From now on releases are told as a rule: whatever was missed before is to be asked for now.
    Listening,
    /// From now on, until `Listening`, nothing may be told.
    Silent,
}

/// Who is told. Holds no valve alive.
#[derive(Clone)]
pub struct Wake {
    id: Arc<str>,
    target: Weak<dyn Noticed>,
}

/// What a valve does when told.
pub(crate) trait Noticed: Send + Sync {
    fn noticed(self: Arc<Self>, notice: Notice);
}

impl Wake {
    pub(crate) fn new(id: Arc<str>, target: Weak<dyn Noticed>) -> Wake {
        Wake { id, target }
    }

    /// The id that is watched.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    #[cfg(feature = "redis")]
    pub(crate) fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Tells the watcher; `false` once it is gone and can be forgotten. To be called without locks: on a store that does
    /// not block, the watcher may ask at once.
    pub fn notify(&self, notice: Notice) -> bool {
        let Some(target) = self.target.upgrade() else { return false };
        target.noticed(notice);
        true
    }

    /// Whether the watcher is gone.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.target.strong_count() == 0
    }
}

impl std::fmt::Debug for Wake {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Wake").field("id", &self.id).finish_non_exhaustive()
    }
}
