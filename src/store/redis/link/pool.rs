//! Keeps connections for the next call, makes new ones on threads of their own, and bounds both number and wait.
//!
//! `r2d2` is shown no failure: a connection that could not be made is handed out as one that says why. So the caller who waits
//! learns the true reason at once instead of `r2d2`'s time-out, and no attempt is repeated behind its back.

use super::{Failed, Link, Lost, Reply};
use crate::clock::{Clock, Tick, duration, ticks_up};
use crate::error::{Blocked, Error, Executed, StoreError, StoreErrorKind};
use crate::event::caught;
use crate::os;
use crate::store::Deadline;
use crate::store::redis::outcome;
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// A connection that has not been used for so long may have been closed meanwhile.
const DOUBTED_AFTER: Tick = 1_000_000;

/// One that nobody has used for so long is closed: servers and networks drop such ones without a word.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// Connections of one client for one kind of call.
pub(crate) struct Pool {
    /// Gone only in a forked child, which leaves all as it is.
    links: Option<r2d2::Pool<Dialer>>,
    traffic: Arc<Traffic>,
    /// How many calls wait for a connection.
    waiting: AtomicU64,
}

/// The calls of a client, over all its pools, and what they learned of its connections.
pub(in crate::store::redis) struct Traffic {
    server: String,
    timeout: Duration,
    /// How many connections broke.
    losses: AtomicU64,
    /// Connections made before this are to be replaced.
    replaced: AtomicU64,
    calls: Mutex<Calls>,
    over: Condvar,
}

#[derive(Default)]
struct Calls {
    running: usize,
    closed: bool,
}

/// The threads on which the pools of one client connect.
#[derive(Clone)]
pub(in crate::store::redis) struct Threads(Option<Arc<ScheduledThreadPool>>);

/// How a connection is made.
pub(in crate::store::redis) type Dial = Box<dyn Fn() -> Result<Link, StoreError> + Send + Sync>;

struct Dialer(Dial);

enum Dialled {
    Link(Box<Link>),
    Failed { error: StoreError, at: Tick },
}

impl Pool {
    pub(in crate::store::redis) fn new(
        size: u32,
        dial: Dial,
        traffic: &Arc<Traffic>,
        threads: &Threads,
    ) -> Pool {
        let links = threads.0.as_ref().map(|threads| {
            r2d2::Pool::builder()
                .max_size(size)
                .min_idle(Some(0))
                .test_on_check_out(false)
                .max_lifetime(None)
                .idle_timeout(Some(IDLE_MAX))
                .connection_timeout(traffic.timeout)
                .error_handler(Box::new(r2d2::NopErrorHandler))
                .thread_pool(Arc::clone(threads))
                .build_unchecked(Dialer(dial))
        });
        Pool { links, traffic: Arc::clone(traffic), waiting: AtomicU64::new(0) }
    }

    /// Whether a connection is there now, so that a call need not wait for one.
    pub(in crate::store::redis) fn ready(&self) -> bool {
        self.links.as_ref().is_some_and(|links| links.state().idle_connections > 0)
    }

    /// Sends a command and gives its reply; an error reply is an error. Takes no longer than the client's timeout.
    pub(crate) fn command(&self, parts: &[&[u8]], deadline: &Deadline) -> Result<Reply, StoreError> {
        let deadline = self.bound(deadline);
        self.on_link(&deadline, |link| match link.ask(parts, &deadline)? {
            Ok(reply) => Ok(reply),
            Err(line) => Err(outcome::refused(&line, link.server()).into()),
        })
    }

    /// The caller's deadline, or the end of the client's timeout if that comes first.
    pub(in crate::store::redis) fn bound(&self, deadline: &Deadline) -> Deadline {
        let timeout = self.traffic.timeout;
        match deadline.left() {
            Some(left) if left <= timeout => deadline.clone(),
            _ => Deadline::after(&Clock::System, timeout),
        }
    }

