//! Stays inside rate and concurrency limits from plain threads: exact, blocking, without async.
//!
#![doc = include_str!("lib.md")]

#[cfg(feature = "ureq")]
mod client;
mod clock;
mod error;
mod event;
mod feedback;
pub mod guarantees;
mod lease;
#[cfg(all(test, shuttle))]
mod model;
mod os;
mod planted;
mod rule;
mod scheduler;
mod store;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttle;
mod valve;

#[cfg(feature = "ureq")]
pub use client::{HttpClient, HttpError, HttpJob, Payload};
pub use error::{Blocked, Error, Executed, StoreError, StoreErrorKind};
pub use event::{Abort, Event};
pub use feedback::Feedback;
pub use rule::{FixedWindow, Gcra, RateRefusal, Rule, RuleSet, RuleState, Verdict};
pub use scheduler::Scheduler;
#[cfg(any(test, feature = "testing"))]
pub use store::MemoryStoreBuilder;
#[doc(hidden)]
pub use store::Quick;
pub use store::{
    Answer, Ask, Counts, Deadline, Lease, MemoryStore, Notice, Refusal, Remote, Slots, Store, Token, Wake,
};
#[cfg(feature = "redis")]
pub use store::{Redis, RedisBuilder, RedisStore, Subscriber};
#[cfg(feature = "redis")]
pub use throttle::RedisEngine;
pub use throttle::{
    Engine, Log, LogLevel, LogRecord, MemoryEngine, MemoryEngineBuilder, Phase, Ran, Run, SetOptions,
    ThrottleError, ThrottleJob, ThrottleStats, ThrottleWait, ThrottleWindow, ThrottleWindowBuilder,
};
pub use valve::{
    CancelToken, Concurrency, Job, OnAbort, OnStoreError, OwnedPermit, Permit, Retry, RetryJob, Running,
    Stats, Step, Valve, ValveBuilder,
};

/// The examples in the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
