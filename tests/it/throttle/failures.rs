//! Runs that fail or panic: they open their windows like others, and everybody learns of it who should.

use super::scripted::{AT_ONCE, FAILS, Operation, Scripted, after};
use super::stage::{Stage, check_stats, work};

#[test]
fn a_failed_leading_run_is_its_callers_alone() {
    let stage = Stage::new();
    let throttle = stage.builder(100).log(stage.log()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1).takes(10).fails());
    stage.until(1_000);
    stage.check(&["0 info run key=k phase=leading", "0 run 1 leading", "10 end 1", "10 exec 1: error 1"]);
    stage.wait(&throttle, 2_000, "k", work(2).fails());
    stage.until(3_000);
    assert_eq!(stage.traced(&["wait"]), ["2000 wait 2: error 2"]);
    assert_eq!(stage.traced(&["error"]), Vec::<String>::new());
    assert_eq!(throttle.stats().failed, 2);
}

#[test]
fn a_failed_run_opens_a_window_like_a_good_one() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 100);
    stage.exec(&throttle, 0, "k", work(1).fails());
    stage.exec(&throttle, 1, "k", work(2).fails());
    stage.exec(&throttle, 150, "k", work(3));
    stage.until(1);
    check_stats(&throttle, (0, 1, 1, 1));
    assert_eq!(engine.stored("p:k").as_deref(), Some("100"));
    stage.until(1_000);
    assert_eq!(stage.starts(), [0, 102, 204]);
    let execs = ["0 exec 1: error 1", "1 exec 2: later", "150 exec 3: later"];
    assert_eq!(stage.traced(&["exec"]), execs);
}

#[test]
fn a_failed_trailing_run_is_told_to_all_who_wait_and_logged_once() {
    let stage = Stage::new();
    let throttle = stage.builder(100).log(stage.log()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.wait(&throttle, 20, "k", work(3).fails());
    stage.until(1_000);
    assert_eq!(stage.traced(&["wait"]), ["100 wait 2: error 3", "100 wait 3: error 3"]);
    let logged = stage.traced(&["error"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["100 error ", "key=k", "phase=trailing", "error 3"] {
        assert!(logged[0].contains(part), "{logged:?} lacks {part}");
    }
}

#[test]
fn a_failed_trailing_run_that_nobody_waits_for_is_logged_and_counted() {
    let stage = Stage::new();
    let throttle = stage.builder(100).log(stage.log()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 10, "k", work(2).fails());
    stage.until(1_000);
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now", "10 exec 2: later"]);
    assert_eq!((stage.traced(&["error"]).len(), throttle.stats().failed), (1, 1));
}

#[test]
fn after_a_failed_trailing_run_the_next_is_as_good_as_any() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 10, "k", work(2).fails());
    stage.wait_for(&throttle, 150, 1_000, "k", work(3));
    stage.until(2_000);
    assert_eq!(stage.starts(), [0, 100, 200]);
    assert_eq!(stage.traced(&["wait"]), ["200 wait 3: 3"]);
}

#[test]
fn each_failed_run_is_told_to_its_own_callers() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "k", work(1).takes(20).fails());
    stage.wait(&throttle, 10, "k", work(2).fails());
    stage.exec(&throttle, 500, "k", work(3).fails());
    stage.until(1_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 1 leading", "120 run 2 trailing", "500 run 3 leading"]);
    assert_eq!(stage.traced(&["exec"]), ["20 exec 1: error 1", "500 exec 3: error 3"]);
    assert_eq!(stage.traced(&["wait"]), ["120 wait 2: error 2"]);
}

#[test]
fn a_panic_opens_the_window_and_settles_waiters_before_it_unwinds() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.builder(100).engine(engine.clone()).log(stage.log()).build().unwrap();
    // Its own closure: unwinds. No other comes while it is acquired.
    stage.exec(&throttle, 0, "a", work(1).panics());
    // A trailing one.
    stage.exec(&throttle, 0, "b", work(2));
    stage.wait(&throttle, 50, "b", work(3));
    stage.wait(&throttle, 60, "b", work(4).takes(5).panics());
    stage.until(50);
    check_stats(&throttle, (0, 1, 2, 2));
    assert_eq!(engine.stored("p:a").as_deref(), Some("120"));
    stage.until(1_000);
    assert_eq!(stage.traced(&["exec"]), ["20 exec 1: unwound", "20 exec 2: now"]);
    let trailing = 20 + 102 + 20 + 5;
    assert_eq!(
        stage.traced(&["wait"]),
        [format!("{trailing} wait 3: panicked of b"), format!("{trailing} wait 4: panicked of b")]
    );
    assert_eq!(stage.traced(&["error"]).len(), 1, "{:?}", stage.trace());
    assert_eq!(throttle.stats().failed, 2);
    // Both keys work on.
    stage.exec(&throttle, 2_000, "a", work(5));
    stage.wait(&throttle, 2_000, "b", work(6));
    stage.until(3_000);
    assert_eq!(stage.traced(&["exec", "wait"])[4..], ["2020 exec 5: now", "2020 wait 6: 6"]);
}

#[test]
fn a_foreign_closures_panic_is_an_error_for_the_leader() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.on(&engine, 100);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2).panics());
    stage.wait(&throttle, 0, "other", work(3));
    stage.exec(&throttle, 10, "other", work(4).panics());
    stage.until(1_000);
    stage.check(&[
        "10 exec 4: later",
        "20 exec 1: panicked",
        "20 run 2 leading",
        "20 run 4 leading of other",
        "20 wait 2: panicked",
        "20 wait 3: panicked of other",
    ]);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn a_failed_leading_exec_too_returns_when_the_window_is_open() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Set { after(150) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).fails());
    stage.exec(&throttle, 0, "other", work(2).panics());
    stage.until(1_000);
    assert_eq!(stage.traced(&["exec"]), ["150 exec 1: error 1", "150 exec 2: unwound"]);
}

#[test]
fn failures_of_the_engine_never_become_errors_of_a_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).takes(10));
    stage.wait(&throttle, 20, "k", work(2));
    stage.wait(&throttle, 0, "other", work(3));
    stage.until(1_000);
    let given = ["0 wait 3: 3", "10 exec 1: now", "62 wait 2: 2"];
    assert_eq!(stage.traced(&["exec", "wait"]), given);
}
