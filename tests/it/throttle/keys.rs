//! What becomes of a key, and what the figures say at each stage.

use super::scripted::{AT_ONCE, Operation, Scripted, after};
use super::stage::{Stage, check_stats, work};
use crate::support::{ms, secs};

#[test]
fn a_new_throttle_does_nothing() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    check_stats(&throttle, (0, 0, 0, 0));
    stage.until(3_600_000);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.clock.timers(), 0);
    engine.check(&[]);
}

#[test]
fn a_job_does_nothing_until_exec() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    let before = throttle.stats();
    drop(throttle.job("k", stage.closure(work(1))));
    drop(throttle.job("k", stage.closure(work(2))).wait_finish());
    let job = throttle.job("k", stage.closure(work(3))).wait_finish().timeout(secs(1));
    stage.until(1_000);
    assert_eq!(throttle.stats(), before);
    engine.check(&[]);
    stage.check(&[]);
    drop(job);
    stage.exec_here(&throttle, "k", work(4));
    stage.check(&["1000 exec 4: now", "1000 run 4 leading"]);
}

#[test]
fn an_idle_key_runs_at_once_on_the_calling_thread() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.exec(&throttle, 7, "k", work(1).takes(80));
    stage.until(1_000);
    stage.check(&["7 run 1 leading", "87 end 1", "87 exec 1: now"]);

    let caller = std::thread::current().id();
    let ran = throttle.job("here", move |_run| Ok(u32::from(std::thread::current().id() == caller)));
    assert_eq!(ran.wait_finish().exec().unwrap(), 1);
}

#[test]
fn a_key_is_active_from_its_first_engine_call() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(20) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.until(0);
    // The leader's own call is not pending: no trailing run is owed to it.
    check_stats(&throttle, (1, 0, 1, 0));
    stage.until(19);
    check_stats(&throttle, (1, 0, 1, 0));
    stage.until(20);
    check_stats(&throttle, (0, 0, 1, 1));
}

#[test]
fn the_figures_of_a_run() {
    for shared in [false, true] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        let throttle = if shared { stage.on(&engine, 50) } else { stage.private(50) };
        // Only on an engine that others may see is there a lease to extend.
        let lease = usize::from(shared);
        stage.exec(&throttle, 0, "k", work(1).takes(80));
        stage.until(40);
        check_stats(&throttle, (1, 0, 1, lease));
        for call in 2..12 {
            stage.exec(&throttle, 45, "k", work(call));
        }
        stage.until(45);
        check_stats(&throttle, (1, 1, 1, lease));
        stage.until(80);
        check_stats(&throttle, (0, 1, 1, 1));
    }
}

#[test]
fn pending_counts_keys_and_not_calls() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for call in 0..10_001 {
        stage.exec_here(&throttle, "k", work(call));
    }
    check_stats(&throttle, (0, 1, 1, 1));
    stage.exec_here(&throttle, "other", work(1));
    check_stats(&throttle, (0, 1, 2, 2));
    stage.exec_here(&throttle, "other", work(2));
    check_stats(&throttle, (0, 2, 2, 2));
}

#[test]
fn a_key_stays_active_until_its_closing_write_is_answered() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Set { after(150) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.until(50);
    check_stats(&throttle, (1, 0, 1, 0));
    stage.exec(&throttle, 60, "k", work(2));
    stage.until(75);
    check_stats(&throttle, (1, 1, 1, 0));
    stage.until(201);
    // The window begins here when the answer comes.
    stage.check(&["0 run 1 leading", "60 exec 2: later", "150 exec 1: now"]);
    stage.until(202);
    assert_eq!(stage.starts(), [0, 202]);
}

#[test]
fn the_figures_of_a_window() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "k", work(1));
    stage.until(50);
    check_stats(&throttle, (0, 0, 1, 1));
    stage.exec(&throttle, 60, "k", work(2));
    stage.until(60);
    check_stats(&throttle, (0, 1, 1, 1));
    stage.until(100);
    // The trailing run opened another window.
    check_stats(&throttle, (0, 0, 1, 1));
    stage.until(200);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn an_unused_window_closes_and_nothing_is_left() {
    for (shared, closes) in [(false, 30), (true, 32)] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        let throttle = if shared { stage.on(&engine, 30) } else { stage.private(30) };
        stage.exec(&throttle, 0, "k", work(1));
        stage.until(closes - 1);
        check_stats(&throttle, (0, 0, 1, 1));
        stage.until(closes);
        check_stats(&throttle, (0, 0, 0, 0));
        // What is left is the engine's own sweep.
        assert_eq!(stage.clock.timers(), usize::from(shared));
    }
}

