//! Jobs that are tried again: in what order, how often, for how long, and how they end.

mod bounds;
mod crowd;
mod endings;
mod order;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Error, Job, Retry, RetryJob, Step, Valve};

use crate::support::micros;

/// What a job of these tests fails with.
#[derive(Debug, Clone)]
enum Trouble {
    Valve(Error),
    /// Its own, at this attempt.
    Own(u32),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Valve(error)
    }
}

impl Trouble {
    fn is_own(&self, attempt: u32) -> bool {
        matches!(self, Trouble::Own(number) if *number == attempt)
    }
}

/// One attempt: whose, which, and when it began.
type Attempt = (&'static str, u32, u64);

/// How a job ended and when; the value is the number of the attempt that was done.
type End = (&'static str, u64, Result<u32, Trouble>);

/// Retried jobs as participants of one clock, and what became of them.
#[derive(Clone)]
struct Tries {
    clock: ManualClock,
    attempts: Arc<Mutex<Vec<Attempt>>>,
    ends: Arc<Mutex<Vec<End>>>,
}

impl Tries {
    fn new(clock: &ManualClock) -> Tries {
        Tries { clock: clock.clone(), attempts: Arc::default(), ends: Arc::default() }
    }

    /// Calls from a thread of its own; `work` is told the number of its attempt.
    fn spawn(
        &self,
        valve: &Valve,
        name: &'static str,
        options: impl for<'a> FnOnce(Job<'a>) -> RetryJob<'a> + Send + 'static,
        mut work: impl FnMut(u32) -> Step<u32, Trouble> + Send + 'static,
    ) {
        let (tries, valve) = (self.clone(), valve.clone());
        self.clock.spawn(name, move || {
            let result = options(valve.job()).run(|_, attempt| {
                tries.attempts.lock().push((name, attempt, tries.now()));
                work(attempt)
            });
            tries.ends.lock().push((name, tries.now(), result));
        });
    }

    /// A job that is not tried again and takes this long.
    fn plain(&self, valve: &Valve, name: &'static str, lasts: Duration) {
        let clock = self.clock.clone();
        self.spawn(
            valve,
            name,
            |job| job.retry(Retry::times(0)),
            move |attempt| {
                clock.sleep(lasts);
                Step::Done(attempt)
            },
        );
    }

    fn now(&self) -> u64 {
        micros(self.clock.now())
    }

    fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().clone()
    }

    /// Whose attempts they were.
    fn order(&self) -> Vec<&'static str> {
        self.attempts().into_iter().map(|(name, ..)| name).collect()
    }

    fn stamps(&self) -> Vec<u64> {
        self.attempts().into_iter().map(|(.., at)| at).collect()
    }

    /// How this job ended, if it did.
    fn end(&self, name: &str) -> Option<(u64, Result<u32, Trouble>)> {
        let ends = self.ends.lock();
        ends.iter().find(|(whose, ..)| *whose == name).map(|(_, at, result)| (*at, result.clone()))
    }

    #[track_caller]
    fn check_ended(&self, name: &str, at: u64, right: impl Fn(&Result<u32, Trouble>) -> bool) {
        match self.end(name) {
            Some((when, result)) => {
                assert!(when == at && right(&result), "{name}: {result:?} at {when}, not at {at}");
            }
            None => panic!("{name} has not ended"),
        }
    }
}

/// Fails so many attempts, each after `lasts`, then is done.
fn failing(
    clock: &ManualClock,
    failures: u32,
    lasts: Duration,
) -> impl FnMut(u32) -> Step<u32, Trouble> + Send + 'static {
    let clock = clock.clone();
    move |attempt| {
        clock.sleep(lasts);
        if attempt <= failures { Step::Again(Trouble::Own(attempt)) } else { Step::Done(attempt) }
    }
}

/// Back in line at once.
fn at_once(times: u32) -> Retry {
    Retry::times(times).backoff(Duration::ZERO)
}

/// Nobody waits, runs or backs off, and no timer is left.
#[track_caller]
fn check_rest(clock: &ManualClock, valve: &Valve) {
    let stats = valve.stats();
    assert_eq!((stats.queued, stats.running, stats.backing_off), (0, 0, 0), "{stats:?}");
    assert_eq!(clock.timers(), 0, "timers are left");
}
