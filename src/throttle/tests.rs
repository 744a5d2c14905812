//! The first things to hold, on a clock that the test turns: the timeline in the documentation, and that nothing stays behind.

use super::{MemoryEngine, Phase, Ran, ThrottleError, ThrottleWindow};
use crate::testing::ManualClock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

type Throttle = ThrottleWindow<u64, String>;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Runs of 300 ms in a window of 1 s: when each began, in what phase, with whose closure.
#[derive(Clone)]
struct Runs {
    clock: ManualClock,
    throttle: Throttle,
    begun: Arc<Mutex<Vec<(u64, Phase, u64)>>>,
    ended: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Runs {
    fn new(clock: &ManualClock, throttle: &Throttle) -> Runs {
        Runs {
            clock: clock.clone(),
            throttle: throttle.clone(),
            begun: Arc::default(),
            ended: Arc::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_micros()).unwrap()
    }

    /// Calls at so many milliseconds, from a thread of its own.
    fn call_at(&self, at: u64, waits: bool) {
        let runs = self.clone();
        self.clock.spawn(&format!("call at {at}"), move || {
            runs.clock.sleep(ms(at));
            let inner = runs.clone();
            let job = runs.throttle.job("42", move |run| {
                inner.begun.lock().push((inner.now(), run.phase, at));
                inner.clock.sleep(ms(300));
                Ok(at)
            });
            let gave =
                if waits { format!("{:?}", job.wait_finish().exec()) } else { format!("{:?}", job.exec()) };
            runs.ended.lock().push((runs.now(), gave));
        });
    }
}

#[track_caller]
fn check_timeline(throttle: &Throttle, clock: &ManualClock, slack: u64) {
    let runs = Runs::new(clock, throttle);
    for (at, waits) in [(0, false), (500, false), (900, true), (3_000, false)] {
        runs.call_at(at, waits);
    }
    clock.advance(ms(10_000));
    let second = 1_300_000 + slack;
    assert_eq!(
        *runs.begun.lock(),
        [(0, Phase::Leading, 0), (second, Phase::Trailing, 900), (3_000_000, Phase::Leading, 3_000)]
    );
    assert_eq!(
        *runs.ended.lock(),
        [
            (300_000, "Ok(Now)".to_owned()),
            (500_000, "Ok(Later)".to_owned()),
            (second + 300_000, "Ok(900)".to_owned()),
            (3_300_000, "Ok(Now)".to_owned()),
        ]
    );
    let stats = throttle.stats();
    assert_eq!((stats.active, stats.pending, stats.keys, stats.timers), (0, 0, 0, 0), "{stats:?}");
    assert_eq!((stats.calls, stats.coalesced, stats.leading, stats.trailing), (4, 2, 2, 1), "{stats:?}");
    assert_eq!(clock.timers(), 0, "a timer stayed behind");
}

#[test]
fn the_timeline_holds_to_the_microsecond() {
    let clock = ManualClock::new();
    let throttle = Throttle::builder("sync:").clock(&clock).build().unwrap();
    check_timeline(&throttle, &clock, 0);
}

#[test]
fn on_a_shared_engine_a_window_lasts_two_milliseconds_longer() {
    let clock = ManualClock::new();
    let engine = MemoryEngine::builder().clock(&clock).sweep_interval(ms(100)).build().unwrap();
    let throttle = Throttle::builder("sync:").clock(&clock).engine(engine.clone()).build().unwrap();
    check_timeline(&throttle, &clock, 2_000);
    assert_eq!(engine.len(), 0);
}

#[test]
fn a_destroyed_throttle_ends_its_calls() {
    let clock = ManualClock::new();
    let throttle = Throttle::builder("sync:").clock(&clock).build().unwrap();
    let runs = Runs::new(&clock, &throttle);
    runs.call_at(0, false);
    runs.call_at(100, true);
    clock.advance(ms(150));
    throttle.destroy();
    assert_eq!(throttle.stats().keys, 0);
    clock.advance(ms(1_000));
    let destroyed: Result<u64, _> =
        Err::<u64, _>(ThrottleError::<String>::Destroyed { key: "42".to_owned() });
    let expected = [(150_000, format!("{destroyed:?}")), (300_000, "Ok(Now)".to_owned())];
    assert_eq!(*runs.ended.lock(), expected);
    assert!(matches!(throttle.job("1", |_| Ok(1)).exec(), Err(ThrottleError::Destroyed { .. })));
}

#[test]
fn a_flush_runs_what_is_pending_now() {
    let throttle = Throttle::builder("sync:").window(Duration::from_secs(3_600)).build().unwrap();
    for key in ["a", "b", "c"] {
        assert_eq!(throttle.job(key, |_| Ok(1)).exec().unwrap(), Ran::Now);
    }
    for key in ["a", "b"] {
        assert_eq!(throttle.job(key, |_| Ok(2)).exec().unwrap(), Ran::Later);
    }
    assert_eq!(throttle.flush(), 2);
    assert_eq!(throttle.stats().trailing, 2);
    throttle.shutdown(Duration::from_secs(10)).unwrap();
}

#[test]
fn the_timers_of_idle_windows_go_with_the_throttle() {
    let clock = ManualClock::new();
    let throttle = Throttle::builder("sync:").clock(&clock).build().unwrap();
    for key in 0..100 {
        assert_eq!(throttle.job(&key.to_string(), |_| Ok(1)).exec().unwrap(), Ran::Now);
    }
    assert!(clock.timers() > 0);
    drop(throttle);
    assert_eq!(clock.timers(), 0);
}
