//! The options of one call: [`Job`].

use super::Valve;
use super::call::Call;
use super::cancel::CancelToken;
use super::permit::{OwnedPermit, Permit};
use super::retry::{Retry, RetryJob};
use super::running::Running;
use crate::error::Error;
use std::time::Duration;

/// One call with options. Made by [`Valve::job`]; does nothing until it is run or acquired.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Error, Rule, Valve};
///
/// let valve = Valve::builder("api").rule(Rule::fixed_window(5, Duration::from_secs(3600))).build()?;
/// let sum = valve.job().priority(9).cost(3).max_wait(Duration::from_secs(1)).run(|_| 1 + 1)?;
/// assert_eq!(sum, 2);
///
/// // The window has 2 left and the next begins too late.
/// let refused = valve.job().cost(3).max_wait(Duration::from_millis(1)).run(|_| ());
/// assert!(matches!(refused, Err(Error::Timeout { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is run"]
pub struct Job<'a> {
    valve: &'a Valve,
    call: Call<'a>,
}

impl<'a> Job<'a> {
    pub(super) fn new(valve: &'a Valve) -> Job<'a> {
        Job { valve, call: Call::PLAIN }
    }

    /// Higher starts first; equals start in the order of the calls. Any `i32`. Default: 0, the middle.
    pub fn priority(mut self, priority: i32) -> Job<'a> {
        self.call.priority = priority;
        self
    }

    /// How much of every rule the job uses up. `1 ..=` what each rule admits at once: the burst of a GCRA rule, the limit
    /// of a window. Concurrency counts jobs, whatever they cost. Default: 1, because most limits count calls.
    pub fn cost(mut self, cost: u32) -> Job<'a> {
        self.call.cost = cost;
        self
    }

    /// How long from now the job may wait to start. Zero does not wait at all; [`Duration::MAX`], like anything of ten
    /// years and more, waits for ever. A call whose start a rule puts later than this ends at once. Default: for ever,
    /// so that no job is given up unless its caller says so.
    pub fn max_wait(mut self, wait: Duration) -> Job<'a> {
        self.call.max_wait = Some(wait);
        self
    }

    /// Ends the call when the token is cancelled; a job that runs by then is told by its [`Running`]. Default: no token, so
    /// nobody can.
    pub fn cancel(mut self, token: &'a CancelToken) -> Job<'a> {
        self.call.token = Some(token);
        self
    }

    /// Lets the job be tried again when it fails: see [`RetryJob::run`].
    pub fn retry(self, retry: Retry) -> RetryJob<'a> {
        RetryJob::new(self.valve, self.call, retry)
    }

    /// Waits for its start, runs `work` on this thread, and gives what it returned. A panic in it gives the slot back and
    /// goes on to the caller. `work` can ask its [`Running`] whether it should stop.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] after `work` has run, if the job lost its fleet-wide slot; its value is dropped. Any other of
    /// [`Error`] but `WouldWait` if `work` has not run.
    pub fn run<T>(self, work: impl FnOnce(&Running<'_>) -> T) -> Result<T, Error> {
        let permit = self.valve.admit(&self.call)?;
        let inside = self.valve.enter(&permit);
        let value = work(&self.valve.running(&permit, self.call.token));
        drop(inside);
        permit.outcome()?;
        Ok(value)
    }

    /// Like [`run`](Job::run) for work that can fail: one error type holds both.
    ///
    /// # Errors
    ///
    /// The work's own, or those of [`run`](Job::run); of the two, [`Error::LeaseLost`].
    pub fn try_run<T, E: From<Error>>(self, work: impl FnOnce(&Running<'_>) -> Result<T, E>) -> Result<T, E> {
        self.run(work)?
    }

    /// Waits for a permit.
    ///
    /// # Errors
    ///
    /// Any of [`Error`] but `WouldWait` and `LeaseLost`.
    pub fn acquire(self) -> Result<Permit<'a>, Error> {
        self.valve.admit(&self.call)
    }

    /// Waits for a permit that keeps the valve alive.
    ///
    /// # Errors
    ///
    /// Any of [`Error`] but `WouldWait` and `LeaseLost`.
    pub fn acquire_owned(self) -> Result<OwnedPermit, Error> {
        self.valve.admit_owned(&self.call)
    }

    /// Gives a permit if the job can start now and nobody comes first. On a store that can block it may take one call to
    /// the store.
    ///
    /// # Errors
    ///
    /// [`Error::WouldWait`] if it cannot; any other of [`Error`] but `Timeout`, `WouldDeadlock` and `LeaseLost`.
    pub fn try_acquire(mut self) -> Result<Permit<'a>, Error> {
        self.call.instant = true;
        self.valve.admit(&self.call)
    }
}
