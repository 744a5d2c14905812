//! Faults that users of other limiters reported, each as a small input with the right value.

mod costs;
mod headers;
mod hints;
mod spacing;
pub(crate) mod stepped_clock;
mod threads;
mod waiting;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Error, Job, Rule, Valve, ValveBuilder};

/// A valve on a clock of its own, and when its jobs started.
struct Scene {
    clock: ManualClock,
    valve: Valve,
    /// In microseconds, in the order of the starts.
    starts: Arc<Mutex<Vec<u64>>>,
}

/// One call's end, once the clock has come so far.
type Ending = JoinHandle<Result<(), Error>>;

impl Scene {
    fn new(rule: impl Into<Rule>) -> Scene {
        Scene::with(|valve, _| valve.rule(rule))
    }

    fn with(set: impl FnOnce(ValveBuilder, &ManualClock) -> ValveBuilder) -> Scene {
        let clock = ManualClock::new();
        let valve = set(Valve::builder("peer").clock(&clock), &clock).build().unwrap();
        Scene { clock, valve, starts: Arc::default() }
    }

    /// A job that takes no time, called for by a thread of its own as soon as the clock lets it.
    fn job(&self, options: impl for<'a> FnOnce(Job<'a>) -> Job<'a> + Send + 'static) -> Ending {
        let (valve, clock, starts) = (self.valve.clone(), self.clock.clone(), Arc::clone(&self.starts));
        self.clock.spawn("job", move || options(valve.job()).run(|_| starts.lock().push(micros(clock.now()))))
    }

    fn jobs(&self, count: usize) {
        for _ in 0..count {
            self.job(|job| job);
        }
    }

    /// Turns the clock on to this instant.
    fn to(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms) - self.clock.now());
    }

    #[track_caller]
    fn check_starts(&self, expected_ms: impl IntoIterator<Item = u64>) {
        let expected: Vec<_> = expected_ms.into_iter().map(|ms| ms * 1_000).collect();
        assert_eq!(*self.starts.lock(), expected, "starts, in microseconds");
    }

    /// Takes one unit now.
    #[track_caller]
    fn take(&self) {
        self.valve.try_acquire().map(drop).unwrap();
    }

    /// How long a call that does not wait is told to, in microseconds.
    #[track_caller]
    fn hint(&self) -> u64 {
        match self.valve.try_acquire() {
            Err(Error::WouldWait { retry_after: Some(wait), .. }) => micros(wait),
            other => panic!("not a refusal with a hint: {other:?}"),
        }
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The most starts in any half-open window of this length.
fn most_in_any_window(starts: &[u64], length: u64) -> usize {
    let ends = |begin: usize| starts.partition_point(|&start| start < starts[begin] + length);
    (0..starts.len()).map(|begin| ends(begin) - begin).max().unwrap_or(0)
}
