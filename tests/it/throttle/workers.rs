//! On which threads trailing runs take place, and how many at once.

use std::sync::Arc;

use parking_lot::Mutex;
use valve::{Error, Ran, Valve};

use super::scripted::{Operation, Scripted};
use super::stage::{Stage, Throttle, check_stats, work};
use crate::support::ms;

/// Calls each key twice: its trailing run is due at 100.
fn due_together(stage: &Stage, throttle: &Throttle, keys: u32, takes: u64) {
    for key in 0..keys {
        let name = format!("key {key}");
        stage.exec(throttle, 0, &name, work(key));
        stage.exec(throttle, 10, &name, work(100 + key).takes(takes));
    }
}

#[test]
fn trailing_runs_are_bounded_late_and_not_lost() {
    for (workers, expected) in [(1, [100, 150, 200, 250, 300, 350]), (4, [100, 100, 100, 100, 150, 150])] {
        let stage = Stage::new();
        let throttle = stage.builder(100).workers(workers).build().unwrap();
        due_together(&stage, &throttle, 6, 50);
        stage.until(99);
        check_stats(&throttle, (0, 6, 6, 6));
        stage.until(100);
        check_stats(&throttle, (workers, 6 - workers, 6, 0));
        stage.until(1_000);
        assert_eq!(stage.starts()[6..], expected);
        check_stats(&throttle, (0, 0, 0, 0));
    }
}

#[test]
fn four_trailing_runs_go_on_at_once_unless_told_otherwise() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    due_together(&stage, &throttle, 20, 50);
    stage.until(1_000);
    let expected: Vec<u64> = (0..20).map(|run| 100 + 50 * (run / 4)).collect();
    assert_eq!(stage.starts()[20..], expected);
}

#[test]
fn the_window_of_a_late_run_begins_when_it_ends() {
    let stage = Stage::new();
    let throttle = stage.builder(100).workers(1).build().unwrap();
    due_together(&stage, &throttle, 2, 70);
    stage.exec(&throttle, 200, "key 1", work(9));
    stage.until(1_000);
    // The second ran from 170 to 240.
    assert_eq!(stage.traced(&["run"])[4..], ["340 run 9 trailing of key 1"]);
}

#[test]
fn the_engine_is_asked_only_when_a_worker_is_free() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.builder(100).engine(engine.clone()).workers(1).build().unwrap();
    due_together(&stage, &throttle, 4, 50);
    stage.until(1_000);
    let starts = stage.starts();
    assert_eq!(starts[4..], [102, 152, 202, 252]);
    assert_eq!(engine.times(Operation::Claim), starts);
}

#[test]
fn a_run_that_waits_for_another_key_holds_no_worker() {
    let stage = Stage::new();
    let throttle = stage.builder(100).workers(1).build().unwrap();
    // a runs from 100 on and waits at 105 for b, which waits for c: both are due by then and have no worker.
    for (at, key) in [(0, "a"), (2, "b"), (4, "c")] {
        stage.exec(&throttle, at, key, work(1));
        stage.exec(&throttle, 10, key, work(4));
    }
    let (tell, calls) = (stage.clone(), throttle.clone());
    stage.at(30, move || {
        let (outer, for_b) = (tell.clone(), calls.clone());
        let job = calls.job("a", move |_run| {
            outer.clock.sleep(ms(5));
            let (inner, for_c) = (outer.clone(), for_b.clone());
            let b = for_b.job("b", move |_run| {
                inner.wait_here(&for_c, "c", work(3).takes(5), None);
                Ok(2)
            });
            outer.say(format!("wait 2: {:?}", b.wait_finish().exec()));
            Ok(1)
        });
        assert_eq!(job.exec().unwrap(), Ran::Later);
    });
    stage.until(10_000);
    assert_eq!(stage.traced(&["wait"]), ["110 wait 2: Ok(2)", "110 wait 3: 3"]);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn a_run_that_waits_for_a_valve_holds_no_worker() {
    let stage = Stage::new();
    let throttle = stage.builder(100).workers(1).build().unwrap();
    let valve = Valve::builder("v").clock(&stage.clock).concurrency(1).build().unwrap();
    let held = valve.acquire_owned().unwrap();
    for key in ["a", "b"] {
        stage.exec(&throttle, 0, key, work(1));
    }
    let (tell, calls, waits) = (stage.clone(), throttle.clone(), valve.clone());
    stage.at(10, move || {
        let job = calls.job("a", move |_run| {
            tell.say("run waits");
            waits.run(|| ()).unwrap();
            tell.say("run goes on");
            Ok(0)
        });
        drop(job.exec());
    });
    stage.exec(&throttle, 20, "b", work(3).takes(30));
    stage.until(500);
    drop(held);
    stage.until(1_000);
    assert_eq!(stage.traced(&["run"])[2..], ["100 run 3 trailing of b", "100 run waits", "500 run goes on"]);
}

#[test]
fn leading_runs_of_calls_with_a_timeout_wait_for_no_worker() {
    let stage = Stage::new();
    let throttle = stage.builder(100).workers(1).build().unwrap();
    for call in 0..10 {
        stage.wait_for(&throttle, 0, 1_000, &format!("key {call}"), work(call).takes(50));
    }
    stage.until(1_000);
    assert_eq!(stage.starts(), [0; 10]);
    let waits = stage.traced(&["wait"]);
    assert!(waits.len() == 10 && waits.iter().all(|line| line.starts_with("50 ")), "{waits:?}");
}

#[test]
fn trailing_runs_have_threads_of_their_own() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    let names = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let names = Arc::clone(&names);
        let job = throttle.job("k", move |_run| {
            names.lock().push(std::thread::current().name().map(str::to_owned));
            Ok(0)
        });
        let _ = job.exec().unwrap();
    }
    stage.until(1_000);
    let names: Vec<String> = names.lock().iter().flatten().cloned().collect();
    assert!(!names[0].starts_with("valve-") && names[1].starts_with("valve-run-"), "{names:?}");
}

