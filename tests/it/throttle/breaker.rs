//! An engine that fails: jobs run all the same, and after five failures in a row it is left alone for ten seconds.

use super::scripted::{AT_ONCE, FAILS, NEVER, Operation, Reply, Scripted, What, after, says};
use super::stage::{Stage, work};
use crate::support::ms;

#[test]
fn five_failures_in_a_row_open_the_breaker() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.builder(50).engine(engine.clone()).log(stage.log()).build().unwrap();
    for key in ["a", "b", "c", "d", "e", "f"] {
        stage.exec_here(&throttle, key, work(1));
    }
    engine.check(&[
        "0 claim p:a=200 px 200: error",
        "0 claim p:a=50 px 50: error",
        "0 claim p:b=200 px 200: error",
        "0 claim p:b=50 px 50: error",
        "0 claim p:c=200 px 200: error",
    ]);
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now"; 6]);
    let logged = stage.traced(&["debug"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["key=", "as the test says"] {
        assert!(logged[0].contains(part), "{logged:?} lacks {part}");
    }
}

#[test]
fn one_answer_in_between_begins_the_count_anew() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    // Four fail, one is answered, four fail: nine calls and the breaker is closed.
    engine.answers(|asked| if asked.key == "p:good" { AT_ONCE } else { FAILS });
    let throttle = stage.on(&engine, 50);
    for key in ["a", "b", "good", "c", "d"] {
        stage.exec_here(&throttle, key, work(1));
    }
    assert_eq!(engine.calls().len(), 10);
    stage.exec_here(&throttle, "e", work(1));
    // The fifth failure in a row is the first of these two.
    assert_eq!(engine.calls().len(), 11);
}

#[test]
fn an_open_breaker_leaves_the_engine_alone() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.on(&engine, 50);
    for key in ["a", "b", "c"] {
        stage.exec_here(&throttle, key, work(1));
    }
    assert_eq!(engine.calls().len(), 5);
    engine.answers(|_| AT_ONCE);
    // Acquiring counts as won, extending and closing are left out.
    stage.exec(&throttle, 100, "long", work(2).takes(1_000));
    stage.exec(&throttle, 200, "long", work(3));
    stage.until(9_999);
    assert_eq!(stage.traced(&["run"])[3..], ["100 run 2 leading of long", "1152 run 3 trailing of long"]);
    assert_eq!(engine.calls().len(), 5);
    // At exactly ten seconds the next call is the probe, and what it finds is that all is well.
    stage.until(10_000);
    stage.exec_here(&throttle, "k", work(4));
    assert_eq!(
        engine.calls()[5..],
        ["10000 claim p:k=10200 px 200: true", "10000 set p:k=10050 px 50: true"]
    );
}

#[test]
fn a_failed_probe_opens_it_again_and_an_answered_one_closes_it() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.builder(50).engine(engine.clone()).log(stage.log()).build().unwrap();
    for key in ["a", "b", "c"] {
        stage.exec_here(&throttle, key, work(1));
    }
    stage.until(10_000);
    stage.exec_here(&throttle, "d", work(1));
    assert_eq!(engine.calls().len(), 6, "the probe, and nothing else");
    stage.until(19_999);
    stage.exec_here(&throttle, "e", work(1));
    assert_eq!(engine.calls().len(), 6);
    stage.until(20_000);
    engine
        .answers(|asked| if asked.nth == 7 && asked.operation == Operation::Claim { AT_ONCE } else { FAILS });
    stage.exec_here(&throttle, "f", work(1));
    assert_eq!(engine.calls().len(), 8, "a probe that is answered, and a closing write");
    // Five new failures are needed: that write was the first of them.
    stage.exec_here(&throttle, "g", work(1));
    stage.exec_here(&throttle, "h", work(1));
    assert_eq!(engine.calls().len(), 12);
    stage.exec_here(&throttle, "i", work(1));
    assert_eq!(engine.calls().len(), 12);
    assert_eq!(stage.traced(&["debug"]).len(), 3, "{:?}", stage.traced(&["debug"]));
}

