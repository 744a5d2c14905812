//! What can go wrong, and what stands in the way: the errors of this crate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a call to this crate did not do what was asked.
///
/// Every variant may gain fields and the enum may gain variants, so match with `..` and a wildcard. [`code`](Error::code)
/// is stable for ever.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Error, Rule, Valve};
///
/// let valve = Valve::builder("api").rule(Rule::gcra(1, Duration::from_secs(60))).build()?;
/// valve.try_acquire()?;
/// match valve.try_acquire() {
///     Err(Error::WouldWait { retry_after, blocked_by, .. }) => {
///         assert!(retry_after.is_some_and(|wait| wait <= Duration::from_secs(60)));
///         assert_eq!(blocked_by.to_string(), "rule gcra/1min");
///     }
///     other => panic!("the budget was spent, yet: {other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job could not start within its `max_wait`, or it became certain that it could not.
    #[error("no start after {waited:?}: held up by {blocked_by}")]
    #[non_exhaustive]
    Timeout {
        /// How long the call had waited when it was given up.
        waited: Duration,
        /// How long from then until the job could have started, if it was known.
        retry_after: Option<Duration>,
        /// What held up the job at the head of the queue.
        blocked_by: Blocked,
    },

    /// A call that does not wait would have had to.
    #[error("would have to wait for {blocked_by}")]
    #[non_exhaustive]
    WouldWait {
        /// How long until the job, if it were alone, would be admitted; `None` if that depends on other jobs.
        retry_after: Option<Duration>,
        /// What is in the way.
        blocked_by: Blocked,
    },

    /// Its [`CancelToken`](crate::CancelToken) was cancelled before the job started.
    #[error("cancelled before the job started")]
    Cancelled,

    /// The valve was closed, or is being drained.
    #[error("the valve is closed")]
    Closed,

    /// As many calls wait as `max_queue` allows.
    #[error("{limit} calls wait already, the most that max_queue allows")]
    #[non_exhaustive]
    QueueFull {
        /// The greatest number of waiting calls.
        limit: usize,
    },

    /// The job costs more than a rule could ever admit at once. Nothing was spent.
    #[error("a cost of {cost} can never start: rule {rule} admits at most {max} at once")]
    #[non_exhaustive]
    CostTooLarge {
        /// What was asked for.
        cost: u32,
        /// The most this rule admits at one instant: its burst, or the limit of its window.
        max: u32,
        /// The name of the rule.
        rule: String,
    },

    /// The job's lease on a fleet-wide slot ended before the job did; another process may have had the slot meanwhile. Told
    /// once the closure has returned; its value, or its own error, is dropped.
    #[error("the lease on the slot was lost before the job ended")]
    LeaseLost,

    /// The store could not be asked, and the valve was told not to wait for it.
    #[error("the store is unavailable")]
    StoreUnavailable(#[source] StoreError),

    /// The call would wait for its own thread, or for callers that wait as it would: made inside a job of the same valve
    /// while [every slot is held by jobs that wait so](crate::guarantees#nested-calls), or
    /// [`Scheduler::shutdown`](crate::Scheduler::shutdown) on the scheduler's own thread.
    #[error("would wait for ever, for a thread that waits for this call")]
    WouldDeadlock,

    /// This process is a forked copy, which has none of the threads that serve a valve. Fork before the first valve is
    /// built, or execute another program in the child.
    #[error("this process was forked after a valve was built: fork before that, or execute another program")]
    Forked,

    /// An argument or setting is out of range.
    #[error("{field} is invalid: {reason}")]
    #[non_exhaustive]
    Invalid {
        /// Which one, as it is called in the API.
        field: String,
        /// What is wrong and what is allowed.
        reason: String,
    },

    /// The operating system refused a thread.
    #[error("the system refused a thread: see how many it allows, and its memory")]
    Spawn(#[source] Arc<std::io::Error>),
}

impl Error {
    /// A number that stands for the variant, the same in every release and never used for another. Always positive.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(valve::Error::Closed.code(), 4);
    /// ```
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Error::Timeout { .. } => 1,
            Error::WouldWait { .. } => 2,
            Error::Cancelled => 3,
            Error::Closed => 4,
            Error::QueueFull { .. } => 5,
            Error::CostTooLarge { .. } => 6,
            Error::LeaseLost => 7,
            Error::StoreUnavailable(_) => 8,
            Error::WouldDeadlock => 9,
            Error::Forked => 10,
            Error::Invalid { .. } => 11,
            Error::Spawn(_) => 12,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Invalid { field: field.into(), reason: reason.into() }
    }
}

