//! Jobs that are tried again: [`Retry`] says how often and when, [`Step`] what came of one attempt.

use super::Valve;
use super::back_off::Slot;
use super::call::Call;
use super::nesting::Inside;
use super::running::Running;
use crate::clock::{Tick, duration, ticks_up};
use crate::error::Error;
use crate::os;
use std::time::Duration;

/// How often a job is tried again, and how long it backs off before.
///
/// The first back-off is drawn from the upper half of `backoff`, so for 100 ms from 50 to 100 ms; each later one from twice
/// the range of the one before it, up to `max_backoff`. Those that failed together then do not come back together, and
/// still leave the other side at least half of the time: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
/// 2015, calls it equal jitter.
///
/// What the valve's rules and pauses ask for comes on top: a retry waits in line like any call.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::Retry;
///
/// let patient = Retry::times(5).backoff(Duration::from_secs(1)).max_backoff(Duration::from_secs(30));
/// let at_once = Retry::times(3).backoff(Duration::ZERO);
/// assert_ne!(patient, at_once);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it does nothing until it is given to a job"]
pub struct Retry {
    times: u32,
    first: Duration,
    longest: Duration,
}

impl Retry {
    /// At most so many attempts after the first: `times(3)` makes up to four. Zero makes one.
    pub fn times(times: u32) -> Retry {
        Retry { times, first: Duration::from_millis(100), longest: Duration::from_secs(60) }
    }

    /// The most that the first back-off takes; half of it is the least. With zero, as with `max_backoff` zero, the job goes
    /// back in line at once. Default: 100 ms, which is little beside most faults and much beside most calls.
    pub fn backoff(self, first: Duration) -> Retry {
        Retry { first, ..self }
    }

    /// The most that any back-off takes; what [`Step::After`] asks for is not cut. Default: 60 s, after which a provider that
    /// says nothing may be asked again.
    pub fn max_backoff(self, longest: Duration) -> Retry {
        Retry { longest, ..self }
    }

    /// How long to back off after this attempt, of which the first is 1. `random` is any number.
    fn wait(&self, attempt: u32, random: u64) -> Duration {
        let first = ticks_up(self.first);
        let doubled = first.saturating_mul(1 << attempt.saturating_sub(1).min(62));
        let most = doubled.min(ticks_up(self.longest));
        let least = most.div_ceil(2);
        duration(least + random % (most - least + 1))
    }
}

/// What came of one attempt of a retried job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<T, E> {
    /// It worked: the call ends with this value.
    Done(T),
    /// It did not, and another attempt would not help: the call ends with this error.
    Fail(E),
    /// It did not: to be tried again, after the [`Retry`]'s back-off. After the last attempt the call ends with this error.
    Again(E),
    /// It did not: to be tried again after exactly this long, in place of the back-off and whatever the greatest one is, as when
    /// the other side said so. Else like `Again`.
    After(Duration, E),
}

/// A [`Job`](crate::Job) that is tried again when it fails. Made by [`Job::retry`](crate::Job::retry).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Error, Retry, Step, Valve};
///
/// #[derive(Debug)]
/// enum Trouble {
///     Valve(Error),
///     Busy,
/// }
/// impl From<Error> for Trouble {
///     fn from(error: Error) -> Trouble {
///         Trouble::Valve(error)
///     }
/// }
///
/// let valve = Valve::builder("api").concurrency(2).build()?;
/// let retry = Retry::times(3).backoff(Duration::from_millis(1));
///
/// let tried = valve.job().retry(retry).run(|_, attempt| match attempt {
///     1 | 2 => Step::Again(Trouble::Busy),
///     _ => Step::Done(attempt),
/// });
/// assert!(matches!(tried, Ok(3)));
///
/// let never: Result<(), Trouble> = valve.job().retry(retry).run(|_, _| Step::Again(Trouble::Busy));
/// assert!(matches!(never, Err(Trouble::Busy))); // after four attempts
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is run"]
pub struct RetryJob<'a> {
    valve: &'a Valve,
    call: Call<'a>,
    retry: Retry,
}

impl<'a> RetryJob<'a> {
    pub(super) fn new(valve: &'a Valve, call: Call<'a>, retry: Retry) -> RetryJob<'a> {
        RetryJob { valve, call, retry }
    }

    /// Waits for its start and runs `work` on this thread, again and again until it is [`Done`](Step::Done), has
    /// [failed](Step::Fail), or the [`Retry`] is used up. `work` is told the number of the attempt, from 1.
    ///
    /// - Each attempt waits for a slot and for the rules, and pays the job's cost.
    /// - While it backs off, the job holds no slot, is not queued and holds up nobody. Then it comes back in line with its
    ///   priority and as of its first call, so before equals that called later. With a back-off of zero it is in line before
    ///   its slot comes free.
    /// - `max_wait` counts from the call to the start of the last attempt. As soon as it is certain that the next cannot start
    ///   within, the call ends with the last error.
    /// - A cancelled token ends a wait, also in back-off, and lets no further attempt start.
    /// - `max_queue` lets each retry in, and so does [`drain`](Valve::drain), which waits for them;
    ///   [`close`](Valve::close) ends them.
    /// - A panic in `work` gives the slot back and goes on to the caller.
    ///
    /// # Errors
    ///
    /// The last attempt's own, if it failed, if there may be no other, or if `max_wait` leaves no time for one. [`Error::Cancelled`],
    /// [`Error::Closed`], [`Error::StoreUnavailable`], [`Error::CostTooLarge`] if the rules changed, [`Error::WouldDeadlock`]
    /// or [`Error::Forked`] if the next attempt could not start for that reason, and any other of [`Error`] but `WouldWait` if
    /// the first could not. [`Error::LeaseLost`] if an attempt lost its fleet-wide slot, whatever it returned.
    pub fn run<T, E: From<Error>>(
        self,
        mut work: impl FnMut(&Running<'_>, u32) -> Step<T, E>,
    ) -> Result<T, E> {
        let core = &*self.valve.core;
        let (mut grant, standing) = core.start_in_line(&self.call)?;
        let mut attempt = 1;
        loop {
            let slot = Slot::new(core, grant);
            let held = slot.grant();
            let inside = Inside::enter(core, held);
            let step = work(&Running::new(core, held, self.call.token), attempt);
            drop(inside);
            if os::forked() {
                return Err(Error::Forked.into());
            }
            if core.is_lost(held) {
                return Err(Error::LeaseLost.into());
            }
            let (wait, error) = match step {
                Step::Done(value) => return Ok(value),
                Step::Fail(error) => return Err(error),
                Step::Again(error) => {
                    (self.retry.wait(attempt, random(core.clock.now(), standing.sequence)), error)
                }
                Step::After(wait, error) => (wait, error),
            };
            if attempt > self.retry.times {
                return Err(error);
            }
            grant = match core.again(slot, &self.call, &standing, wait) {
                Ok(grant) => grant,
                Err(Error::Timeout { .. }) => return Err(error),
                Err(other) => return Err(other.into()),
            };
            attempt += 1;
        }
    }
}

/// A number that differs between calls, between attempts and, by the last bits of the time, between processes: Steele, Lea
/// and Flood's SplitMix.
fn random(now: Tick, sequence: u64) -> u64 {
    let mixed = now.rotate_left(32).wrapping_add(sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