#[test]
fn the_call_at_the_first_instant_after_a_window_leads() {
    for (shared, window) in [(false, 20), (true, 22)] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        let throttle = if shared { stage.on(&engine, 20) } else { stage.private(20) };
        for round in 0..20 {
            stage.until(u64::from(round) * window);
            stage.exec_here(&throttle, "k", work(round));
        }
        let expected: Vec<String> = (0..20_u32)
            .flat_map(|round| {
                let at = u64::from(round) * window;
                [format!("{at} exec {round}: now"), format!("{at} run {round} leading")]
            })
            .collect();
        assert_eq!(stage.trace(), expected);
        // One tick earlier it would have been too early.
        let late = 20 * window;
        stage.clock.advance(ms(window) - ms(1) / 1_000);
        stage.exec_here(&throttle, "k", work(20));
        stage.until(late);
        assert_eq!(stage.starts().last(), Some(&late));
        assert!(stage.trace().last().unwrap().ends_with("run 20 trailing"));
    }
}

#[test]
fn a_trailing_run_that_asks_the_engine_is_active_and_pending() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Claim, 2) => after(20),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 10, "k", work(2));
    stage.until(60);
    check_stats(&throttle, (1, 1, 1, 0));
    stage.until(72);
    check_stats(&throttle, (0, 0, 1, 1));
    assert_eq!(stage.starts(), [0, 72]);
}

#[test]
fn keys_never_affect_each_other() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    stage.exec(&throttle, 0, "a", work(1));
    stage.exec(&throttle, 0, "b", work(2));
    stage.exec(&throttle, 300, "c", work(3).takes(5_000));
    stage.exec(&throttle, 400, "b", work(4));
    stage.until(0);
    check_stats(&throttle, (0, 0, 2, 2));
    stage.until(20_000);
    stage.check(&[
        "0 exec 1: now",
        "0 exec 2: now",
        "0 run 1 leading of a",
        "0 run 2 leading of b",
        "300 run 3 leading of c",
        "400 exec 4: later",
        "1000 run 4 trailing of b",
        "5300 end 3",
        "5300 exec 3: now",
    ]);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn ten_thousand_keys_run_once_each_and_leave_nothing() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    for key in 0..10_000 {
        stage.exec_here(&throttle, &format!("key {key}"), work(key));
    }
    check_stats(&throttle, (0, 0, 10_000, 10_000));
    let mut runs = stage.traced(&["run"]);
    assert_eq!(runs.len(), 10_000);
    runs.dedup();
    assert_eq!(runs.len(), 10_000);
    assert!(runs.iter().all(|run| run.contains("leading")));
    stage.until(1_000);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!((stage.traced(&["run"]).len(), stage.clock.timers()), (10_000, 0));
}

#[test]
fn deadlines_are_not_among_the_timers() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait_for(&throttle, 10, 30, "k", work(2));
    stage.until(20);
    check_stats(&throttle, (0, 1, 1, 1));
    stage.until(60);
    check_stats(&throttle, (0, 1, 1, 1));
    assert_eq!(stage.traced(&["wait"]), ["40 wait 2: timeout 30"]);
}

#[test]
fn the_engines_sweep_is_not_among_the_timers() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.until(10);
    check_stats(&throttle, (0, 0, 1, 1));
    assert_eq!(stage.clock.timers(), 2);
    stage.until(1_000);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.clock.timers(), 1);
}

#[test]
fn reading_the_figures_costs_the_same_at_any_number_of_keys() {
    let stage = Stage::new();
    let throttle = stage.private(3_600_000);
    for key in 0..100_000 {
        let _ = throttle.job(&format!("key {key}"), |_run| Ok(0)).exec().unwrap();
    }
    check_stats(&throttle, (0, 0, 100_000, 100_000));
    #[expect(clippy::disallowed_methods, reason = "how long it really takes")]
    let begin = std::time::Instant::now();
    for _ in 0..1_000 {
        std::hint::black_box(throttle.stats());
    }
    // Looking at each of 100,000 keys would take a minute.
    assert!(begin.elapsed() < secs(2), "{:?}", begin.elapsed());
}