    /// Has `use_it` talk over a connection that is not in other use. It is called again, on another one, only if nothing at
    /// all could be sent: the server had closed the first one while it was idle.
    pub(in crate::store::redis) fn on_link<T>(
        &self,
        deadline: &Deadline,
        mut use_it: impl FnMut(&mut Link) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        let _call = self.traffic.begin()?;
        let Some(links) = &self.links else { return Err(forked()) };
        let begun = Clock::System.now();
        let mut unsent = 0;
        loop {
            let mut held = self.take(links, deadline)?;
            let tried = self.traffic.attempt(&mut held, begun, &mut use_it);
            drop(held);
            let error = match tried {
                Ok(value) => return Ok(value),
                Err(Setback::Outdated) => continue,
                Err(Setback::Unsent(_)) if unsent < links.max_size() => {
                    unsent += 1;
                    continue;
                }
                Err(Setback::Unsent(error) | Setback::Final(error)) => error,
            };
            // `r2d2` makes no connection in the place of a broken one, and tells none of those who wait: have it made.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                drop(links.get_timeout(Duration::ZERO));
            }
            return Err(error);
        }
    }

    fn take(
        &self,
        links: &r2d2::Pool<Dialer>,
        deadline: &Deadline,
    ) -> Result<r2d2::PooledConnection<Dialer>, StoreError> {
        if let Some(held) = links.try_get() {
            return Ok(held);
        }
        let left = deadline.left().unwrap_or(self.traffic.timeout);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let held = links.get_timeout(left);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        held.map_err(|_| {
            let state = links.state();
            let busy = state.idle_connections == 0 && state.connections >= links.max_size();
            self.traffic.none_free(busy.then(|| links.max_size()))
        })
    }

    /// Closes the connections that nobody uses.
    pub(in crate::store::redis) fn clear(&self) {
        while let Some(mut held) = self.links.as_ref().and_then(r2d2::Pool::try_get) {
            if let Dialled::Link(link) = &mut *held {
                link.condemn();
            }
        }
    }
}

/// Why a connection did not serve.
enum Setback {
    /// It is of a time before this call: the next may be better.
    Outdated,
    /// The server does not have the command: the next connection may do.
    Unsent(StoreError),
    /// The caller is told.
    Final(StoreError),
}

impl Traffic {
    pub(in crate::store::redis) fn new(server: String, timeout: Duration) -> Arc<Traffic> {
        let (losses, replaced) = (AtomicU64::new(0), AtomicU64::new(0));
        let (calls, over) = (Mutex::new(Calls::default()), Condvar::new());
        Arc::new(Traffic { server, timeout, losses, replaced, calls, over })
    }

    /// Refuses every call from here on and waits for those that run, at most `timeout`.
    pub(in crate::store::redis) fn close(&self, timeout: Duration) -> Result<(), Error> {
        let begin = Clock::System.now();
        let deadline = begin.saturating_add(ticks_up(timeout));
        let mut calls = self.calls.lock();
        calls.closed = true;
        while calls.running > 0 {
            let now = Clock::System.now();
            if now >= deadline {
                let waited = duration(now - begin);
                return Err(Error::Timeout { waited, retry_after: None, blocked_by: Blocked::Store });
            }
            self.over.wait_for(&mut calls, duration(deadline - now));
        }
        Ok(())
    }