#[test]
fn a_spawner_is_given_the_trailing_runs() {
    let stage = Stage::new();
    let clock = stage.clock.clone();
    let spawn = move |task: Box<dyn FnOnce() + Send>| drop(clock.spawn("theirs", task));
    let throttle = stage.builder(100).spawner(spawn).build().unwrap();
    let names = Arc::new(Mutex::new(Vec::new()));
    for key in ["a", "b", "c", "d", "e", "f"] {
        let _ = throttle.job(key, |_run| Ok(0)).exec().unwrap();
        let (names, clock) = (Arc::clone(&names), stage.clock.clone());
        let job = throttle.job(key, move |_run| {
            names.lock().push(std::thread::current().name().map(str::to_owned));
            clock.sleep(ms(50));
            Ok(0)
        });
        let _ = job.exec().unwrap();
    }
    stage.until(149);
    // All at once: how many is the spawner's business.
    check_stats(&throttle, (6, 0, 6, 0));
    stage.until(1_000);
    assert_eq!(*names.lock(), vec![Some("theirs".to_owned()); 6]);
}

#[test]
fn a_task_that_the_spawner_drops_ends_its_calls() {
    let stage = Stage::new();
    let throttle = stage.builder(100).spawner(drop).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 5, "k", work(2));
    stage.wait(&throttle, 10, "k", work(3));
    stage.until(10_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 1 leading"]);
    assert_eq!(stage.traced(&["wait"]), ["100 wait 3: no thread"]);
    check_stats(&throttle, (0, 0, 0, 0));
    // It leads again.
    stage.exec(&throttle, 20_000, "k", work(4));
    stage.until(20_000);
    assert_eq!(stage.traced(&["exec"])[2..], ["20000 exec 4: now"]);
}

#[test]
fn with_a_valve_in_front_each_run_has_a_permit_first() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let valve = Valve::builder("v").clock(&stage.clock).concurrency(1).build().unwrap();
    let throttle = stage.builder(100).engine(engine.clone()).valve(&valve).build().unwrap();
    for key in 0..3 {
        let name = format!("key {key}");
        stage.exec(&throttle, 0, &name, work(key).takes(50));
        stage.exec(&throttle, 10, &name, work(10 + key).takes(50));
    }
    stage.until(10_000);
    // Never two at once; the engine is asked with the permit in hand.
    let starts = stage.starts();
    // The calls at 10 of keys whose leader still waited for its permit were covered by the leading run.
    assert_eq!(starts, [0, 50, 100, 152]);
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 50), "{starts:?}");
    assert_eq!(engine.times(Operation::Claim), starts);
    assert_eq!(valve.stats().running, 0);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn what_the_valve_refuses_does_not_run_and_opens_no_window() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let valve = Valve::builder("v").clock(&stage.clock).concurrency(1).build().unwrap();
    let throttle = stage.builder(100).engine(engine.clone()).valve(&valve).log(stage.log()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 10, "k", work(2));
    stage.wait(&throttle, 20, "k", work(3));
    stage.until(50);
    valve.close();
    stage.until(1_000);
    let closed = Error::Closed;
    assert_eq!(stage.traced(&["wait"]), [format!("102 wait 3: valve: {closed}")]);
    let written = stage.traced(&["error"]);
    assert!(written.len() == 1 && written[0].ends_with(&format!(": {closed}")), "{written:?}");
    assert_eq!((engine.count(Operation::Claim), throttle.stats().refused), (1, 2));
    check_stats(&throttle, (0, 0, 0, 0));
    stage.exec(&throttle, 2_000, "k", work(4));
    stage.wait(&throttle, 2_000, "k", work(5));
    stage.until(3_000);
    let given = [format!("2000 exec 4: valve: {closed}"), format!("2000 wait 5: valve: {closed}")];
    assert_eq!(stage.traced(&["exec", "wait"])[3..], given);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.starts(), [0]);
}