/// What holds up a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// A rate rule has no budget left.
    #[non_exhaustive]
    Rate {
        /// The name of the rule.
        rule: Arc<str>,
    },
    /// As many jobs run as this valve's `concurrency` allows.
    LocalConcurrency,
    /// As many jobs run in the fleet as its `global_concurrency` allows.
    GlobalConcurrency,
    /// The valve is paused.
    Paused,
    /// The store cannot be asked.
    Store,
    /// Other calls wait already, and come first.
    Queue,
}

impl fmt::Display for Blocked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::Rate { rule } => write!(out, "rule {rule}"),
            Blocked::LocalConcurrency => out.write_str("the limit on local concurrency"),
            Blocked::GlobalConcurrency => out.write_str("the limit on global concurrency"),
            Blocked::Paused => out.write_str("a pause"),
            Blocked::Store => out.write_str("the store being unavailable"),
            Blocked::Queue => out.write_str("calls that came first"),
        }
    }
}

/// A store could not do what it was asked to.
///
/// # Examples
///
/// ```
/// use valve::{Executed, StoreError, StoreErrorKind};
///
/// let error = StoreError::new(StoreErrorKind::Unreachable, Executed::No, "connection refused");
/// assert_eq!(error.to_string(), "unreachable: connection refused");
/// assert_eq!(error.executed(), Executed::No);
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    executed: Executed,
    message: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// Makes an error of this kind; the message is for people and says what to do.
    #[must_use]
    pub fn new(kind: StoreErrorKind, executed: Executed, message: impl Into<String>) -> StoreError {
        StoreError { kind, executed, message: message.into().into(), source: None }
    }

    /// The store panicked: what it had done by then nobody can tell.
    pub(crate) fn panicked() -> StoreError {
        let message = "the store panicked while it was asked; its author should see the panic's message";
        StoreError::new(StoreErrorKind::Panicked, Executed::Unknown, message)
    }

    /// Adds what caused it.
    #[must_use]
    pub fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError { source: Some(Arc::new(source)), ..self }
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the store may have done what it was asked to.
    #[must_use]
    pub fn executed(&self) -> Executed {
        self.executed
    }
}

/// The kinds of [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection could be made, or it was closed.
    Unreachable,
    /// No answer came in time.
    Timeout,
    /// The credentials were refused.
    Auth,
    /// The user lacks a right.
    Permission,
    /// The server takes no writes now.
    ReadOnly,
    /// The server answers, but not now: it loads, or runs a long script.
    Busy,
    /// The server is out of memory.
    OutOfMemory,
    /// What is stored is not ours or not readable.
    Corrupt,
    /// The answer made no sense.
    Protocol,
    /// The store itself panicked.
    Panicked,
    /// Anything else.
    Other,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StoreErrorKind::Unreachable => "unreachable",
            StoreErrorKind::Timeout => "no answer in time",
            StoreErrorKind::Auth => "credentials refused",
            StoreErrorKind::Permission => "permission missing",
            StoreErrorKind::ReadOnly => "read-only",
            StoreErrorKind::Busy => "busy",
            StoreErrorKind::OutOfMemory => "out of memory",
            StoreErrorKind::Corrupt => "corrupt",
            StoreErrorKind::Protocol => "protocol violation",
            StoreErrorKind::Panicked => "panicked",
            StoreErrorKind::Other => "store error",
        })
    }
}

/// Whether a failed command may have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Executed {
    /// It certainly did not: nothing is spent, nothing is held.
    No,
    /// Nobody can tell: what it asked for counts as spent.
    Unknown,
}
