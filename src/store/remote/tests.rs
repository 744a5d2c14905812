//! The breaker's table on ticks, and workers that serve errands in turn.

use super::*;
use crate::error::StoreErrorKind;
use crate::testing::ManualClock;

/// One thing that happens to a breaker whose calls may take 500 ms, and what comes of it.
enum Step {
    /// An admission wants out at this millisecond.
    Gate(u64, Gate),
    /// A call failed at this millisecond, executed or not; whether the store is down from now on.
    Bad(u64, Executed, bool),
    /// A call was answered; whether the store was down until now.
    Good(bool),
}
use Executed::{No, Unknown};
use Step::{Bad, Gate as Asks, Good};

const TIMEOUT: Tick = 500_000;
/// The spread that leaves the pauses nearly as they are: 127.5 would do so exactly.
const MIDDLE: u8 = 128;

fn failure(executed: Executed) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, executed, "refused")
}

fn down_until(ms: u64) -> Gate {
    Gate::Down(ms * 1_000)
}

/// Pauses are compared in whole milliseconds, because [`MIDDLE`] is not quite the middle.
#[track_caller]
fn check(steps: &[Step]) {
    let mut breaker = Breaker::default();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Asks(ms, expected) => {
                let gate = match breaker.gate(ms * 1_000, TIMEOUT) {
                    Gate::Go => Gate::Go,
                    Gate::Down(tick) => Gate::Down(tick / 1_000 * 1_000),
                };
                assert_eq!(&gate, expected, "step {number}: at {ms} ms");
            }
            Bad(ms, executed, turned) => {
                assert_eq!(
                    breaker.bad(&failure(*executed), ms * 1_000, MIDDLE),
                    *turned,
                    "step {number}: at {ms} ms"
                );
            }
            Good(turned) => assert_eq!(breaker.good(), *turned, "step {number}"),
        }
    }
}

#[test]
fn a_definite_failure_takes_the_store_down_and_an_answer_brings_it_back() {
    check(&[
        Asks(0, Gate::Go),
        Bad(0, No, true),
        Asks(49, down_until(50)),
        Asks(51, Gate::Go),
        Good(true),
        Asks(51, Gate::Go),
        Good(false),
    ]);
}

#[test]
fn the_pauses_between_tries_grow_to_400_ms() {
    check(&[
        Bad(0, No, true),
        Asks(51, Gate::Go),
        Bad(51, No, false),
        Asks(150, down_until(151)),
        Asks(152, Gate::Go),
        Bad(152, No, false),
        Asks(351, down_until(352)),
        Asks(353, Gate::Go),
        Bad(353, No, false),
        Asks(753, down_until(753)),
        Asks(754, Gate::Go),
        Bad(754, No, false),
        Asks(1_154, down_until(1_154)),
        Asks(1_155, Gate::Go),
        Good(true),
        // The next outage begins anew.
        Bad(2_000, No, true),
        Asks(2_049, down_until(2_050)),
    ]);
}

#[test]
fn each_pause_is_spread_by_a_fifth_both_ways() {
    #[track_caller]
    fn check(failures: u32, spread: u8, expected: Tick) {
        let mut breaker = Breaker::default();
        for _ in 0..failures {
            breaker.bad(&failure(No), 0, MIDDLE);
            assert_eq!(breaker.gate(10_000_000, TIMEOUT), Gate::Go);
        }
        breaker.bad(&failure(No), 0, spread);
        assert_eq!(breaker.gate(0, TIMEOUT), Gate::Down(expected));
    }
    for (failures, pause) in [(0, 50_000), (1, 100_000), (2, 200_000), (3, 400_000), (9, 400_000)] {
        check(failures, 0, pause / 5 * 4);
        check(failures, 255, pause / 5 * 6);
    }
}

#[test]
fn an_unknown_outcome_alone_does_not_take_the_store_down() {
    check(&[
        Bad(0, Unknown, false),
        Asks(0, Gate::Go),
        Good(false),
        Bad(1, Unknown, false),
        Asks(1, Gate::Go),
    ]);
}

#[test]
fn a_second_failure_in_a_row_does_whatever_its_kind() {
    check(&[Bad(0, Unknown, false), Bad(1, Unknown, true), Asks(1, down_until(51))]);
    check(&[Bad(0, Unknown, false), Bad(1, No, true), Asks(1, down_until(51))]);
}

#[test]
fn one_try_is_under_way_at_a_time() {
    check(&[
        Bad(0, No, true),
        Asks(60, Gate::Go),
        // Nobody else until the try has reported, or twice the timeout has passed: it never will then.
        Asks(60, down_until(1_060)),
        Asks(1_059, down_until(1_060)),
        Asks(1_060, Gate::Go),
        Asks(1_061, down_until(2_060)),
        Bad(1_100, No, false),
        Asks(1_101, down_until(1_200)),
    ]);
}

