//! What a call to a throttle can end with instead of a run: [`ThrottleError`].

use crate::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a call to a [`ThrottleWindow`](crate::ThrottleWindow) did not give what a run returned.
///
/// Every variant may gain fields and the enum may gain variants, so match with `..` and a wildcard. Failures of the engine
/// are not among them: the job runs all the same.
///
/// # Examples
///
/// A timeout means that the run is still to come or still goes on, so there is nothing to repeat:
///
/// ```
/// use std::time::Duration;
/// use valve::{ThrottleError, ThrottleWindow};
///
/// # #[derive(Debug)] struct SyncError;
/// # impl std::fmt::Display for SyncError {
/// #     fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { out.write_str("no network") }
/// # }
/// let throttle = ThrottleWindow::<u32, SyncError>::builder("sync:room:").build()?;
/// throttle.job("42", |_run| Ok(1)).exec()?;
///
/// let waited = throttle.job("42", |_run| Ok(2)).wait_finish().timeout(Duration::from_millis(20)).exec();
/// match waited {
///     Ok(report) => println!("synced: {report}"),
///     Err(ThrottleError::Timeout { key, .. }) => assert_eq!(key, "42"), // it will run; move on
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), ThrottleError<SyncError>>(())
/// ```
#[non_exhaustive]
pub enum ThrottleError<E> {
    /// The closure's own error. All calls that the run covers get the same one.
    Run(Arc<E>),

    /// The run that covers this call was not over in time. The call still counts and the run still happens.
    #[non_exhaustive]
    Timeout {
        /// The key, without the prefix.
        key: String,
        /// How long the call waited.
        timeout: Duration,
    },

    /// The call lost the race for its key's window to other instances ten times, and was given up.
    #[non_exhaustive]
    Dropped {
        /// The key, without the prefix.
        key: String,
    },

    /// The throttle was destroyed before this call, or before a run covered it.
    #[non_exhaustive]
    Destroyed {
        /// The key, without the prefix.
        key: String,
    },

    /// The closure that covered this call panicked; it may have been another call's.
    #[non_exhaustive]
    Panicked {
        /// The key, without the prefix.
        key: String,
    },

    /// The call would wait for a run that cannot start before the call returns: it was made inside a run of the same key,
    /// or inside a run of another one while 256 such runs wait already.
    #[non_exhaustive]
    WouldDeadlock {
        /// The key, without the prefix.
        key: String,
    },

    /// The valve in front of the throttle refused the run: nothing ran and no window opened. Its error is the source. By `?`
    /// also what [`build`](crate::ThrottleWindowBuilder::build) and [`shutdown`](crate::ThrottleWindow::shutdown) give.
    Valve(Error),

    /// The operating system refused a thread for the run and there is none that could take it, or the
    /// [`spawner`](crate::ThrottleWindowBuilder::spawner) dropped its task.
    #[non_exhaustive]
    Spawn {
        /// The key, without the prefix.
        key: String,
    },

    /// An argument or setting is out of range.
    #[non_exhaustive]
    Invalid {
        /// Which one, as it is called in the API.
        field: String,
        /// What is wrong and what is allowed.
        reason: String,
    },

    /// This process is a forked copy, which has none of the threads that serve a throttle.
    Forked,
}

impl<E> ThrottleError<E> {
    /// The key of the call, if the error is about one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            ThrottleError::Timeout { key, .. }
            | ThrottleError::Dropped { key }
            | ThrottleError::Destroyed { key }
            | ThrottleError::Panicked { key }
            | ThrottleError::WouldDeadlock { key }
            | ThrottleError::Spawn { key } => Some(key),
            ThrottleError::Run(_)
            | ThrottleError::Valve(_)
            | ThrottleError::Invalid { .. }
            | ThrottleError::Forked => None,
        }
    }

    pub(super) fn invalid(field: &str, reason: impl Into<String>) -> ThrottleError<E> {
        ThrottleError::Invalid { field: field.to_owned(), reason: reason.into() }
    }
}

