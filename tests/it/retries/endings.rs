//! How a retried job ends otherwise: closed, drained, cancelled, by a panic, by a lost lease, or without its store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use valve::testing::{ChaosStore, ManualClock};
use valve::{CancelToken, Error, Job, MemoryStore, OnStoreError, Retry, RetryJob, Rule, Step, Valve};

use super::{Tries, Trouble, at_once, check_rest, failing};
use crate::support::{MILLISECOND, SECOND, Scripted, call, ms, secs};

fn valve_of(clock: &ManualClock) -> Valve {
    Valve::builder("id").concurrency(1).clock(clock).build().unwrap()
}

/// Comes back after this long, up to nine times.
fn after(wait: Duration) -> impl FnMut(u32) -> Step<u32, Trouble> + Send + 'static {
    move |attempt| Step::After(wait, Trouble::Own(attempt))
}

fn is_closed(result: &Result<u32, Trouble>) -> bool {
    matches!(result, Err(Trouble::Valve(Error::Closed)))
}

fn is_cancelled(result: &Result<u32, Trouble>) -> bool {
    matches!(result, Err(Trouble::Valve(Error::Cancelled)))
}

#[test]
fn close_ends_retries_and_a_drain_waits_for_them() {
    let clock = ManualClock::new();
    let valve = valve_of(&clock);
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "backs off", |job| job.retry(Retry::times(9)), after(secs(10)));
    clock.settle();
    tries.spawn(&valve, "runs", |job| job.retry(at_once(9)), failing(&clock, 9, ms(50)));
    clock.advance(ms(10));
    tries.spawn(&valve, "waits", |job| job.retry(at_once(9)), failing(&clock, 9, ms(50)));
    clock.advance(ms(10));
    valve.close();
    clock.settle();
    for name in ["backs off", "waits"] {
        tries.check_ended(name, 20 * MILLISECOND, is_closed);
    }
    // It runs to its end, and is not tried again.
    clock.advance(secs(60));
    tries.check_ended("runs", 50 * MILLISECOND, is_closed);
    check_rest(&clock, &valve);

    let drain = |timeout: Duration| {
        let clock = ManualClock::new();
        let valve = valve_of(&clock);
        let tries = Tries::new(&clock);
        tries.spawn(&valve, "retried", |job| job.retry(Retry::times(9)), {
            let clock = clock.clone();
            move |attempt| {
                clock.sleep(ms(50));
                if attempt < 3 { Step::After(secs(1), Trouble::Own(attempt)) } else { Step::Done(attempt) }
            }
        });
        clock.advance(ms(60));
        assert_eq!(valve.stats().backing_off, 1);
        let drained = clock.spawn("drains", {
            let (valve, clock) = (valve.clone(), clock.clone());
            move || (valve.drain(timeout), crate::support::micros(clock.now()))
        });
        clock.settle();
        assert!(matches!(valve.try_acquire(), Err(Error::Closed)), "the drain takes no new calls");
        clock.advance(secs(60));
        check_rest(&clock, &valve);
        (tries, drained.join().unwrap())
    };
    // Attempts end at 50 ms, 1,100 ms and 2,150 ms.
    let (tries, drained) = drain(Duration::MAX);
    tries.check_ended("retried", 2_150 * MILLISECOND, |result| matches!(result, Ok(3)));
    assert!(matches!(drained, (Ok(()), at) if at == 2_150 * MILLISECOND), "{drained:?}");
    let (tries, drained) = drain(ms(1_500));
    tries.check_ended("retried", 1_560 * MILLISECOND, is_closed);
    assert!(matches!(drained, (Err(Error::Timeout { .. }), at) if at == 1_560 * MILLISECOND), "{drained:?}");
}

#[test]
fn a_full_queue_lets_retries_in() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).max_queue(1).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "a", |job| job.retry(at_once(1)), failing(&clock, 1, ms(10)));
    clock.settle();
    tries.spawn(&valve, "b", |job| job.retry(Retry::times(1)), after(ms(10)));
    clock.settle();
    assert_eq!(valve.stats().queued, 1);
    clock.advance(secs(1));
    assert_eq!(tries.order(), ["a", "a", "b", "b"]);
}

/// In back-off, in line, and while an attempt runs, which is told and not tried again.
#[test]
fn cancelling_ends_a_retry_wherever_it_is() {
    #[track_caller]
    fn check(wait: Duration, cancelled_at: Duration, ended_at: Duration, attempts: usize) {
        let clock = ManualClock::new();
        let valve = valve_of(&clock);
        let tries = Tries::new(&clock);
        let token = CancelToken::new();
        let its_token = token.clone();
        clock.spawn("retried", {
            let (tries, valve, clock) = (tries.clone(), valve.clone(), clock.clone());
            move || {
                let job = valve.job().cancel(&its_token).retry(Retry::times(9));
                let result = job.run(|running, attempt| {
                    tries.attempts.lock().push(("retried", attempt, tries.now()));
                    clock.sleep(ms(50));
                    assert_eq!(running.is_aborted(), its_token.is_cancelled());
                    Step::After(wait, Trouble::Own(attempt))
                });
                tries.ends.lock().push(("retried", tries.now(), result));
            }
        });
        clock.advance(ms(10));
        tries.plain(&valve, "other", ms(500));
        clock.advance(cancelled_at - ms(10));
        token.cancel();
        clock.advance(secs(10));
        tries.check_ended("retried", crate::support::micros(ended_at), is_cancelled);
        assert_eq!(tries.order().iter().filter(|name| **name == "retried").count(), attempts);
        assert_eq!(valve.stats().cancelled, 1);
        check_rest(&clock, &valve);
    }
    // In back-off from 50 ms on; in line from 150 ms on; running from 550 ms on.
    check(secs(5), ms(60), ms(60), 1);
    check(ms(100), ms(160), ms(160), 1);
    check(ms(100), ms(560), ms(600), 2);
    check(ms(100), ms(30), ms(50), 1);
}