    fn begin(&self) -> Result<Call<'_>, StoreError> {
        if os::forked() {
            return Err(forked());
        }
        let mut calls = self.calls.lock();
        if calls.closed {
            let message = "this client was closed: open another";
            return Err(StoreError::new(StoreErrorKind::Other, Executed::No, message));
        }
        calls.running += 1;
        drop(calls);
        Ok(Call(self))
    }

    fn attempt<T>(
        &self,
        dialled: &mut Dialled,
        begun: Tick,
        use_it: &mut impl FnMut(&mut Link) -> Result<T, Failed>,
    ) -> Result<T, Setback> {
        let link = match dialled {
            Dialled::Link(link) => link,
            Dialled::Failed { error, at } if *at >= begun => return Err(Setback::Final(error.clone())),
            Dialled::Failed { .. } => return Err(Setback::Outdated),
        };
        if link.made < begun && !self.trusts(link) {
            link.condemn();
            return Err(Setback::Outdated);
        }
        match use_it(link) {
            Ok(value) => {
                link.used = Clock::System.now();
                Ok(value)
            }
            Err(Failed::Refused(error)) => {
                self.refused(link, &error);
                Err(Setback::Final(error))
            }
            Err(Failed::Lost(lost)) => {
                link.condemn();
                self.losses.fetch_add(1, Ordering::Relaxed);
                // With the time over, the next connection would not do better, and be lost as well.
                let unsent = matches!(&lost, Lost::Unsent(why) if why.kind() != ErrorKind::TimedOut);
                let error = lost.error(&self.server, Executed::Unknown);
                Err(if unsent { Setback::Unsent(error) } else { Setback::Final(error) })
            }
        }
    }

    /// Whether the connection is open, as far as can be told without asking the server.
    fn trusts(&self, link: &mut Link) -> bool {
        if link.made < self.replaced.load(Ordering::Relaxed) {
            return false;
        }
        let losses = self.losses.load(Ordering::Relaxed);
        let idle = Clock::System.now().saturating_sub(link.used);
        if idle < DOUBTED_AFTER && link.losses == losses {
            return true;
        }
        link.losses = losses;
        link.stream.is_quiet()
    }

    /// A server that takes no writes any more, or does not know us any more, may have been replaced under its name: look it
    /// up again, and log in again.
    fn refused(&self, link: &mut Link, error: &StoreError) {
        link.used = Clock::System.now();
        if matches!(error.kind(), StoreErrorKind::ReadOnly | StoreErrorKind::Auth) {
            link.condemn();
            self.replaced.fetch_max(link.used, Ordering::Relaxed);
        }
    }

    fn none_free(&self, all: Option<u32>) -> StoreError {
        let server = &self.server;
        match all {
            Some(all) => StoreError::new(
                StoreErrorKind::Timeout,
                Executed::No,
                format!("all {all} connections to {server} stayed in use: allow more, or see why it is slow"),
            ),
            None => StoreError::new(
                StoreErrorKind::Unreachable,
                Executed::No,
                format!("no connection to {server} in time: see that the network lets it through"),
            ),
        }
    }
}

/// A call in flight.
struct Call<'a>(&'a Traffic);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = self.0.calls.lock();
        calls.running -= 1;
        let last = calls.closed && calls.running == 0;
        drop(calls);
        if last {
            self.0.over.notify_all();
        }
    }
}

fn forked() -> StoreError {
    StoreError::new(StoreErrorKind::Other, Executed::No, Error::Forked.to_string())
}

impl Threads {
    /// Starts them, or says why the system refused one.
    pub(in crate::store::redis) fn start(count: usize) -> Result<Threads, Error> {
        // It panics instead of returning the system's refusal.
        let started = caught(|| {
            ScheduledThreadPool::builder()
                .num_threads(count)
                .thread_name_pattern("valve-connect-{}")
                .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
                .build()
        });
        match started {
            Some(threads) => Ok(Threads(Some(Arc::new(threads)))),
            None => {
                let refused = std::io::Error::other("no thread to connect to Redis on");
                Err(Error::Spawn(Arc::new(refused)))
            }
        }
    }

    /// Runs something that may block, when a thread is free.
    pub(in crate::store::redis) fn run(&self, errand: impl FnOnce() + Send + 'static) {
        if let Some(threads) = &self.0 {
            threads.execute(errand);
        }
    }
}

impl r2d2::ManageConnection for Dialer {
    type Connection = Dialled;
    type Error = Infallible;

    /// A panic would cost the pool a place for ever, an error would be tried again and again.
    fn connect(&self) -> Result<Dialled, Infallible> {
        let dialled = caught(&self.0).unwrap_or_else(|| {
            let message = "connecting panicked; this is a bug of the library";
            Err(StoreError::new(StoreErrorKind::Panicked, Executed::No, message))
        });
        Ok(match dialled {
            Ok(link) => Dialled::Link(Box::new(link)),
            Err(error) => Dialled::Failed { error, at: Clock::System.now() },
        })
    }

    fn is_valid(&self, _: &mut Dialled) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, dialled: &mut Dialled) -> bool {
        match dialled {
            Dialled::Link(link) => link.bad,
            Dialled::Failed { .. } => true,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if os::forked() {
            mem::forget(self.links.take());
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if os::forked() {
            mem::forget(self.0.take());
        }
    }
}

#[cfg(test)]
mod tests;
