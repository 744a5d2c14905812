//! Calls that wait no longer than a timeout.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::ThrottleError;

use super::scripted::{AT_ONCE, NEVER, Operation, Scripted, after};
use super::stage::{Stage, check_stats, work};
use crate::support::ms;

#[test]
fn a_timeout_ends_the_call_and_not_the_run() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    // Also if the call leads.
    stage.wait_for(&throttle, 0, 30, "k", work(1).takes(100));
    stage.until(1_000);
    stage.check(&["0 run 1 leading", "30 wait 1: timeout 30", "100 end 1"]);
    let slow = stage.clone();
    stage.clock.spawn("fields", move || {
        let job = throttle.job("key", slow.closure(work(2).takes(50)));
        match job.wait_finish().timeout(ms(20)).exec() {
            Err(ThrottleError::Timeout { key, timeout, .. }) => slow.say(format!("fields {key} {timeout:?}")),
            other => panic!("{other:?}"),
        }
    });
    stage.until(2_000);
    assert_eq!(stage.traced(&["fields"]), ["1020 fields key 20ms"]);
}

#[test]
fn a_call_that_is_served_in_time_leaves_no_deadline() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.wait_for(&throttle, 0, 10_000, "k", work(1).takes(5));
    stage.wait_for(&throttle, 10, 10_000, "k", work(2).takes(5));
    stage.until(200);
    assert_eq!(stage.traced(&["wait"]), ["5 wait 1: 1", "60 wait 2: 2"]);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.clock.timers(), 0);
}

#[test]
fn waiting_for_the_engine_counts() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| NEVER);
    let throttle = stage.on(&engine, 50);
    stage.wait_for(&throttle, 0, 50, "k", work(1));
    stage.exec(&throttle, 500, "k", work(2));
    stage.until(400);
    check_stats(&throttle, (1, 0, 1, 0));
    stage.until(5_000);
    stage.check(&["50 wait 1: timeout 50", "500 exec 2: later"]);
    assert_eq!(throttle.stats().active, 1);
}

#[test]
fn the_time_begins_with_exec() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(40) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    let (tell, waits) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        let job = waits.job("k", tell.closure(work(1).takes(30))).wait_finish().timeout(ms(60));
        tell.clock.sleep(ms(100));
        tell.say(format!("wait 1: {:?}", job.exec().err().map(|error| error.to_string())));
    });
    // 40 ms of engine and 20 of a run of 30.
    stage.until(1_000);
    assert_eq!(stage.traced(&["run", "end"]), ["140 run 1 leading", "170 end 1"]);
    assert!(stage.traced(&["wait"])[0].starts_with("160 "), "{:?}", stage.trace());
}

#[test]
fn the_last_timeout_counts() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    let (tell, waits) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        let job = waits.job("k", tell.closure(work(1).takes(100))).wait_finish();
        let given = job.timeout(ms(500)).timeout(ms(20)).exec();
        tell.say(format!("wait {}", given.is_err()));
    });
    stage.until(1_000);
    assert_eq!(stage.traced(&["wait"]), ["20 wait true"]);
}

#[test]
fn timeouts_are_more_than_zero_and_the_longest_means_for_ever() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    let check = |timeout: Duration, key: &str, expected: &str| {
        let (tell, waits, key) = (stage.clone(), throttle.clone(), key.to_owned());
        stage.clock.spawn("waits", move || waits_for(&tell, &waits, &key, timeout));
        stage.clock.advance(ms(1_000));
        assert_eq!(
            stage.traced(&["wait"]).pop().unwrap().split_once(": ").unwrap().1,
            expected,
            "{timeout:?}"
        );
    };
    check(Duration::ZERO, "a", "invalid timeout");
    assert_eq!((stage.starts().len(), throttle.stats().keys), (0, 0), "refused before anything happens");
    check(Duration::MAX, "b", "1");
    check(Duration::from_secs(u64::MAX), "c", "1");
    check(ms(2_147_483_647), "d", "1");
    check(Duration::from_secs(11 * 365 * 24 * 3_600), "e", "1");
    check(ms(501), "f", "1");
    check(ms(499), "g", "timeout 499 of g");
    check(Duration::from_micros(1_500), "h", "timeout 1.500 of h");
    check(Duration::from_nanos(1), "i", "timeout 0.001 of i");
}

