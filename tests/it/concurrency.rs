//! What a local concurrency limit promises: what it counts, whose it is, and when a slot comes back.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use valve::testing::ManualClock;
use valve::{Blocked, CancelToken, Error, MemoryStore, Valve};

use crate::support::{Call, Jobs, MILLISECOND, call, ms, secs, start_now, us};

/// V48.
#[test]
fn concurrency_counts_jobs_not_cost() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(2).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    for name in ["one", "two", "three"] {
        jobs.spawn(&valve, Call { cost: 5, lasts: ms(10), ..call(name) });
    }
    clock.advance(ms(10) - us(1));
    let stats = valve.stats();
    assert_eq!((stats.running, stats.queued, stats.blocked_by), (2, 1, Some(Blocked::LocalConcurrency)));
    clock.advance(secs(1));
    assert_eq!(jobs.stamps(), [0, 0, 10 * MILLISECOND]);
}

/// V49: two valves of one id and store have a limit each; clones of a valve have one together.
#[test]
fn a_local_limit_belongs_to_one_instance() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(&clock).build();
    let build = || Valve::builder("id").concurrency(8).store(store.clone()).build().unwrap();
    let (one, other) = (build(), build());
    let clone = one.clone();
    let jobs = Jobs::new(&clock);
    for number in 0..10 {
        for valve in [&one, &clone, &other] {
            jobs.spawn(valve, Call { lasts: secs(1), ..call(number.to_string()) });
        }
    }
    clock.settle();
    assert_eq!(jobs.starts().len(), 8 + 8);
    assert_eq!((one.stats().running, clone.stats().running, other.stats().running), (8, 8, 8));
    clock.advance(secs(1));
    assert_eq!((jobs.starts().len(), one.stats().running, other.stats().running), (26, 8, 2));
}

/// V53: the next one starts at the very instant.
#[test]
fn a_slot_comes_back_however_its_job_ends() {
    check_end("a value", |valve, clock| valve.run(|| clock.sleep(ms(10))).unwrap());
    check_end("an error", |valve, clock| {
        let end: Result<(), Box<dyn std::error::Error>> = valve.try_run(|| {
            clock.sleep(ms(10));
            Err("no luck".into())
        });
        assert_eq!(end.unwrap_err().to_string(), "no luck");
    });
    check_end("a panic", |valve, clock| {
        let end = catch_unwind(AssertUnwindSafe(|| {
            valve.run(|| {
                clock.sleep(ms(10));
                resume_unwind(Box::new("in the job"));
            })
        }));
        assert_eq!(end.unwrap_err().downcast_ref(), Some(&"in the job"));
    });
    check_end("a cancelled run", |valve, clock| {
        let token = CancelToken::new();
        let end = valve.job().cancel(&token).run(|running| {
            clock.sleep(ms(10));
            token.cancel();
            running.is_aborted()
        });
        assert!(end.unwrap());
    });
    check_end("a dropped permit", |valve, clock| {
        let permit = valve.acquire().unwrap();
        clock.sleep(ms(10));
        drop(permit);
    });
    check_end("a finished permit", |valve, clock| {
        let permit = valve.job().acquire().unwrap();
        clock.sleep(ms(10));
        permit.finish().unwrap();
    });
    check_end("an owned permit on another thread", |valve, clock| {
        let permit = valve.acquire_owned().unwrap();
        let other = clock.clone();
        clock.spawn("other", move || {
            other.sleep(ms(10));
            drop(permit);
        });
    });
    check_end("a thread that dies with its permit", |valve, clock| {
        let end = catch_unwind(AssertUnwindSafe(|| {
            let _permit = valve.acquire_owned().unwrap();
            clock.sleep(ms(10));
            resume_unwind(Box::new("beside the job"));
        }));
        assert!(end.is_err());
    });
}

#[track_caller]
fn check_end(how: &str, job: impl FnOnce(&Valve, &ManualClock) + Send + 'static) {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    let ended = clock.spawn("job", {
        let (valve, clock) = (valve.clone(), clock.clone());
        move || job(&valve, &clock)
    });
    clock.settle();
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. })), "{how}: the slot is not taken");
    jobs.spawn(&valve, call("next"));
    clock.advance(secs(1));
    assert_eq!(jobs.stamps(), [10 * MILLISECOND], "{how}");
    ended.join().unwrap();
    assert_eq!((valve.stats().running, valve.stats().queued), (0, 0), "{how}");
    start_now(&valve, 1);
}
