//! Counts that a fleet shares, on a Redis server.
//!
//! `client` is the server and the connections to it, `counts` what a valve asks of them. Below: `script` runs the Lua in
//! `scripts/`, whose arguments and replies `pack` knows; `link` is one connection, and the only file that names the
//! packages it is made with.

#[cfg(feature = "testing")]
mod bare;
mod client;
mod counts;
mod keys;
mod link;
mod notices;
mod outcome;
mod pack;
mod script;
mod scripts;
mod url;

use super::{Counts, Remote, Store, Wake};
use crate::error::{Executed, StoreError, StoreErrorKind};
use counts::RedisCounts;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "testing")]
pub use bare::BareAdmissions;
pub(crate) use link::Reply;

pub use client::{Redis, RedisBuilder, Subscriber};

/// Limits that all processes share which use the same server, prefix and id.
///
/// Each decision is one script on the server, by the server's clock: pause, rules and slots are looked at together, and
/// then all is spent or nothing is. One call serves up to 64 waiters. What happens when the server cannot be asked is up to
/// [`on_store_error`](crate::ValveBuilder::on_store_error).
///
/// What is counted lives in two keys, `<prefix>{<id>}` and, with [`global_concurrency`](crate::ValveBuilder::global_concurrency),
/// `<prefix>{<id>}:l`. Both expire by themselves once nothing they hold matters any more.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use valve::{Redis, RedisStore, Rule, Valve};
///
/// let redis = Redis::open("redis://localhost")?;
/// redis.check()?;
/// let valve = Valve::builder("github")
///     .rule(Rule::gcra(10, Duration::from_secs(1)))
///     .global_concurrency(20, Duration::from_secs(30))
///     .store(RedisStore::new(&redis))
///     .build()?;
/// valve.run(|| println!("one of at most twenty, in the whole fleet"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    redis: Redis,
}

/// The longest id, in bytes: it is part of every call.
const ID_MAX: usize = 10 * 1_024;

impl RedisStore {
    /// The counts on this server. Any number of valves, and of stores, may share a client.
    #[must_use]
    pub fn new(redis: &Redis) -> RedisStore {
        RedisStore { redis: redis.clone() }
    }
}

impl Store for RedisStore {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        if id.len() > ID_MAX {
            let message = format!("an id of {} bytes; at most {ID_MAX} are allowed", id.len());
            return Err(StoreError::new(StoreErrorKind::Other, Executed::No, message));
        }
        Ok(Arc::new(RedisCounts::new(self.redis.clone(), id)))
    }

    fn remote(&self) -> Option<Remote> {
        Some(self.redis.remote().clone())
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        if let Some(notices) = self.redis.notices() {
            notices.watch(wake);
        }
        Ok(())
    }

    fn notifies(&self) -> bool {
        self.redis.notices().is_some_and(notices::Notices::are_told)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RedisStore").field("redis", &self.redis).finish()
    }
}