fn waits_for(stage: &Stage, throttle: &super::stage::Throttle, key: &str, timeout: Duration) {
    stage.wait_here(throttle, key, work(1).takes(500), Some(timeout));
}

#[test]
fn the_longest_timeout_waits_for_a_run_however_late() {
    let stage = Stage::new();
    let throttle = stage.private(2_147_483_647);
    let waits = throttle.clone();
    stage.exec(&throttle, 0, "k", work(1));
    let tell = stage.clone();
    stage.at(1, move || tell.wait_here(&waits, "k", work(2), Some(Duration::MAX)));
    stage.until(2_147_483_646);
    assert_eq!(stage.traced(&["wait"]), Vec::<String>::new());
    stage.until(2_147_483_647);
    assert_eq!(stage.traced(&["wait"]), ["2147483647 wait 2: 2"]);
}

#[test]
fn a_call_that_timed_out_is_still_covered() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait_for(&throttle, 10, 30, "k", work(2));
    stage.until(50);
    check_stats(&throttle, (0, 1, 1, 1));
    stage.until(1_000);
    stage.check(&["0 exec 1: now", "0 run 1 leading", "40 wait 2: timeout 30", "100 run 2 trailing"]);
}

#[test]
fn a_failure_after_the_timeout_disturbs_nobody() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.wait_for(&throttle, 0, 30, "fails", work(1).takes(100).fails());
    stage.wait_for(&throttle, 0, 30, "panics", work(2).takes(100).panics());
    stage.until(1_000);
    assert_eq!(throttle.stats().failed, 2);
    for (number, key) in [(3, "fails"), (4, "panics")] {
        stage.wait_for(&throttle, 1_000, 30, key, work(number));
    }
    stage.until(2_000);
    let waits = stage.traced(&["wait"]);
    assert_eq!(waits[2..], ["1000 wait 3: 3", "1000 wait 4: 4"]);
}

#[test]
fn a_call_with_a_timeout_never_runs_a_closure_on_its_own_thread() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    let names = Arc::new(Mutex::new(Vec::new()));
    for timeout in [None, Some(ms(1_000))] {
        let (throttle, names) = (throttle.clone(), Arc::clone(&names));
        stage.clock.spawn("caller", move || {
            let job = throttle.job("k", move |_run| {
                names.lock().push(std::thread::current().name().map(str::to_owned));
                Ok(0)
            });
            let job = job.wait_finish();
            drop(if let Some(timeout) = timeout { job.timeout(timeout) } else { job }.exec());
        });
        stage.clock.advance(ms(1_000));
    }
    let names = names.lock().iter().flatten().cloned().collect::<Vec<_>>();
    assert_eq!(names[0], "caller");
    assert!(names[1].starts_with("valve-run-"), "{names:?}");
}

#[test]
fn a_thousand_calls_that_timed_out_leave_nothing_but_their_key() {
    let stage = Stage::new();
    let throttle = stage.private(1_000_000);
    stage.exec_here(&throttle, "k", work(0));
    let live = Arc::new(());
    let waits = Arc::clone(&live);
    let calls = throttle.clone();
    stage.clock.spawn("waits", move || {
        for _ in 0..1_000 {
            let held = Arc::clone(&waits);
            let job = calls.job("k", move |_run| {
                drop(held);
                Ok(0)
            });
            drop(job.wait_finish().timeout(ms(1)).exec());
        }
    });
    stage.clock.advance(ms(10_000));
    // The newest closure, and the thread's own.
    assert!(Arc::strong_count(&live) <= 3, "{} closures are kept", Arc::strong_count(&live));
    check_stats(&throttle, (0, 1, 1, 1));
    assert_eq!(stage.clock.timers(), 1);
}
