//! What callers hold: [`Valve`], and through it jobs, permits and figures.

mod back_off;
mod call;
mod cancel;
mod closing;
mod core;
mod failing;
mod job;
mod later;
mod leasing;
mod limits;
mod nesting;
mod pausing;
mod permit;
mod recount;
mod retry;
mod running;
mod settings;
mod stats;
mod stripes;
mod told;
mod turn;
mod wait;

use self::core::{Core, Direct, ENDED, Grant, RUNNING};
use crate::error::Error;
use crate::feedback::Feedback;
use crate::os;
use crate::rule::Rule;
use crate::scheduler::Why;
use crate::sync::Ordering;
use back_off::Standing;
use call::Call;
use nesting::Inside;
use std::sync::Arc;
use std::time::Duration;

pub use cancel::CancelToken;
pub use job::Job;
pub use limits::Concurrency;
pub use permit::{OwnedPermit, Permit};
pub use retry::{Retry, RetryJob, Step};
pub use running::{OnAbort, Running};
pub use settings::{OnStoreError, ValveBuilder};
pub use stats::Stats;

/// Gates jobs: each starts when every rate rule, every concurrency limit and no pause lets it, in the order of priority
/// and then of the calls.
///
/// A waiting call parks its thread. Clones are the same valve, cheap, and may be used from any thread; the valve lives as
/// long as one of them, a permit or a waiting call does. The [guarantees](crate::guarantees) say what holds exactly.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Error, Rule, Valve};
///
/// let valve = Valve::builder("github")
///     .rule(Rule::gcra(10, Duration::from_secs(1)).burst(5))
///     .rule(Rule::fixed_window(5_000, Duration::from_secs(3600)).named("hourly"))
///     .concurrency(8)
///     .build()?;
///
/// assert_eq!(valve.run(|| "a page")?, "a page");
///
/// let permits: Vec<_> = (0..4).map(|_| valve.try_acquire()).collect::<Result<_, _>>()?;
/// assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. }))); // the burst of 5 is spent
/// # drop(permits);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Valve {
    core: Arc<Core>,
}

impl Valve {
    /// Begins a valve. Valves of one id share their counts wherever they share a store. The id is any text of 1 to 10,240
    /// bytes.
    pub fn builder(id: impl Into<String>) -> ValveBuilder {
        ValveBuilder::new(id.into())
    }

