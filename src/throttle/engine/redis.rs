//! Windows on a Redis server: one self-expiring string per key, touched by single-key commands only.

use super::{Engine, SetOptions};
use crate::error::{Executed, StoreError, StoreErrorKind};
use crate::store::{Deadline, Redis, Reply};
use std::fmt;

/// An engine on a Redis server, for throttles in several processes.
///
/// It sends `GET k`, `SET k v PX ms [NX]` and `DEL k`, and nothing else but what sets a connection up; `k` is the
/// throttle's prefix and the key as they are, without the client's own prefix, so that other implementations of the same
/// throttle can share it. No two keys of a throttle need be on one node of a cluster. What is stored is the window's end, in
/// milliseconds of the Unix epoch.
///
/// A user needs the rights to `+get +set +del` on the throttles' prefixes; [`Redis::check`](crate::Redis::check) tries what
/// valves need, and not these. A throttle that lacks them runs its jobs as if the engine were away.
///
/// Calls are timed by the client: [`RedisBuilder::timeout`](crate::RedisBuilder::timeout), 500 ms unless set. They use
/// connections of their own, as many as [`connections`](crate::RedisBuilder::connections), so that throttles and valves on
/// one client do not wait for each other.
///
/// At shutdown, destroy the throttles first and drop or [close](crate::Redis::close) the client afterwards: a throttle never
/// closes a client it was given.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use valve::{Redis, RedisEngine, ThrottleWindow};
///
/// let redis = Redis::open("redis://localhost")?;
/// let throttle = ThrottleWindow::<(), std::io::Error>::builder("sync:room:")
///     .window(Duration::from_secs(1))
///     .engine(RedisEngine::new(&redis))
///     .build()?;
/// throttle.job("42", |run| Ok(println!("refreshing {}", run.key))).exec()?;
/// throttle.destroy();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisEngine {
    redis: Redis,
}

impl RedisEngine {
    /// Windows on this server. Any number of throttles may use it, and clones of it: their prefixes keep them apart.
    #[must_use]
    pub fn new(redis: &Redis) -> RedisEngine {
        RedisEngine { redis: redis.clone() }
    }

    fn command(&self, parts: &[&[u8]]) -> Result<Reply, StoreError> {
        self.redis.throttle().command(parts, &Deadline::never())
    }
}

impl Engine for RedisEngine {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        match self.command(&[b"GET", key.as_bytes()])? {
            Reply::Nil => Ok(None),
            // What is no text is no time either, which is all that it is read for.
            Reply::Bytes(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            _ => Err(senseless("GET")),
        }
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let px = options.px().to_string();
        let parts: [&[u8]; 6] = [b"SET", key.as_bytes(), value.as_bytes(), b"PX", px.as_bytes(), b"NX"];
        let count = if options.is_if_absent() { 6 } else { 5 };
        match self.command(&parts[..count])? {
            reply if reply.is(b"OK") => Ok(true),
            Reply::Nil if options.is_if_absent() => Ok(false),
            _ => Err(senseless("SET")),
        }
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        match self.command(&[b"DEL", key.as_bytes()])? {
            Reply::Int(_) => Ok(()),
            _ => Err(senseless("DEL")),
        }
    }

    /// Sends nothing: whose keys are whose cannot be told on a server that others use too. Ours expire.
    fn clear(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RedisEngine").field("redis", &self.redis).finish()
    }
}

fn senseless(command: &str) -> StoreError {
    let message =
        format!("the answer to {command} is none: is something between this process and the server?");
    StoreError::new(StoreErrorKind::Protocol, Executed::Unknown, message)
}