/// By hand, because `E` need not be `Clone`: it is shared.
impl<E> Clone for ThrottleError<E> {
    fn clone(&self) -> ThrottleError<E> {
        match self {
            ThrottleError::Run(error) => ThrottleError::Run(Arc::clone(error)),
            ThrottleError::Timeout { key, timeout } => {
                ThrottleError::Timeout { key: key.clone(), timeout: *timeout }
            }
            ThrottleError::Dropped { key } => ThrottleError::Dropped { key: key.clone() },
            ThrottleError::Destroyed { key } => ThrottleError::Destroyed { key: key.clone() },
            ThrottleError::Panicked { key } => ThrottleError::Panicked { key: key.clone() },
            ThrottleError::WouldDeadlock { key } => ThrottleError::WouldDeadlock { key: key.clone() },
            ThrottleError::Valve(error) => ThrottleError::Valve(error.clone()),
            ThrottleError::Spawn { key } => ThrottleError::Spawn { key: key.clone() },
            ThrottleError::Invalid { field, reason } => {
                ThrottleError::Invalid { field: field.clone(), reason: reason.clone() }
            }
            ThrottleError::Forked => ThrottleError::Forked,
        }
    }
}

impl<E: fmt::Display> fmt::Display for ThrottleError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThrottleError::Run(error) => error.fmt(out),
            ThrottleError::Timeout { key, timeout } => {
                write!(out, "the run of key {key:?} was not over after {timeout:?}; it goes on")
            }
            ThrottleError::Dropped { key } => {
                write!(
                    out,
                    "key {key:?} lost its window to other instances 10 times in a row and was given up"
                )
            }
            ThrottleError::Destroyed { key } => {
                write!(out, "the throttle was destroyed before a run of key {key:?}")
            }
            ThrottleError::Panicked { key } => write!(out, "the run of key {key:?} panicked"),
            ThrottleError::WouldDeadlock { key } => {
                write!(out, "would wait for ever, for a run of key {key:?} that waits for this call")
            }
            ThrottleError::Valve(_) => out.write_str("the valve in front refused the run"),
            ThrottleError::Spawn { key } => {
                write!(out, "no thread for the run of key {key:?}: the system or the spawner refused one")
            }
            ThrottleError::Invalid { field, reason } => write!(out, "{field} is invalid: {reason}"),
            ThrottleError::Forked => Error::Forked.fmt(out),
        }
    }
}

/// By hand, because `E` need not be `Debug`: its text stands in.
impl<E: fmt::Display> fmt::Debug for ThrottleError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyed =
            |out: &mut fmt::Formatter<'_>, name, key| out.debug_struct(name).field("key", key).finish();
        match self {
            ThrottleError::Run(error) => out.debug_tuple("Run").field(&format_args!("{error}")).finish(),
            ThrottleError::Timeout { key, timeout } => {
                out.debug_struct("Timeout").field("key", key).field("timeout", timeout).finish()
            }
            ThrottleError::Dropped { key } => keyed(out, "Dropped", key),
            ThrottleError::Destroyed { key } => keyed(out, "Destroyed", key),
            ThrottleError::Panicked { key } => keyed(out, "Panicked", key),
            ThrottleError::WouldDeadlock { key } => keyed(out, "WouldDeadlock", key),
            ThrottleError::Valve(error) => out.debug_tuple("Valve").field(error).finish(),
            ThrottleError::Spawn { key } => keyed(out, "Spawn", key),
            ThrottleError::Invalid { field, reason } => {
                out.debug_struct("Invalid").field("field", field).field("reason", reason).finish()
            }
            ThrottleError::Forked => out.write_str("Forked"),
        }
    }
}

impl<E: fmt::Display> std::error::Error for ThrottleError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ThrottleError::Valve(error) => Some(error),
            _ => None,
        }
    }
}

/// What [`build`](crate::ThrottleWindowBuilder::build) and [`shutdown`](crate::ThrottleWindow::shutdown) give, so that `?`
/// serves for them and for calls alike.
impl<E> From<Error> for ThrottleError<E> {
    fn from(error: Error) -> ThrottleError<E> {
        match error {
            Error::Invalid { field, reason } => ThrottleError::Invalid { field, reason },
            Error::Forked => ThrottleError::Forked,
            other => ThrottleError::Valve(other),
        }
    }
}