    /// Gives the id it was built with.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.core.id
    }

    /// Waits until a job of cost 1 may start, runs `work` on this thread, and gives what it returned. A panic in it gives
    /// the slot back and goes on to the caller.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::QueueFull`], [`Error::StoreUnavailable`], [`Error::WouldDeadlock`] inside a job of this
    /// valve, or [`Error::Forked`]: `work` has not run then. [`Error::LeaseLost`] after it has, if the job lost its
    /// fleet-wide slot; its value is dropped.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let permit = self.acquire()?;
        let inside = self.enter(&permit);
        let value = work();
        drop(inside);
        permit.outcome()?;
        Ok(value)
    }

    /// Like [`run`](Valve::run) for work that can fail: one error type holds both.
    ///
    /// # Errors
    ///
    /// The work's own, or those of [`run`](Valve::run); of the two, [`Error::LeaseLost`].
    ///
    /// # Examples
    ///
    /// ```
    /// use valve::Valve;
    ///
    /// fn parse(valve: &Valve, text: &str) -> Result<u32, Box<dyn std::error::Error>> {
    ///     valve.try_run(|| Ok(text.parse::<u32>()?))
    /// }
    ///
    /// let valve = Valve::builder("parser").concurrency(2).build()?;
    /// assert_eq!(parse(&valve, "42")?, 42);
    /// assert!(parse(&valve, "forty-two").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_run<T, E: From<Error>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.run(work)?
    }

    /// Waits until a job of cost 1 may start; the permit stands for it.
    ///
    /// A permit belongs to no thread: a call that waits for a slot while its own thread holds the last permit is not seen to
    /// wait for ever.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Valve::run) but `LeaseLost`, which [`Permit::finish`] gives.
    #[inline]
    pub fn acquire(&self) -> Result<Permit<'_>, Error> {
        if !os::forked() {
            if let Direct::Granted(grant) = self.core.quick(1) {
                return Ok(Permit::new(&self.core, grant));
            }
        }
        self.core.admit(&Call::PLAIN).map(|grant| Permit::new(&self.core, grant))
    }

    /// Like [`acquire`](Valve::acquire), with a permit that keeps the valve alive.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Valve::acquire).
    pub fn acquire_owned(&self) -> Result<OwnedPermit, Error> {
        self.admit_owned(&Call::PLAIN)
    }

    /// Gives a permit if a job of cost 1 can start now and nobody comes first; never waits for other jobs. On a store
    /// that can block it may take one call to the store.
    ///
    /// # Errors
    ///
    /// [`Error::WouldWait`] if it cannot, saying why and for how long; [`Error::Closed`], [`Error::StoreUnavailable`] or
    /// [`Error::Forked`].
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Error> {
        let direct = if os::forked() { Direct::Unable } else { self.core.quick(1) };
        if let Direct::Granted(grant) = direct {
            return Ok(Permit::new(&self.core, grant));
        }
        self.core.try_thoroughly(&direct).map(|grant| Permit::new(&self.core, grant))
    }

    /// Begins a call with options.
    pub fn job(&self) -> Job<'_> {
        Job::new(self)
    }

    /// Lets no job of this id start for `length` from now, in any valve that shares the store. Pauses only lengthen: a
    /// shorter one, or one of zero, changes nothing. It is cut to [`max_pause`](ValveBuilder::max_pause). Jobs admitted before
    /// go on.
    ///
    /// Returns once the store has recorded it. Calls of `pause`, [`resume`](Valve::resume) and [`observe`](Valve::observe) for
    /// one id reach the store one at a time, in their order; waiting for that counts for the time that one call may take.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if it may not be recorded, also because a `resume` came before it was sent;
    /// [`Error::Forked`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Blocked, Error, Valve};
    ///
    /// let valve = Valve::builder("api").build()?;
    /// valve.pause(Duration::from_secs(60))?;
    /// assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    /// valve.resume()?;
    /// assert!(valve.try_acquire().is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn pause(&self, length: Duration) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        if length.is_zero() {
            return Ok(());
        }
        self.core.pause(length)
    }

    /// Ends the pause of this id, whoever made it and however long it is. Waiters may start at once. Pauses that this process
    /// has called for and not sent to the store yet never are.
    ///
    /// Returns once the store has recorded it.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if it may not be recorded; [`Error::Forked`].
    pub fn resume(&self) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.core.resume()
    }

    /// Heeds what a provider said: everybody pauses for as long as it asked for, in every valve of this id that shares the
    /// store. Gives that pause, cut to [`max_pause`](ValveBuilder::max_pause), or `None` if none was asked for.
    ///
    /// Returns at once. The pause begins in this valve with the call; the store is told in the background, in the order of
    /// these calls. If that fails it is not tried again: the handler of [`on_event`](ValveBuilder::on_event) gets
    /// [`Event::PauseFailed`](crate::Event::PauseFailed), and the pause holds in this valve alone. Use
    /// [`pause`](Valve::pause) to be sure. [`resume`](Valve::resume) ends it. Pauses only lengthen.
    ///
    /// In a forked child it does nothing but read.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Blocked, Error, Feedback, Valve};
    ///
    /// let valve = Valve::builder("api").build()?;
    /// let answer = Feedback::from_response(429, [("Retry-After", "30")]);
    /// assert_eq!(valve.observe(&answer), Some(Duration::from_secs(30)));
    /// assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    ///
    /// assert_eq!(valve.observe(&Feedback::from_response(200, [("Server", "x")])), None);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn observe(&self, feedback: &Feedback) -> Option<Duration> {
        let pause = feedback.pause_for()?;
        if os::forked() {
            return Some(pause.min(self.core.pause_max));
        }
        Some(self.core.observe(pause))
    }

    /// Tells what goes on in this valve. In a forked child all figures are 0.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Puts other rules in force instead of those it has, for the calls that wait too; none at all lifts every rate. At
    /// most 16.
    ///
    /// What is spent stays spent: a rule goes on from what was spent under one of the same kind and name, or without a name
    /// under one of the same kind and interval; a window of another interval is always another count. Calls let through at
    /// this very moment, and asks on their way to the store, still start under the old rules. Waiting calls whose cost no
    /// rule could ever admit now end with [`Error::CostTooLarge`]. Other valves of the same id keep their own rules. Never
    /// blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a rule out of range, or more than 16; nothing changes then. [`Error::Forked`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Rule, Valve};
    ///
    /// let valve = Valve::builder("api").rule(Rule::gcra(10, Duration::from_secs(1))).build()?;
    /// valve.set_rules([Rule::gcra(1, Duration::from_secs(1)).into()])?;
    /// assert!(valve.set_rules([Rule::gcra(0, Duration::from_secs(1)).into()]).is_err());
    /// # Ok::<(), valve::Error>(())
    /// ```
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.core.set_rules(rules.into_iter().collect())
    }

    /// Puts other limits on concurrency in force instead of those it has, both kinds at once, for the calls that wait too.
    ///
    /// Jobs that run beyond a smaller limit go on; new ones start once fewer run. A job keeps the lease that it started with,
    /// with its TTL, or goes on without one. Other valves of the same id keep their own limits. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a limit out of range, or a global one with [`OnStoreError::Open`]; nothing changes then.
    /// [`Error::StoreUnavailable`] if the system has no random numbers to name leases with. [`Error::Forked`].
    pub fn set_concurrency(&self, concurrency: Concurrency) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.core.set_concurrency(concurrency)
    }

    /// Ends every waiting call with [`Error::Closed`], and every later one. Jobs that run go on.
    pub fn close(&self) {
        if !os::forked() {
            self.core.close();
        }
    }

    /// Takes no new calls, lets those that wait and run finish, and closes: after `timeout` at the latest, whatever the
    /// result. Called inside a job of this valve it waits for that job too, so until `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if some had not finished by then; those still waiting have ended with [`Error::Closed`].
    /// [`Error::Forked`] in a forked child.
    pub fn drain(&self, timeout: Duration) -> Result<(), Error> {
        if os::forked() {
            return Err(Error::Forked);
        }
        self.core.drain(timeout)
    }

    /// Marks the calling thread as one whose job holds a slot of this valve.
    #[inline]
    fn enter(&self, permit: &Permit<'_>) -> Inside {
        Inside::enter(&self.core, permit.grant())
    }

    fn running<'a>(&'a self, permit: &'a Permit<'_>, token: Option<&'a CancelToken>) -> Running<'a> {
        Running::new(&self.core, permit.grant(), token)
    }

    /// The clock this valve lives by.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn clock(&self) -> &crate::clock::Clock {
        &self.core.clock
    }

    /// For the model checker: how many run, and whether every call takes the lock.
    #[cfg(all(test, shuttle))]
    pub(crate) fn word(&self) -> (u64, bool) {
        (self.core.fast.running(), self.core.fast.word.load(Ordering::Acquire) & core::SLOW != 0)
    }

    #[inline]
    fn admit(&self, call: &Call<'_>) -> Result<Permit<'_>, Error> {
        self.core.start(call).map(|grant| Permit::new(&self.core, grant))
    }

    fn admit_owned(&self, call: &Call<'_>) -> Result<OwnedPermit, Error> {
        self.core.start(call).map(|grant| OwnedPermit::new(Arc::clone(&self.core), grant))
    }
}