#[test]
fn calls_that_were_on_their_way_do_not_lengthen_the_first_pause() {
    check(&[
        Bad(0, No, true),
        Bad(1, No, false),
        Bad(2, Unknown, false),
        Bad(3, No, false),
        Asks(3, down_until(50)),
        Asks(51, Gate::Go),
    ]);
}

#[test]
fn settings_out_of_range_are_refused() {
    #[track_caller]
    fn check(workers: usize, timeout: Duration, expected: Option<&str>) {
        let field = match Remote::new(workers, timeout) {
            Ok(_) => None,
            Err(Error::Invalid { field, .. }) => Some(field),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(field.as_deref(), expected);
    }
    let fine = Duration::from_millis(500);
    check(1, Duration::from_millis(1), None);
    check(64, Duration::from_secs(3600), None);
    check(0, fine, Some("workers"));
    check(65, fine, Some("workers"));
    check(4, Duration::from_micros(999), Some("timeout"));
    check(4, Duration::MAX, Some("timeout"));
}

/// Who was served, by which worker, and at which millisecond.
type Served = Arc<Mutex<Vec<(&'static str, String, u128)>>>;

/// An errand that takes 10 ms, and notes who did it and when it was done.
struct Slow {
    name: &'static str,
    clock: ManualClock,
    done: Served,
}

impl Errand for Slow {
    fn run(self: Arc<Self>, _work: Work) {
        self.clock.sleep(Duration::from_millis(10));
        let worker = std::thread::current().name().unwrap().to_owned();
        self.done.lock().push((self.name, worker, self.clock.now().as_millis()));
    }

    fn store_turned(self: Arc<Self>, _down: Option<StoreError>) {}
}

#[test]
fn workers_are_started_as_they_are_needed_and_serve_in_turn() {
    let clock = ManualClock::new();
    let done = Arc::new(Mutex::new(Vec::new()));
    let errand = |name| Arc::new(Slow { name, clock: clock.clone(), done: Arc::clone(&done) });
    let (a, b, c, gone) = (errand("a"), errand("b"), errand("c"), errand("gone"));
    let remote = Remote::new(2, Duration::from_millis(500)).unwrap();
    let submit = |errand: &Arc<Slow>| {
        let weak = Arc::downgrade(errand);
        remote.submit(&clock.clock(), weak).unwrap();
    };

    submit(&gone);
    drop(gone);
    for errand in [&a, &b, &c] {
        submit(errand);
    }
    clock.advance(Duration::from_millis(25));
    submit(&b);
    clock.advance(Duration::from_millis(25));
    let done = std::mem::take(&mut *done.lock());
    let order: Vec<_> = done.iter().map(|(name, _, at)| (*name, *at)).collect();
    assert_eq!(order, [("a", 10), ("b", 10), ("c", 20), ("b", 35)]);
    assert!(
        done.iter().all(|(_, worker, _)| ["valve-store-0", "valve-store-1"].contains(&&**worker)),
        "{done:?}"
    );
}

#[test]
fn workers_end_with_the_last_handle() {
    let clock = ManualClock::new();
    let done = Arc::new(Mutex::new(Vec::new()));
    let errand = Arc::new(Slow { name: "a", clock: clock.clone(), done: Arc::clone(&done) });
    let remote = Remote::new(1, Duration::from_millis(500)).unwrap();
    let other = remote.clone();
    let weak = Arc::downgrade(&errand);
    remote.submit(&clock.clock(), weak.clone()).unwrap();
    clock.advance(Duration::from_millis(10));
    let shared = Arc::downgrade(&remote.handle.asks);

    drop(remote);
    other.submit(&clock.clock(), weak).unwrap();
    clock.advance(Duration::from_millis(10));
    assert_eq!(done.lock().len(), 2, "a clone is a handle too");
    drop(other);
    clock.settle();
    assert_eq!(shared.strong_count(), 0, "the worker holds on");
}

/// A member that notes how the store turned.
#[derive(Default)]
struct Member {
    turns: Mutex<Vec<bool>>,
}

impl Errand for Member {
    fn run(self: Arc<Self>, _work: Work) {}

    fn store_turned(self: Arc<Self>, down: Option<StoreError>) {
        self.turns.lock().push(down.is_some());
    }
}

#[test]
fn members_hear_of_each_turn_once() {
    let remote = Remote::default();
    let member = Arc::new(Member::default());
    let weak = Arc::downgrade(&member);
    remote.join(weak);
    assert!(remote.down().is_none());
    remote.report(Ok(()), 0);
    remote.report(Err(&failure(No)), 1);
    assert_eq!(remote.down().unwrap().kind(), StoreErrorKind::Unreachable);
    remote.report(Err(&failure(No)), 2);
    remote.report(Ok(()), 3);
    remote.report(Ok(()), 4);
    assert!(remote.down().is_none());
    assert_eq!(*member.turns.lock(), [true, false]);
}
