//! Where a retry comes back: in its old place, which is nobody's while it is away.

use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Retry, Rule, Step, Valve};

use super::{Tries, Trouble, at_once, check_rest, failing};
use crate::support::{MILLISECOND, SECOND, Scripted, Step as Answer, closest, ms, secs};

/// V45: with slots, with a rule, on a store that takes time, and although the retry waits in line with others again.
#[test]
fn a_retry_keeps_its_place() {
    #[track_caller]
    fn check(set: impl FnOnce(valve::ValveBuilder, &ManualClock) -> valve::ValveBuilder) {
        let clock = ManualClock::new();
        let valve = set(Valve::builder("id"), &clock).build().unwrap();
        let tries = Tries::new(&clock);
        tries.spawn(&valve, "a", |job| job.retry(at_once(2)), failing(&clock, 2, ms(10)));
        clock.advance(ms(5));
        tries.plain(&valve, "b", ms(10));
        tries.spawn(&valve, "c", |job| job.retry(at_once(1)), failing(&clock, 1, ms(10)));
        tries.plain(&valve, "d", ms(10));
        clock.advance(secs(60));
        assert_eq!(tries.order(), ["a", "a", "a", "b", "c", "c", "d"]);
        assert!(matches!(tries.end("a"), Some((_, Ok(3)))));
        check_rest(&clock, &valve);
    }
    check(|valve, clock| valve.concurrency(1).clock(clock));
    check(|valve, clock| valve.concurrency(1).rule(Rule::gcra(10, secs(1))).clock(clock));
    check(|valve, clock| valve.concurrency(1).store(Scripted::remote(clock)));
    check(|valve, clock| valve.global_concurrency(1, secs(30)).clock(clock));
    check(|valve, clock| {
        let store = Scripted::remote(clock);
        store.then(Answer { before: ms(3), after: ms(3), ..Answer::AT_ONCE });
        valve.concurrency(1).rule(Rule::gcra(100, secs(1))).store(store)
    });

    // A higher priority still comes first, and the place is kept over several waits behind it.
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "a", |job| job.retry(at_once(2)), failing(&clock, 2, ms(10)));
    clock.advance(ms(5));
    tries.plain(&valve, "b", ms(10));
    tries.spawn(&valve, "high", |job| job.priority(1).retry(at_once(1)), failing(&clock, 1, ms(10)));
    clock.advance(secs(1));
    assert_eq!(tries.order(), ["a", "high", "high", "a", "a", "b"]);
}

/// While it backs off others go on; when it comes back it is before those who called later and still wait.
#[test]
fn a_retry_that_backs_off_is_in_nobodys_way() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    let after = |wait: Duration| {
        move |attempt| match attempt {
            1 => Step::After(wait, Trouble::Own(1)),
            _ => Step::Done(attempt),
        }
    };
    tries.spawn(&valve, "a", |job| job.retry(Retry::times(1)), after(ms(100)));
    clock.settle();
    let names = ["b", "c", "d", "e"];
    for name in names {
        tries.plain(&valve, name, ms(40));
    }
    clock.advance(ms(50));
    let stats = valve.stats();
    assert_eq!((stats.running, stats.queued, stats.backing_off), (1, 2, 1));
    // It comes back at 100 ms, while d runs and e waits.
    clock.advance(secs(1));
    let at = |ms: u64| ms * MILLISECOND;
    assert_eq!(
        tries.attempts(),
        [("a", 1, 0), ("b", 1, 0), ("c", 1, at(40)), ("d", 1, at(80)), ("a", 2, at(120)), ("e", 1, at(120))]
    );
    check_rest(&clock, &valve);

    // With an idle valve it starts the moment it comes back.
    tries.spawn(&valve, "alone", |job| job.retry(Retry::times(1)), after(ms(100)));
    clock.settle();
    drop(valve.try_acquire().unwrap());
    clock.advance(secs(1));
    assert_eq!(tries.attempts()[6..], [("alone", 1, at(1_050)), ("alone", 2, at(1_150))]);
}

/// O69: retries are calls like any other to the rules. Each attempt pays.
#[test]
fn retries_stay_inside_the_rate() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(1, secs(1))).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    for number in 1..=10 {
        let failures = u32::from(number % 2 == 0);
        tries.spawn(&valve, "job", |job| job.retry(at_once(3)), failing(&clock, failures, Duration::ZERO));
    }
    clock.advance(secs(60));
    let expected: Vec<u64> = (0..15).map(|second| second * SECOND).collect();
    assert_eq!(tries.stamps(), expected);
    let starts: Vec<_> = tries.stamps().into_iter().map(|at| (at, 1)).collect();
    assert_eq!(closest(&starts), SECOND);
    check_rest(&clock, &valve);
}

/// O29.
#[test]
fn a_retry_pays_its_own_cost() {
    #[track_caller]
    fn check(cost: u32, expected: [u64; 4]) {
        let clock = ManualClock::new();
        let rule = Rule::gcra(1, secs(1)).burst(cost);
        let valve = Valve::builder("id").rule(rule).clock(&clock).build().unwrap();
        let tries = Tries::new(&clock);
        let work = failing(&clock, 3, Duration::ZERO);
        tries.spawn(&valve, "costly", move |job| job.cost(cost).retry(at_once(3)), work);
        clock.advance(secs(60));
        assert_eq!(tries.stamps(), expected.map(|second| second * SECOND));
    }
    check(1, [0, 1, 2, 3]);
    check(3, [0, 3, 6, 9]);
}

/// O70: keeping the place is bounded by the number of retries, and a back-off lets others by.
#[test]
fn a_job_that_always_fails_starves_nobody() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "a", |job| job.retry(at_once(3)), failing(&clock, u32::MAX, ms(10)));
    clock.advance(ms(1));
    tries.plain(&valve, "b", ms(10));
    clock.advance(secs(1));
    assert_eq!(tries.order(), ["a", "a", "a", "a", "b"]);
    tries.check_ended("a", 40 * MILLISECOND, |result| matches!(result, Err(error) if error.is_own(4)));

    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    let patient = Retry::times(3).backoff(ms(100));
    tries.spawn(&valve, "a", move |job| job.retry(patient), failing(&clock, u32::MAX, ms(10)));
    clock.advance(ms(1));
    tries.plain(&valve, "b", ms(10));
    clock.advance(secs(10));
    assert_eq!(tries.order(), ["a", "b", "a", "a", "a"]);
    check_rest(&clock, &valve);
}
