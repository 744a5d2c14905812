//! The client of one Redis server, which everything that shares the server shares.

use super::keys::{self, Keys};
use super::link::{Link, Pool, Reply, Threads, Traffic};
use super::notices::Notices;
use super::script::{Call, NotAfter, Script};
use super::scripts::Scripts;
use super::url::Target;
use crate::clock::Clock;
use crate::error::{Error, StoreError};
use crate::event::say;
use crate::os;
use crate::store::{Deadline, Remote};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A Redis server and the connections to it. Clones are the same client.
///
/// One client serves any number of valves and throttles; its connections, threads and notices are shared by them. It keeps
/// [`connections`](RedisBuilder::connections) for admissions, two more for renewals, releases and pauses, which so never wait
/// behind admissions, one for notices, and, once there is a [`RedisEngine`](crate::RedisEngine), again as many as for
/// admissions for its keys: at most 11 by default, and one more for a moment at the start.
///
/// The server is Redis 6.2 or newer, alone or with replicas; a cluster, Sentinel and TLS are not supported yet. Its
/// `maxmemory-policy` should be `noeviction`: any other throws away counts and leases when memory runs out, which is
/// warned of once.
///
/// # Rights
///
/// A user of its own needs these, with another [`prefix`](RedisBuilder::prefix) in place of `valve:` if there is one:
///
/// ```text
/// ACL SETUSER app on >password ~valve:* resetchannels &valve:notices
///     +eval +evalsha +time +select +publish +subscribe +ping
///     +hget +hmget +hset +hdel +pexpire +zadd +zrem +zcard +zcount +zmscore +zrevrange +zremrangebyrank
/// ```
///
/// Throttles need `+get +set +del` and their own prefixes besides. Without `+publish` and `+subscribe` waiters ask more often.
/// With `+config|get` an evicting server is warned of.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Error, Redis};
///
/// // Nothing is asked of the server until the first call.
/// let redis = Redis::open("redis://localhost:6379/2")?;
/// drop(redis);
///
/// let redis = Redis::builder("redis://app:s3cret@limits.internal").timeout(Duration::from_millis(200)).build()?;
/// assert!(!format!("{redis:?}").contains("s3cret"));
///
/// assert!(matches!(Redis::open("http://localhost"), Err(Error::Invalid { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Redis {
    client: Arc<Client>,
}

struct Client {
    target: Arc<Target>,
    connect_timeout: Duration,
    connections: u32,
    prefix: String,
    remote: Remote,
    traffic: Arc<Traffic>,
    threads: Threads,
    admissions: Pool,
    leases: Pool,
    throttle: OnceLock<Pool>,
    notices: Option<Notices>,
    scripts: Scripts,
}

/// What tests may have the scripts do besides.
#[derive(Debug, Clone, Default)]
pub(super) struct Probe {
    /// The stream to which each grant is added.
    pub(super) grants: Option<(String, String)>,
    /// The time is what a test says, not what the server's clock shows.
    pub(super) manual_time: bool,
}

/// Whether a client listens for notices, on a connection of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subscriber {
    /// It listens from the first call that has to wait, or the first pause: then waiters learn at once of slots that
    /// others release and pauses that others lift.
    On,
    /// It does not: waiters for a fleet-wide slot ask the server each 50 to 60 ms, and a pause that another process lifts
    /// is noticed when it would have ended.
    Off,
}

/// Settings of a [`Redis`], from [`Redis::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build"]
pub struct RedisBuilder {
    url: String,
    timeout: Duration,
    connect_timeout: Duration,
    connections: u32,
    prefix: String,
    subscriber: Subscriber,
    probe: Probe,
}

/// Renewals, releases and pauses: as many as there are threads that make these calls.
const LEASE_CONNECTIONS: u32 = 2;

/// The most threads that connect, however many connections there may be.
const THREADS_MAX: u32 = 8;

const PREFIX_MAX: usize = 256;

impl Redis {
    /// The client of the server at `url`, with all other settings as they are by default: see [`builder`](Redis::builder).
    ///
    /// # Errors
    ///
    /// Those of [`RedisBuilder::build`].
    pub fn open(url: &str) -> Result<Redis, Error> {
        Redis::builder(url).build()
    }