/// O79's retry: its panic reaches its caller, its slot comes back, and a hundred others do not notice.
#[test]
fn a_panicking_attempt_frees_its_slot() {
    for (panics_at, global) in [(1, false), (3, false), (3, true)] {
        let clock = ManualClock::new();
        let builder = Valve::builder("id").rule(Rule::gcra(1_000, secs(1)).burst(10)).clock(&clock);
        let builder = if global { builder.global_concurrency(1, secs(30)) } else { builder.concurrency(1) };
        let valve = builder.build().unwrap();
        let tries = Tries::new(&clock);
        let panicked = clock.spawn("panics", {
            let valve = valve.clone();
            move || {
                let run = || {
                    valve.job().retry(Retry::times(9).backoff(ms(1))).run(|_, attempt| {
                        assert!(attempt < panics_at, "the job's own");
                        Step::<(), _>::Again(Trouble::Own(attempt))
                    })
                };
                catch_unwind(AssertUnwindSafe(run)).is_err()
            }
        });
        for _ in 0..100 {
            tries.spawn(&valve, "other", |job| job.retry(at_once(1)), failing(&clock, 1, ms(1)));
        }
        clock.advance(secs(10));
        assert!(panicked.join().unwrap(), "the panic does not reach its caller");
        assert_eq!(tries.attempts().len(), 200);
        check_rest(&clock, &valve);
    }
}

/// Whatever the attempt returned: another may have had its slot.
#[test]
fn a_lost_lease_ends_a_retry() {
    let steps: [fn(u32) -> Step<u32, Trouble>; 4] = [
        Step::Done,
        |attempt| Step::Fail(Trouble::Own(attempt)),
        |attempt| Step::Again(Trouble::Own(attempt)),
        |attempt| Step::After(ms(1), Trouble::Own(attempt)),
    ];
    for step in steps {
        let clock = ManualClock::new();
        let store = ChaosStore::new(MemoryStore::builder().clock(&clock).build(), 1);
        let valve = Valve::builder("id").global_concurrency(1, secs(3)).store(store.clone()).build().unwrap();
        let tries = Tries::new(&clock);
        tries.spawn(&valve, "job", |job| job.retry(at_once(9)), {
            let clock = clock.clone();
            move |attempt| {
                clock.sleep(secs(5));
                step(attempt)
            }
        });
        clock.advance(ms(100));
        store.set_down(true);
        clock.advance(secs(60));
        let lost = |result: &Result<u32, Trouble>| matches!(result, Err(Trouble::Valve(Error::LeaseLost)));
        tries.check_ended("job", 5 * SECOND, lost);
        let stats = valve.stats();
        assert_eq!((stats.running, stats.queued, stats.backing_off), (0, 0, 0));
    }
}

/// A retry has a lease of its own for each attempt, and none in between.
#[test]
fn a_slot_of_the_fleet_is_free_in_back_off() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(&clock).build();
    let build = || Valve::builder("id").global_concurrency(1, secs(30)).store(store.clone()).build().unwrap();
    let (one, other) = (build(), build());
    let tries = Tries::new(&clock);
    tries.spawn(&one, "retried", |job| job.retry(Retry::times(1)), after(secs(1)));
    clock.settle();
    drop(other.try_acquire().unwrap());
    clock.advance(secs(10));
    assert_eq!(tries.stamps(), [0, SECOND]);
    check_rest(&clock, &one);
}

#[test]
fn a_retry_fails_without_its_store_where_calls_do() {
    let clock = ManualClock::new();
    let store = ChaosStore::new(MemoryStore::builder().clock(&clock).build(), 1);
    let build =
        |mode| Valve::builder("id").concurrency(1).store(store.clone()).on_store_error(mode).build().unwrap();
    let (fails, waits) = (build(OnStoreError::Fail), build(OnStoreError::Wait));
    let tries = Tries::new(&clock);
    let options = |name: &'static str, valve: &Valve| {
        tries.spawn(valve, name, |job| job.retry(Retry::times(1)), after(ms(100)));
    };
    options("fails", &fails);
    options("waits", &waits);
    clock.settle();
    store.set_down(true);
    clock.advance(ms(200));
    let unavailable =
        |result: &Result<u32, Trouble>| matches!(result, Err(Trouble::Valve(Error::StoreUnavailable(_))));
    tries.check_ended("fails", 100 * MILLISECOND, unavailable);
    assert!(tries.end("waits").is_none());
    store.heal();
    clock.advance(secs(10));
    assert!(tries.end("waits").is_some_and(|(_, result)| result.is_err_and(|error| error.is_own(2))));
}

