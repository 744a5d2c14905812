//! How long and how often: attempts, `max_wait`, back-offs, and what the other side asked for.

use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Error, Feedback, Retry, Rule, Step, Valve};

use super::{Tries, Trouble, at_once, check_rest, failing};
use crate::support::{Call, Jobs, MILLISECOND, SECOND, Scripted, Step as Answer, call, ms, secs};

#[test]
fn attempts_are_bounded_and_the_last_error_is_given() {
    #[track_caller]
    fn check(times: u32, failures: u32, attempts: u32, done: bool) {
        let clock = ManualClock::new();
        let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
        let tries = Tries::new(&clock);
        let work = failing(&clock, failures, Duration::ZERO);
        tries.spawn(&valve, "job", move |job| job.retry(at_once(times)), work);
        clock.advance(secs(1));
        let numbers: Vec<_> = tries.attempts().into_iter().map(|(_, number, _)| number).collect();
        assert_eq!(numbers, (1..=attempts).collect::<Vec<_>>());
        tries.check_ended("job", 0, |result| match result {
            Ok(number) => done && *number == attempts,
            Err(error) => !done && error.is_own(attempts),
        });
        check_rest(&clock, &valve);
    }
    check(0, 0, 1, true);
    check(0, 1, 1, false);
    check(3, 0, 1, true);
    check(3, 3, 4, true);
    check(3, 4, 4, false);
    check(u32::MAX, 50, 51, true);

    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "gives up", |job| job.retry(at_once(3)), |attempt| Step::Fail(Trouble::Own(attempt)));
    clock.settle();
    tries.check_ended("gives up", 0, |result| matches!(result, Err(error) if error.is_own(1)));
}

/// Each from half of its greatest length to all of it, which doubles up to the longest.
#[test]
fn back_offs_double_up_to_the_longest() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    let retry = Retry::times(6).backoff(ms(100)).max_backoff(ms(1_000));
    tries.spawn(&valve, "job", move |job| job.retry(retry), failing(&clock, 6, Duration::ZERO));
    clock.advance(secs(60));
    let waits: Vec<_> = tries.stamps().windows(2).map(|pair| pair[1] - pair[0]).collect();
    let most = [100, 200, 400, 800, 1_000, 1_000].map(|ms| ms * MILLISECOND);
    assert_eq!(waits.len(), most.len());
    for (wait, most) in waits.iter().zip(most) {
        assert!((most / 2..=most).contains(wait), "{wait} of {most}");
    }
}

/// O68: no cap of the retry's own shortens what the other side asked for.
#[test]
fn what_the_other_side_asks_for_is_not_cut() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1)).burst(5)).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    let retry = Retry::times(3).backoff(ms(100)).max_backoff(secs(1));
    let observing = |again: fn(Duration, Trouble) -> Step<u32, Trouble>| {
        let valve = valve.clone();
        move |attempt| match attempt {
            1 => {
                let answer = Feedback::from_response(429, [("Retry-After", "300")]);
                let wait = valve.observe(&answer).unwrap();
                assert_eq!(wait, secs(300));
                again(wait, Trouble::Own(1))
            }
            _ => Step::Done(attempt),
        }
    };
    tries.spawn(&valve, "after", move |job| job.retry(retry), observing(Step::After));
    clock.settle();
    tries.plain(&valve, "another", Duration::ZERO);
    clock.advance(secs(300));
    assert_eq!(tries.attempts()[1..], [("after", 2, 300 * SECOND), ("another", 1, 300 * SECOND)]);
    // Its own back-off is over long before the pause is.
    tries.spawn(&valve, "again", move |job| job.retry(retry), observing(|_, error| Step::Again(error)));
    clock.settle();
    tries.plain(&valve, "yet another", Duration::ZERO);
    clock.advance(secs(300));
    assert_eq!(tries.attempts()[4..], [("again", 2, 600 * SECOND), ("yet another", 1, 600 * SECOND)]);

    // Without a pause only the job itself waits, exactly as long as it said, be that less than a back-off or a month.
    for wait in [Duration::ZERO, ms(1), secs(2), secs(31 * 24 * 3_600)] {
        let clock = ManualClock::new();
        let valve = Valve::builder("id").clock(&clock).build().unwrap();
        let tries = Tries::new(&clock);
        tries.spawn(
            &valve,
            "job",
            move |job| job.retry(retry),
            move |attempt| match attempt {
                1 => Step::After(wait, Trouble::Own(1)),
                _ => Step::Done(attempt),
            },
        );
        clock.settle();
        clock.advance(wait);
        tries.check_ended("job", crate::support::micros(wait), |result| matches!(result, Ok(2)));
    }
}