    /// Begins a client of the server at `url`:
    ///
    /// - `redis://[[user]:password@]host[:port][/database]`; the port is 6379 unless it says otherwise, the database 0, and an
    ///   IPv6 address goes in brackets;
    /// - `redis+unix:///path/to/socket[?db=&user=&pass=]`, or with `unix:` in front.
    ///
    /// Characters of a password that mean something in a URL are percent-encoded.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder {
            url: url.to_owned(),
            timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_millis(500),
            connections: 4,
            prefix: "valve:".to_owned(),
            subscriber: Subscriber::On,
            probe: Probe::default(),
        }
    }

    /// Connects, logs in and tries everything that valves need, so that a wrong address, password or right is known when
    /// the program starts and not by its first job. Takes at most the [`timeout`](RedisBuilder::timeout); leaves
    /// nothing on the server. The right to subscribe, without which waiters poll, and those that
    /// [throttles](crate::RedisEngine) need are not tried.
    ///
    /// # Errors
    ///
    /// What a valve would meet. A missing right to publish is one, although valves do without: waiters in other
    /// processes then poll.
    pub fn check(&self) -> Result<(), StoreError> {
        let client = &self.client;
        // Named like those of an id, so that they are in one place of a cluster, too.
        let keys = Keys::new(&format!("{}check:", client.prefix), "check");
        let channel = keys::channel(&client.prefix);
        let keys: [&[u8]; 2] = [&keys.state, &keys.leases];
        let call = Call { keys: &keys, args: &[&channel], fence: NotAfter::Free };
        let script = Script::new(include_str!("scripts/check.lua"));
        script.run(&client.admissions, &call, &Deadline::never()).map(drop)
    }

    /// Refuses every call from here on and waits for those under way, at most `timeout`; then the connections are
    /// closed. Leases that are still held end at their TTL. The threads that connect go with the last clone, and the stores made
    /// from it.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if some call has not ended by then; [`Error::Forked`] in a forked child.
    pub fn close(&self, timeout: Duration) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        if let Some(notices) = &self.client.notices {
            notices.stop();
        }
        let closed = self.client.traffic.close(timeout);
        self.client.admissions.clear();
        self.client.leases.clear();
        if let Some(throttle) = self.client.throttle.get() {
            throttle.clear();
        }
        closed
    }

    /// For admissions.
    pub(super) fn admissions(&self) -> &Pool {
        &self.client.admissions
    }

    /// For renewals, releases, pauses and resumes.
    pub(super) fn leases(&self) -> &Pool {
        &self.client.leases
    }

    /// For the keys of throttles, whose calls wait for neither.
    pub(crate) fn throttle(&self) -> &Pool {
        let client = &self.client;
        if os::forked() {
            // Which refuses every call, too, and need not be made here.
            return &client.admissions;
        }
        client.throttle.get_or_init(|| {
            let dial = dial(&client.target, client.connect_timeout);
            Pool::new(client.connections, dial, &client.traffic, &client.threads)
        })
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.client.remote
    }

    pub(super) fn notices(&self) -> Option<&Notices> {
        self.client.notices.as_ref()
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.client.scripts
    }

    /// What all keys and channels on the server begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.client.prefix
    }
}

impl RedisBuilder {
    /// How long one call may take, over everything it does on the server: 1 ms ..= 1 h. The default is 500 ms, far above a
    /// healthy round trip and short enough for a caller to bear.
    pub fn timeout(self, timeout: Duration) -> RedisBuilder {
        RedisBuilder { timeout, ..self }
    }

    /// How long connecting and logging in may take, over all addresses of the host: 1 ms ..= 1 h. It is cut so
    /// that it ends before the [`timeout`](RedisBuilder::timeout) of the call that waits for it, which so learns why no
    /// connection came about. The default is 500 ms.
    pub fn connect_timeout(self, connect_timeout: Duration) -> RedisBuilder {
        RedisBuilder { connect_timeout, ..self }
    }

    /// The most connections for admissions, 1 ..= 64, made when needed and closed after 5 minutes without use; as many
    /// threads ask for waiting jobs. Two more serve leases and pauses, one the notices, and again as many the throttles. The
    /// default is 4, enough to hide a slow connection behind others.
    pub fn connections(self, connections: u32) -> RedisBuilder {
        RedisBuilder { connections, ..self }
    }

    /// What every key and channel on the server begins with, at most 256 bytes, without `{` and `}`. Fleets that use
    /// the same server for other things use another. The default is `valve:`.
    pub fn prefix(self, prefix: impl Into<String>) -> RedisBuilder {
        RedisBuilder { prefix: prefix.into(), ..self }
    }

    /// Whether to listen for notices. The default is [`Subscriber::On`]: one more connection for much less asking.
    pub fn subscriber(self, subscriber: Subscriber) -> RedisBuilder {
        RedisBuilder { subscriber, ..self }
    }

    /// Has the scripts write down what they do, so that a test knows it whoever heard of it. Each grant is an entry of
    /// this stream with the fields `time` (the server's, in microseconds), `id`, `cost`, `worker` (the name given here),
    /// and, with slots, `token` (16 bytes), `fence` and `end`. Each release and renewal is one of the stream
    /// `<stream>:leases` with `kind`, `time`, `id`, `worker`, `token` and `end`.
    #[cfg(feature = "testing")]
    pub fn log_grants(mut self, stream: impl Into<String>, worker: impl Into<String>) -> RedisBuilder {
        self.probe.grants = Some((stream.into(), worker.into()));
        self
    }