impl std::fmt::Debug for Valve {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Valve").field("id", &self.core.id).finish_non_exhaustive()
    }
}

impl Core {
    /// The quick way, then the thorough one.
    fn start(&self, call: &Call<'_>) -> Result<Grant, Error> {
        if !os::forked() && call.is_quick() {
            if let Direct::Granted(grant) = self.quick(call.cost) {
                return Ok(grant);
            }
        }
        self.start_in_line(call).map(|(grant, _)| grant)
    }

    /// The thorough way only: what a job that may be tried again keeps of it is its place in line.
    fn start_in_line(&self, call: &Call<'_>) -> Result<(Grant, Standing), Error> {
        if call.max_wait.is_some_and(|wait| wait.is_zero()) && !call.instant {
            let since = self.clock.now();
            return self.admit_in_line(&Call { instant: true, ..*call }).map_err(|error| match error {
                Error::WouldWait { retry_after, blocked_by } => {
                    let mut state = self.state.lock();
                    state.totals.refused -= 1;
                    state.totals.timed_out += 1;
                    // On a store that can block, the one ask takes time too.
                    let waited = crate::clock::duration(self.clock.now() - since);
                    Error::Timeout { waited, retry_after, blocked_by }
                }
                other => other,
            });
        }
        self.admit_in_line(call)
    }

    /// Ends a call that does not wait and was not granted at once. One function for a grant and every error, because what a
    /// caller writes the outcome of two into, it reads back from memory on the quick way too, for 5 ns.
    #[cold]
    #[inline(never)]
    fn try_thoroughly(&self, direct: &Direct) -> Result<Grant, Error> {
        let Direct::Refused(wait) = *direct else { return self.admit(&Call::INSTANT) };
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.would_wait(&self.state.lock(), Why::Rate(0), Some(wait), 0))
    }

    fn stats(&self) -> Stats {
        if os::forked() {
            return Stats::default();
        }
        let now = self.clock.now();
        let store_down = match &self.remote {
            Some(remote) => remote.down(),
            None => self.failing.lock().clone(),
        };
        let state = self.state.lock();
        let free = self.free(&state);
        let word = self.fast.word.load(Ordering::Acquire);
        let (striped, striped_ended) = self.fast.stripes.figures();
        let running = (word & RUNNING) - state.reserved + striped;
        let finished = word / ENDED + state.totals.ended + striped_ended;
        Stats {
            queued: state.queue.len(),
            running,
            backing_off: state.queue.backing_off(),
            started: running + finished,
            finished,
            timed_out: state.totals.timed_out,
            cancelled: state.totals.cancelled,
            refused: state.totals.refused + self.refused.load(Ordering::Relaxed),
            paused_for: state.queue.paused_until(now).map(|until| crate::clock::duration(until - now)),
            blocked_by: state.queue.head_blocked(now, free).map(|(why, _)| wait::blocked(&state, why)),
            store_down,
        }
    }
}
