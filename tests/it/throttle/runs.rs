//! Leading, coalescing, trailing: which closure runs when, and which calls it covers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use valve::Ran;

use super::scripted::{AT_ONCE, Operation, Scripted, after};
use super::stage::{Stage, Throttle, check_stats, work};
use crate::support::ms;

/// On an engine of the throttle's own and on one that others may see, with how much longer a window lasts there.
fn both(window: u64, play: impl Fn(&Stage, &Throttle, u64)) {
    let stage = Stage::new();
    play(&stage, &stage.private(window), 0);
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    play(&stage, &stage.on(&engine, window), 2);
}

#[test]
fn the_calls_of_a_window_become_one_run_of_the_newest_closure() {
    both(50, |stage, throttle, slack| {
        stage.exec(throttle, 0, "k", work(1));
        stage.exec(throttle, 10, "k", work(2));
        stage.exec(throttle, 20, "k", work(3));
        stage.until(50 + slack);
        stage.check(&[
            "0 exec 1: now",
            "0 run 1 leading",
            "10 exec 2: later",
            "20 exec 3: later",
            &format!("{} run 3 trailing", 50 + slack),
        ]);
        stage.until(1_000);
        assert_eq!(stage.starts(), [0, 50 + slack]);
    });
}

#[test]
fn ten_thousand_calls_of_a_window_become_one_run() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for call in 0..10_001 {
        stage.exec_here(&throttle, "k", work(call));
    }
    stage.until(20_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 0 leading", "1000 run 10000 trailing"]);
    assert_eq!(stage.trace().iter().filter(|line| line.contains("later")).count(), 10_000);
}

#[test]
fn twenty_three_quick_calls_run_the_first_and_the_last() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    for call in 0..23 {
        stage.exec(&throttle, u64::from(call), "k", work(call));
    }
    stage.until(1_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 0 leading", "100 run 22 trailing"]);
}

#[test]
fn a_window_begins_when_the_run_ends() {
    both(50, |stage, throttle, slack| {
        stage.exec(throttle, 0, "k", work(1).takes(80));
        stage.exec(throttle, 10, "k", work(2));
        stage.until(1_000);
        assert_eq!(stage.starts(), [0, 130 + slack]);
    });
}

#[test]
fn the_newest_closure_runs_for_all_that_came_during_a_run() {
    both(100, |stage, throttle, slack| {
        stage.exec(throttle, 0, "k", work(1).takes(80));
        stage.exec(throttle, 20, "k", work(2).takes(10));
        stage.wait(throttle, 30, "k", work(3).takes(10));
        stage.until(1_000);
        stage.check(&[
            "0 run 1 leading",
            "20 exec 2: later",
            "80 end 1",
            "80 exec 1: now",
            &format!("{} run 3 trailing", 180 + slack),
            &format!("{} end 3", 190 + slack),
            &format!("{} wait 3: 3", 190 + slack),
        ]);
    });
}

#[test]
fn a_call_during_a_run_is_covered_by_the_next() {
    both(50, |stage, throttle, slack| {
        stage.wait(throttle, 0, "k", work(1).takes(100));
        stage.wait(throttle, 50, "k", work(2).takes(100));
        stage.until(1_000);
        assert_eq!(
            stage.traced(&["wait"]),
            ["100 wait 1: 1".to_owned(), format!("{} wait 2: 2", 250 + slack)]
        );
    });
}

#[test]
fn a_call_during_a_trailing_run_gets_another() {
    both(50, |stage, throttle, slack| {
        stage.exec(throttle, 0, "k", work(1));
        stage.exec(throttle, 10, "k", work(2).takes(30));
        stage.exec(throttle, 70, "k", work(3));
        stage.until(1_000);
        assert_eq!(stage.starts(), [0, 50 + slack, 130 + 2 * slack]);
    });
}

#[test]
fn one_leading_run_covers_all_that_came_while_it_was_acquired() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 5, "k", work(2));
    stage.wait(&throttle, 8, "k", work(3));
    stage.exec(&throttle, 10, "k", work(4));
    stage.until(1_000);
    // The newest closure, on the leader's thread; and no trailing run follows.
    stage.check(&[
        "5 exec 2: later",
        "10 exec 4: later",
        "20 exec 1: now",
        "20 run 4 leading",
        "20 wait 3: 4",
    ]);
}

#[test]
fn ten_thousand_calls_while_the_leading_run_is_acquired_are_covered_by_it() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(0));
    let (calls, called) = (stage.clone(), throttle.clone());
    stage.at(10, move || (1..10_000).for_each(|call| calls.exec_here(&called, "k", work(call))));
    stage.until(1_000);
    assert_eq!(stage.traced(&["run"]), ["20 run 9999 leading"]);
    let execs = stage.traced(&["exec"]);
    assert_eq!(execs.iter().filter(|line| line.contains("now")).collect::<Vec<_>>(), ["20 exec 0: now"]);
    assert_eq!(execs.iter().filter(|line| line.contains("later")).count(), 9_999);
}

#[test]
fn ten_thousand_calls_during_a_leading_run_share_one_trailing_run() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.exec(&throttle, 0, "k", work(0).takes(100));
    for call in 1..=200 {
        stage.wait(&throttle, 50, "k", work(call));
    }
    let (calls, called) = (stage.clone(), throttle.clone());
    stage.at(60, move || (201..=10_000).for_each(|call| calls.exec_here(&called, "k", work(call))));
    stage.until(1_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 0 leading", "150 run 10000 trailing"]);
    let waits = stage.traced(&["wait"]);
    assert_eq!(waits.len(), 200);
    assert!(waits.iter().all(|line| line.starts_with("150 ") && line.ends_with(": 10000")), "{waits:?}");
    assert_eq!(stage.trace().iter().filter(|line| line.contains("later")).count(), 9_800);
}

