//! Very many retries: nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Error, Retry, Rule, Step, Valve};

use super::check_rest;
use crate::support::{Random, ms, secs, us};

/// Ten thousand retries of ten threads; at no time more run than may, and in the end nobody and nothing is there.
#[test]
fn ten_thousand_retries_leave_nothing_behind() {
    const JOBS: u32 = 250;
    const RETRIES: u32 = 4;
    let clock = ManualClock::new();
    let valve = Valve::builder("id")
        .concurrency(3)
        .rule(Rule::gcra(1_000, secs(1)).burst(10))
        .clock(&clock)
        .build()
        .unwrap();
    let (attempts, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for thread in 0..10 {
        let (valve, clock) = (valve.clone(), clock.clone());
        let (attempts, running) = (Arc::clone(&attempts), Arc::clone(&running));
        clock.clone().spawn("retries", move || {
            let mut random = Random::new(thread);
            for _ in 0..JOBS {
                let retry = Retry::times(RETRIES).backoff(us(random.below(20_000)));
                let job = valve.job().priority(random.below(3) as i32).retry(retry);
                let result = job.run(|_, attempt| {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    assert!(running.fetch_add(1, Ordering::Relaxed) < 3, "more run than may");
                    clock.sleep(us(random.below(2_000)));
                    running.fetch_sub(1, Ordering::Relaxed);
                    match attempt {
                        _ if attempt <= RETRIES && random.below(2) == 0 => Step::Again(Error::Closed),
                        _ if attempt <= RETRIES => Step::After(us(random.below(5_000)), Error::Closed),
                        _ => Step::Done(attempt),
                    }
                });
                assert!(matches!(result, Ok(5)), "{result:?}");
            }
        });
    }
    clock.advance(secs(3_600));
    assert_eq!(attempts.load(Ordering::Relaxed) as u32, 10 * JOBS * (RETRIES + 1));
    assert_eq!(valve.stats().started, u64::from(10 * JOBS * (RETRIES + 1)));
    check_rest(&clock, &valve);
    drop(valve.try_acquire().unwrap());
}

/// On the machine's clock, with threads that really meet.
#[test]
fn retries_of_many_threads_meet() {
    let valve = Valve::builder("id").concurrency(2).build().unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (valve, done) = (&valve, &done);
            scope.spawn(move || {
                for round in 0..100 {
                    let wait = if (round + thread) % 2 == 0 { Duration::ZERO } else { us(50) };
                    let retry = Retry::times(2).backoff(wait).max_backoff(ms(1));
                    let result: Result<u32, Error> =
                        valve.job().retry(retry).run(|_, attempt| match attempt {
                            3 => Step::Done(attempt),
                            _ => Step::Again(Error::Closed),
                        });
                    assert_eq!(result.unwrap(), 3);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 800);
    let stats = valve.stats();
    assert_eq!((stats.queued, stats.running, stats.backing_off, stats.started), (0, 0, 0, 2_400));
}