/// `max_wait` counts from the call. Once it is certain that the next attempt comes too late, the call ends with the last one's
/// error, and its slot is free.
#[test]
fn the_longest_wait_spans_all_attempts() {
    type Options = for<'a> fn(valve::Job<'a>) -> valve::RetryJob<'a>;
    #[track_caller]
    fn check(options: Options, lasts: Duration, ended_at: Duration, attempts: u32) {
        let clock = ManualClock::new();
        let rule = Rule::gcra(10, secs(1)).burst(2);
        let valve = Valve::builder("id").concurrency(1).rule(rule).clock(&clock).build().unwrap();
        let tries = Tries::new(&clock);
        tries.spawn(&valve, "job", options, failing(&clock, u32::MAX, lasts));
        clock.advance(secs(60));
        let at = crate::support::micros(ended_at);
        tries.check_ended("job", at, |result| matches!(result, Err(error) if error.is_own(attempts)));
        assert_eq!(tries.attempts().len(), attempts as usize);
        assert_eq!(valve.stats().timed_out, 1);
        check_rest(&clock, &valve);
        drop(valve.try_acquire().unwrap());
    }
    // Attempts at 0, 40 and 100 ms; the next would be at 200.
    check(|job| job.max_wait(ms(199)).retry(at_once(9)), ms(40), ms(140), 3);
    check(|job| job.max_wait(ms(200)).retry(at_once(9)), ms(40), ms(240), 4);
    // The back-off alone is too long: between 500 and 1,000 ms.
    check(|job| job.max_wait(ms(539)).retry(Retry::times(9).backoff(secs(1))), ms(40), ms(40), 1);
    // A call that does not wait is not tried again, unless it took no time at all.
    check(|job| job.max_wait(Duration::ZERO).retry(at_once(9)), ms(40), ms(40), 1);

    // The first attempt has no error to end with but the valve's.
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.plain(&valve, "holds", secs(1));
    clock.settle();
    tries.spawn(&valve, "first", |job| job.max_wait(ms(100)).retry(at_once(9)), |_| unreachable!());
    clock.advance(secs(1));
    let timed_out =
        |result: &Result<u32, Trouble>| matches!(result, Err(Trouble::Valve(Error::Timeout { .. })));
    tries.check_ended("first", 100 * MILLISECOND, timed_out);
}

/// A wait in line ends at the deadline, whatever it waits for.
#[test]
fn a_retry_in_line_ends_at_its_deadline() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    let jobs = Jobs::new(&clock);
    let retry = Retry::times(1).backoff(ms(10)).max_backoff(ms(10));
    tries.spawn(&valve, "job", move |job| job.max_wait(ms(100)).retry(retry), failing(&clock, 9, ms(20)));
    clock.advance(ms(1));
    jobs.spawn(&valve, Call { lasts: secs(1), ..call("holds the slot") });
    clock.advance(ms(49));
    assert_eq!((valve.stats().backing_off, valve.stats().queued), (0, 1));
    clock.advance(secs(2));
    tries.check_ended("job", 100 * MILLISECOND, |result| matches!(result, Err(error) if error.is_own(1)));
    check_rest(&clock, &valve);

    // And on a store that takes time.
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let valve =
        Valve::builder("id").rule(Rule::gcra(10, secs(1)).burst(9)).store(store.clone()).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "job", |job| job.max_wait(secs(2)).retry(at_once(9)), failing(&clock, 9, ms(20)));
    clock.advance(ms(10));
    store.then(Answer { after: secs(60), ..Answer::AT_ONCE });
    clock.advance(secs(120));
    tries.check_ended("job", 2 * SECOND, |result| matches!(result, Err(error) if error.is_own(1)));
}

/// What another call was told of the rate holds for it too: it need not wait to hear so.
#[test]
fn a_retry_that_the_rate_puts_too_late_ends_as_it_comes_back() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(1, secs(1))).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(
        &valve,
        "job",
        |job| job.max_wait(ms(500)).retry(Retry::times(9)),
        |attempt| Step::After(ms(100), Trouble::Own(attempt)),
    );
    clock.settle();
    tries.plain(&valve, "told of the rate", Duration::ZERO);
    clock.advance(secs(10));
    tries.check_ended("job", 100 * MILLISECOND, |result| matches!(result, Err(error) if error.is_own(1)));
    assert_eq!(tries.stamps(), [0, SECOND]);
    check_rest(&clock, &valve);
}