    /// Has the scripts take the time from the test instead of the server's clock.
    #[cfg(feature = "testing")]
    pub fn manual_time(mut self) -> RedisBuilder {
        self.probe.manual_time = true;
        self
    }

    /// Makes the client. Asks nothing of the server.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a setting is; [`Error::Spawn`] if the system refuses a thread to connect on;
    /// [`Error::Forked`] in a process that was forked after a valve or a client was made.
    pub fn build(self) -> Result<Redis, Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        os::watch_forks();
        let target = Arc::new(Target::parse(&self.url)?);
        in_range("timeout", self.timeout)?;
        in_range("connect_timeout", self.connect_timeout)?;
        if !(1..=64).contains(&self.connections) {
            return Err(Error::invalid("connections", format!("{} is not in 1..=64", self.connections)));
        }
        if self.prefix.len() > PREFIX_MAX || self.prefix.contains(['{', '}']) {
            return Err(Error::invalid("prefix", "it is longer than 256 bytes, or contains { or }"));
        }
        // The call that waits for it began earlier, and is to hear of it.
        let connect_timeout = self.connect_timeout.min(self.timeout * 15 / 16);
        let threads = Threads::start((self.connections + LEASE_CONNECTIONS).min(THREADS_MAX) as usize)?;
        let traffic = Traffic::new(target.to_string(), self.timeout);
        let watched = watching(dial(&target, connect_timeout), &target, connect_timeout, &threads);
        let notices = match self.subscriber {
            Subscriber::On => {
                let channel = keys::channel(&self.prefix);
                Some(Notices::new(Arc::clone(&target), channel, connect_timeout))
            }
            Subscriber::Off => None,
        };
        let leases = dial(&target, connect_timeout);
        Ok(Redis {
            client: Arc::new(Client {
                remote: Remote::new(self.connections as usize, self.timeout)?,
                admissions: Pool::new(self.connections, watched, &traffic, &threads),
                leases: Pool::new(LEASE_CONNECTIONS, leases, &traffic, &threads),
                throttle: OnceLock::new(),
                connect_timeout,
                connections: self.connections,
                prefix: self.prefix,
                scripts: Scripts::new(&self.probe),
                target,
                traffic,
                threads,
                notices,
            }),
        })
    }
}

type Dial = Box<dyn Fn() -> Result<Link, StoreError> + Send + Sync>;

fn dial(target: &Arc<Target>, timeout: Duration) -> Dial {
    let target = Arc::clone(target);
    Box::new(move || Link::connect(&target, &Deadline::after(&Clock::System, timeout)))
}

/// After the first connection, and beside it, asks once whether the server throws keys away.
fn watching(dial: Dial, target: &Arc<Target>, timeout: Duration, threads: &Threads) -> Dial {
    let asked = AtomicBool::new(false);
    let (target, threads) = (Arc::clone(target), threads.clone());
    Box::new(move || {
        let link = dial()?;
        if !asked.swap(true, Ordering::Relaxed) {
            let target = Arc::clone(&target);
            threads.run(move || warn_of_eviction(&target, timeout));
        }
        Ok(link)
    })
}

/// A user who may not ask is not warned.
fn warn_of_eviction(target: &Target, timeout: Duration) {
    let deadline = Deadline::after(&Clock::System, timeout);
    let Ok(mut link) = Link::connect(target, &deadline) else { return };
    let Ok(Ok(Reply::Array(parts))) = link.ask(&[b"CONFIG", b"GET", b"maxmemory-policy"], &deadline) else {
        return;
    };
    let [_, Reply::Bytes(policy)] = parts.as_slice() else { return };
    if policy != b"noeviction" {
        say(
            log::Level::Warn,
            format_args!(
                "{target} evicts keys when its memory is full (maxmemory-policy {}): limits and leases would be lost; set it \
                 to noeviction",
                String::from_utf8_lossy(policy)
            ),
        );
    }
}

fn in_range(field: &str, length: Duration) -> Result<(), Error> {
    if length < Duration::from_millis(1) || length > Duration::from_secs(3600) {
        return Err(Error::invalid(field, format!("{length:?} is not in 1 ms ..= 1 h")));
    }
    Ok(())
}

impl fmt::Debug for Redis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("Redis");
        fields.field("target", &self.client.target).field("prefix", &self.client.prefix);
        fields.field("timeout", &self.client.remote.timeout()).finish_non_exhaustive()
    }
}

/// Without the URL, which may hold a password and has not been read yet.
impl fmt::Debug for RedisBuilder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("RedisBuilder");
        fields.field("prefix", &self.prefix).field("timeout", &self.timeout);
        fields.field("connect_timeout", &self.connect_timeout).field("connections", &self.connections);
        fields.field("subscriber", &self.subscriber).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