#[test]
fn a_steady_stream_runs_at_a_steady_pace() {
    both(50, |stage, throttle, slack| {
        for call in 0..50 {
            stage.exec(throttle, 10 * u64::from(call), "k", work(call).takes(30));
        }
        stage.until(499);
        let expected: Vec<u64> = (0..).map(|run| run * (80 + slack)).take_while(|at| *at < 500).collect();
        assert_eq!(stage.starts(), expected);
    });
}

#[test]
fn a_trailing_run_opens_a_window_too() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for (call, at) in [(1, 0), (2, 500), (3, 1_001)] {
        stage.exec(&throttle, at, "k", work(call));
    }
    stage.until(20_000);
    let runs = ["0 run 1 leading", "1000 run 2 trailing", "2000 run 3 trailing"];
    assert_eq!(stage.traced(&["run"]), runs);
}

#[test]
fn the_closure_is_chosen_when_the_run_starts() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Claim, 2) => after(20),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    // The trailing run asks the engine from 52 to 72.
    stage.wait(&throttle, 60, "k", work(3).takes(30));
    stage.wait(&throttle, 80, "k", work(4));
    stage.until(1_000);
    stage.check(&[
        "0 exec 1: now",
        "0 run 1 leading",
        "72 run 3 trailing",
        "102 end 3",
        "102 wait 2: 3",
        "102 wait 3: 3",
        "154 run 4 trailing",
        "154 wait 4: 4",
    ]);
}

#[test]
fn a_window_without_calls_runs_nothing() {
    both(50, |stage, throttle, _| {
        stage.exec(throttle, 0, "k", work(1));
        stage.exec(throttle, 10, "k", work(2));
        stage.until(10_000);
        assert_eq!(stage.starts().len(), 2);
        check_stats(throttle, (0, 0, 0, 0));
    });
}

/// Calls the throttle as it is dropped: under a lock of the throttle's that would hang.
struct CallsWhenDropped {
    throttle: Throttle,
    stage: Stage,
    number: u32,
    dropped: Arc<AtomicUsize>,
}

impl Drop for CallsWhenDropped {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.stage.say(format!("drop {}", self.number));
        std::hint::black_box(self.throttle.stats());
        let job = self.throttle.job("k", |_run| Ok(0));
        if self.number == 2 {
            drop(job.exec());
        }
    }
}

#[test]
fn a_replaced_closure_is_dropped_at_once_and_none_is_kept_after_its_run() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    let dropped = Arc::new(AtomicUsize::new(0));
    let call = |number: u32, takes: u64| {
        let dropped = Arc::clone(&dropped);
        let held = CallsWhenDropped { throttle: throttle.clone(), stage: stage.clone(), number, dropped };
        let (stage, throttle) = (stage.clone(), throttle.clone());
        move || {
            let tell = stage.clone();
            let job = throttle.job("k", move |_run| {
                tell.say(format!("run {}", held.number));
                tell.clock.sleep(ms(takes));
                drop(held);
                Ok(0)
            });
            drop(job.exec());
        }
    };
    stage.at(0, call(1, 10));
    stage.at(20, call(2, 0));
    stage.at(30, call(3, 0));
    stage.at(40, call(4, 5));
    stage.until(1_000);
    // The closure that 2 left as it was dropped replaced that of 3, which had replaced it.
    let trace = stage.traced(&["run", "drop"]);
    assert_eq!(trace, ["0 run 1", "10 drop 1", "30 drop 2", "30 drop 3", "110 run 4", "115 drop 4"]);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(dropped.load(Ordering::Relaxed), 4);
}

#[test]
fn a_call_for_its_own_key_inside_a_run_is_left_to_the_next() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    let (tell, inner) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        let (stage, throttle) = (tell.clone(), inner.clone());
        let job = inner.job("k", move |_run| {
            again(&stage, &throttle);
            Ok(0)
        });
        assert_eq!(job.exec().unwrap(), Ran::Now);
    });
    stage.until(999);
    assert_eq!(stage.starts(), (0..10).map(|run| 100 * run).collect::<Vec<_>>());
    let inner = stage.traced(&["inner"]);
    assert!(inner.iter().all(|line| line.ends_with("Later")), "{inner:?}");
}

/// What a closure does that calls for its own key, with one that does the same.
fn again(stage: &Stage, throttle: &Throttle) {
    stage.say("run");
    let (tell, inner) = (stage.clone(), throttle.clone());
    let given = throttle.job("k", move |_run| {
        again(&tell, &inner);
        Ok(0)
    });
    stage.say(format!("inner {:?}", given.exec().unwrap()));
}

#[test]
fn waiting_for_its_own_key_inside_a_run_would_deadlock() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    for (at, timeout) in [(0, None), (1_000, Some(ms(40)))] {
        let (tell, inner) = (stage.clone(), throttle.clone());
        stage.at(at, move || {
            let (stage, throttle) = (tell.clone(), inner.clone());
            let job = inner.job("k", move |_run| {
                stage.wait_here(&throttle, "k", work(2), timeout);
                Ok(0)
            });
            drop(job.exec());
        });
    }
    stage.until(2_000);
    stage.check(&["0 wait 2: would deadlock", "1000 wait 2: would deadlock"]);
    check_stats(&throttle, (0, 0, 0, 0));
}
