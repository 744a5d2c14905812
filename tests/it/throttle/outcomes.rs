//! What calls get, and when.

use std::sync::Arc;

use parking_lot::Mutex;
use valve::{Ran, ThrottleError, ThrottleWindow};

use super::scripted::{AT_ONCE, Operation, Scripted, after, reads, says};
use super::stage::{Stage, work};
use crate::support::ms;

#[test]
fn exec_says_whether_the_run_is_over_or_to_come() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.exec(&throttle, 0, "k", work(1).takes(10));
    stage.exec(&throttle, 5, "k", work(2));
    stage.exec(&throttle, 30, "k", work(3));
    stage.until(40);
    let execs = ["5 exec 2: later", "10 exec 1: now", "30 exec 3: later"];
    assert_eq!(stage.traced(&["exec"]), execs);
    assert_eq!(throttle.job("other", |_run| Ok(1)).exec().unwrap(), Ran::Now);
    assert_eq!(throttle.job("other", |_run| Ok(1)).exec().unwrap(), Ran::Later);
}

#[test]
fn a_leading_exec_returns_when_the_window_is_open() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match asked.operation {
        Operation::Claim => after(10),
        Operation::Set => after(150),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 5, "k", work(2));
    stage.until(1_000);
    // Who waits has the value as soon as the closure has ended.
    stage.check(&["10 run 2 leading", "10 wait 2: 2", "160 exec 1: now"]);
}

#[test]
fn a_waiting_leader_has_its_value_when_the_closure_ends_or_the_window_is_open() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Set { after(150) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1).takes(10));
    stage.until(1_000);
    let waits = stage.traced(&["wait"]);
    assert!(waits == ["10 wait 1: 1"] || waits == ["160 wait 1: 1"], "{waits:?}");
}

#[test]
fn all_that_a_run_covers_get_one_value_or_one_error() {
    let stage = Stage::new();
    for fails in [false, true] {
        let throttle = ThrottleWindow::<Arc<u32>, u32>::builder("p:")
            .window(ms(50))
            .clock(&stage.clock)
            .build()
            .unwrap();
        let given = Arc::new(Mutex::new(Vec::new()));
        let _ = throttle.job("k", |_run| Ok(Arc::new(0))).exec().unwrap();
        for number in 0..5 {
            let (throttle, given) = (throttle.clone(), Arc::clone(&given));
            stage.clock.spawn("waits", move || {
                let job =
                    throttle.job("k", move |_run| if fails { Err(number) } else { Ok(Arc::new(number)) });
                let result = job.wait_finish().exec();
                given.lock().push(result);
            });
        }
        stage.clock.advance(ms(100));
        let given = given.lock();
        let same =
            |this: &Result<Arc<u32>, ThrottleError<u32>>, that: &Result<Arc<u32>, _>| match (this, that) {
                (Ok(this), Ok(that)) => Arc::ptr_eq(this, that) && **this == 4,
                (Err(ThrottleError::Run(this)), Err(ThrottleError::Run(that))) => {
                    Arc::ptr_eq(this, that) && **this == 4
                }
                _ => false,
            };
        assert_eq!(given.len(), 5);
        assert!(given.iter().all(|result| same(result, &given[0])), "{given:?}");
    }
}

#[test]
fn a_waiter_gets_the_value_of_the_run_that_covers_it() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    // Its own leading run, after which nothing else runs.
    stage.wait(&throttle, 0, "k", work(1).takes(5));
    stage.until(1_000);
    stage.check(&["0 run 1 leading", "5 end 1", "5 wait 1: 1"]);
    // A trailing run, with the closure of a newer call.
    stage.exec(&throttle, 2_000, "k", work(2));
    stage.wait(&throttle, 2_010, "k", work(3));
    stage.exec(&throttle, 2_020, "k", work(4).takes(5));
    stage.until(10_000);
    assert_eq!(stage.traced(&["wait"])[1..], ["2055 wait 3: 4"]);
    assert_eq!(stage.traced(&["run"])[2..], ["2050 run 4 trailing"]);
}

#[test]
fn a_leader_that_loses_the_race_is_left_to_the_trailing_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.foreign("p:k", "500", 500);
    engine.answers(|asked| if asked.operation == Operation::Get { after(80) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    // Waits for the engine's answers; what comes meanwhile waits for nothing.
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 40, "k", work(2));
    stage.wait(&throttle, 50, "k", work(3));
    stage.exec(&throttle, 60, "k", work(4));
    stage.until(1_000);
    let lost = ["0 claim p:k=200 px 200: false", "0 get p:k: Some(\"500\")"];
    assert_eq!(engine.calls()[..2], lost);
    // At 80 the end is 420 ms away, but no wait is longer than L, 200 ms: the try at 280 is lost too.
    stage.check(&[
        "40 exec 2: later",
        "60 exec 4: later",
        "80 exec 1: later",
        "500 run 4 trailing",
        "500 wait 3: 4",
    ]);
}

#[test]
fn who_waits_while_the_leader_loses_gets_the_trailing_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.foreign("p:k", "100", 100);
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(1_000);
    stage.check(&["100 run 2 trailing", "100 wait 1: 2", "100 wait 2: 2"]);
}

#[test]
fn who_waits_while_the_leader_wins_gets_the_leading_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(1_000);
    stage.check(&["20 run 2 leading", "20 wait 1: 2", "20 wait 2: 2"]);
}

#[test]
fn a_failed_run_is_told_apart_from_one_that_never_ran() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.exec(&throttle, 0, "k", work(1).fails());
    stage.exec(&throttle, 10, "k", work(2));
    stage.until(10);
    throttle.destroy();
    stage.exec_here(&throttle, "k", work(3));
    stage.until(1_000);
    stage.check(&["0 exec 1: error 1", "0 run 1 leading", "10 exec 2: later", "10 exec 3: destroyed"]);
}

#[test]
fn every_error_of_a_call_carries_its_key() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.key.as_str(), asked.operation) {
        ("p:dropped", Operation::Get) => reads(None),
        ("p:dropped", _) => says(false),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "dropped", work(1));
    stage.wait_for(&throttle, 0, 10, "slow", work(2).takes(20));
    stage.exec(&throttle, 0, "panics", work(3));
    stage.wait(&throttle, 10, "panics", work(4).panics());
    let (tell, inner) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        let calls = inner.clone();
        let job = inner.job("inside", move |_run| {
            tell.wait_here(&calls, "inside", work(5), None);
            Ok(0)
        });
        assert_eq!(job.exec().unwrap(), Ran::Now);
    });
    stage.until(200);
    throttle.destroy();
    stage.exec_here(&throttle, "late", work(6));
    assert_eq!(
        stage.traced(&["wait", "exec"]),
        [
            "0 exec 3: now",
            "0 wait 5: would deadlock of inside",
            "10 wait 2: timeout 10 of slow",
            "52 wait 4: panicked of panics",
            "90 wait 1: dropped of dropped",
            "200 exec 6: destroyed of late",
        ]
    );
    let own: ThrottleError<String> = ThrottleError::Run(Arc::new("own".to_owned()));
    assert_eq!((own.key(), own.to_string()), (None, "own".to_owned()));
}