/// New rules end a wait that they make hopeless, in back-off too; and a job is not tried again if it cannot be.
#[test]
fn rules_that_no_retry_can_meet_end_it() {
    let clock = ManualClock::new();
    let rule = |burst| Rule::gcra(10, secs(1)).burst(burst);
    let valve = Valve::builder("id").rule(rule(5)).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    tries.spawn(&valve, "backs off", |job| job.cost(2).retry(Retry::times(9)), after(secs(9)));
    tries.spawn(&valve, "runs", |job| job.cost(2).retry(at_once(9)), failing(&clock, 9, secs(1)));
    clock.advance(ms(500));
    valve.set_rules([rule(1).into()]).unwrap();
    clock.settle();
    let too_large = |result: &Result<u32, Trouble>| {
        matches!(result, Err(Trouble::Valve(Error::CostTooLarge { cost: 2, max: 1, .. })))
    };
    tries.check_ended("backs off", 500 * MILLISECOND, too_large);
    clock.advance(secs(10));
    tries.check_ended("runs", SECOND, too_large);
    check_rest(&clock, &valve);
}

/// A retry waits inside a job of the same valve as any call does: a circle is seen, and one that a back-off will open is none.
#[test]
fn a_retry_inside_a_job_closes_a_circle_only_where_a_call_would() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(2).clock(&clock).build().unwrap();
    let tries = Tries::new(&clock);
    for name in ["one", "two"] {
        clock.spawn(name, {
            let (tries, valve, clock) = (tries.clone(), valve.clone(), clock.clone());
            move || {
                let inner = |job: Job<'_>| -> Result<u32, Trouble> {
                    let retried: RetryJob<'_> = job.retry(Retry::times(1));
                    retried.run(|_, attempt| match attempt {
                        1 => Step::After(ms(100), Trouble::Own(1)),
                        _ => Step::Done(attempt),
                    })
                };
                if name == "two" {
                    clock.sleep(ms(10));
                }
                let result = valve.run(|| inner(valve.job()));
                tries.ends.lock().push((name, tries.now(), result.unwrap()));
            }
        });
    }
    // At 0 the first runs its inner job, which backs off; at 10 ms the second's outer job takes its slot, and its inner one
    // waits. At 100 ms the first's comes back: all slots are held by jobs that wait.
    clock.advance(secs(10));
    let deadlocks =
        |result: &Result<u32, Trouble>| matches!(result, Err(Trouble::Valve(Error::WouldDeadlock)));
    let ends = tries.ends.lock().clone();
    let ended: Vec<_> = ends.iter().filter(|(.., result)| deadlocks(result)).collect();
    assert_eq!(ended.len(), 1, "{ends:?}");
    assert!(ended.iter().all(|(_, at, _)| *at == 100 * MILLISECOND), "{ends:?}");
    assert_eq!(ends.len(), 2);
    check_rest(&clock, &valve);
}

/// What is in line or backs off when the scheduler stops can never come back.
#[test]
fn a_stopped_scheduler_closes_retries() {
    let scheduler = valve::Scheduler::new().unwrap();
    let valve = Valve::builder("id").concurrency(1).scheduler(&scheduler).build().unwrap();
    std::thread::scope(|scope| {
        let retried = scope.spawn(|| {
            let far =
                |_: &valve::Running<'_>, attempt| Step::<u32, _>::After(secs(3_600), Trouble::Own(attempt));
            valve.job().retry(Retry::times(1)).run(far)
        });
        while valve.stats().backing_off == 0 {
            std::thread::yield_now();
        }
        scheduler.shutdown(secs(10)).unwrap();
        assert!(is_closed(&retried.join().unwrap()));
    });
    let late = valve.job().retry(Retry::times(1)).run(after_in_order);
    assert!(is_closed(&late), "{late:?}");
}

fn after_in_order(_: &valve::Running<'_>, attempt: u32) -> Step<u32, Trouble> {
    Step::After(secs(3_600), Trouble::Own(attempt))
}

/// Two valves on one slow store: what one's retry waits for, the other's calls do not.
#[test]
fn a_retry_waits_for_its_own_valve_only() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let build = || Valve::builder("id").concurrency(1).store(store.clone()).build().unwrap();
    let (one, other) = (build(), build());
    let tries = Tries::new(&clock);
    tries.spawn(&one, "retried", |job| job.retry(Retry::times(2)), after(secs(1)));
    let jobs = crate::support::Jobs::new(&clock);
    clock.advance(ms(10));
    jobs.spawn(&one, call("same valve"));
    jobs.spawn(&other, call("other valve"));
    clock.advance(secs(10));
    assert_eq!(jobs.stamps(), [10 * MILLISECOND; 2]);
    assert_eq!(tries.stamps(), [0, SECOND, 2 * SECOND]);
}