#[test]
fn others_are_skipped_while_a_probe_is_out_and_a_hung_one_is_given_up() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.on(&engine, 50);
    for key in ["a", "b", "c"] {
        stage.exec_here(&throttle, key, work(1));
    }
    engine.answers(|_| NEVER);
    stage.exec(&throttle, 10_000, "hung", work(2));
    for call in 0..25 {
        stage.exec(&throttle, 10_100 + 900 * u64::from(call), "k", work(100 + call));
    }
    stage.until(20_999);
    // Only the key of the probe is stalled.
    assert_eq!(engine.calls().len(), 6);
    let runs = stage.traced(&["run"]).len();
    assert_eq!(runs, 3 + 13, "{:?}", stage.traced(&["run"]));
    // It counts as failed after the engine's second, so ten seconds later comes the next.
    stage.until(21_000);
    engine.answers(|_| AT_ONCE);
    stage.until(22_000);
    assert!(engine.calls().len() > 6, "{:?}", engine.calls());
    assert!(engine.times(Operation::Claim)[5..].iter().all(|at| *at == 10_000 || *at >= 21_000));
}

#[test]
fn a_late_answer_from_before_the_opening_counts_for_nothing() {
    for late in [Reply { after: 5_000, what: What::Fails }, after(5_000)] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        engine.answers(move |asked| if asked.key == "p:late" { late } else { FAILS });
        let throttle = stage.on(&engine, 50);
        stage.exec(&throttle, 0, "late", work(1));
        for key in ["a", "b", "c"] {
            stage.exec(&throttle, 1, key, work(1));
        }
        stage.until(5_000);
        engine.answers(|_| AT_ONCE);
        for (at, key) in [(5_001, "d"), (9_999, "e"), (10_000, "f"), (10_001, "g")] {
            stage.exec(&throttle, at, key, work(2));
        }
        stage.until(20_000);
        // It neither closed the breaker nor prolonged its ten seconds, which began at 1.
        assert_eq!(engine.times(Operation::Claim)[6..], [10_001], "{:?}", engine.calls());
    }
}

#[test]
fn without_its_engine_a_throttle_still_runs_once_a_window() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.on(&engine, 50);
    for call in 0..30 {
        stage.exec(&throttle, 10 * u64::from(call), "k", work(call));
    }
    stage.until(1_000);
    let starts = stage.starts();
    assert!((5..=7).contains(&starts.len()), "{starts:?}");
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 50), "{starts:?}");
    assert!(stage.traced(&["run"]).last().unwrap().contains("run 29 "));
    assert_eq!(engine.calls().len(), 5);
}

#[test]
fn each_throttle_counts_its_own_failures() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let (one, two) = (stage.on(&engine, 50), stage.on(&engine, 50));
    for key in ["a", "b", "c", "d"] {
        stage.exec_here(&one, key, work(1));
    }
    assert_eq!(engine.calls().len(), 5);
    for key in ["a", "b", "c", "d"] {
        stage.exec_here(&two, key, work(2));
    }
    assert_eq!(engine.calls().len(), 10);
}

#[test]
fn a_panic_of_the_engine_counts_as_a_failure() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| Reply { after: 0, what: What::Panics });
    let throttle = stage.on(&engine, 50);
    for key in ["a", "b", "c", "d"] {
        stage.exec_here(&throttle, key, work(1));
    }
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now"; 4]);
    assert_eq!(engine.calls().len(), 5);
    // On the throttle's own threads too.
    engine.answers(|asked| match asked.operation {
        Operation::Claim => AT_ONCE,
        _ => Reply { after: 0, what: What::Panics },
    });
    stage.exec(&throttle, 10_000, "k", work(2).takes(350));
    stage.wait(&throttle, 10_100, "k", work(3));
    stage.until(12_000);
    assert_eq!(stage.traced(&["wait"]), ["10402 wait 3: 3"]);
}

#[test]
fn once_the_engine_is_back_instances_share_their_windows_again() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.at < 3_000 { FAILS } else { AT_ONCE });
    let throttles = [stage.on(&engine, 500), stage.on(&engine, 500)];
    for (instance, throttle) in throttles.iter().enumerate() {
        for call in 0..400 {
            let number = 1_000 * instance as u32 + call;
            stage.exec(throttle, 50 * u64::from(call) + instance as u64, "k", work(number).takes(20));
        }
    }
    stage.until(20_000);
    let starts = stage.starts();
    let after: Vec<_> = starts.iter().filter(|at| **at >= 14_000).collect();
    assert!(after.len() > 8, "{starts:?}");
    assert!(after.windows(2).all(|pair| pair[1] - pair[0] >= 520), "{starts:?}");
}

#[test]
fn a_lost_race_is_an_answer_and_no_failure() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Get { FAILS } else { says(false) });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.clock.advance(ms(10_000));
    // Each claim that was answered comes between two reads that failed.
    assert_eq!(engine.count(Operation::Claim), 10);
}
