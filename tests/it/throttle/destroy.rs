//! The ends of a throttle: destroyed, shut down, flushed, or dropped.

use valve::Error;

use super::scripted::{AT_ONCE, NEVER, Operation, Scripted, after};
use super::stage::{Stage, Throttle, check_stats, work};
use crate::support::ms;

#[test]
fn destroy_returns_at_once_and_twice() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Set { NEVER } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "closing", work(1));
    stage.wait(&throttle, 5, "closing", work(2));
    stage.exec(&throttle, 0, "running", work(3).takes(100));
    stage.until(10);
    for _ in 0..2 {
        throttle.destroy();
        check_stats(&throttle, (0, 0, 0, 0));
    }
    stage.until(10_000);
    // The closing write hangs, and with it the call that waits for it, as promised.
    stage.check(&[
        "0 run 1 leading of closing",
        "0 run 3 leading of running",
        "10 wait 2: destroyed of closing",
        "100 end 3",
    ]);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn after_destroy_every_call_is_refused() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    throttle.destroy();
    let job = throttle.job("k", stage.closure(work(1)));
    assert_eq!(job.exec().unwrap_err().key(), Some("k"));
    stage.wait(&throttle, 10, "k", work(2));
    stage.wait_for(&throttle, 10, 50, "k", work(3));
    stage.until(100);
    stage.check(&["10 wait 2: destroyed", "10 wait 3: destroyed"]);
    check_stats(&throttle, (0, 0, 0, 0));
    engine.check(&[]);
    assert_eq!(throttle.flush(), 0);
    throttle.shutdown(ms(10)).unwrap();
}

#[test]
fn a_call_that_asks_the_engine_ends_with_its_answer_and_runs_nothing() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(100) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(30);
    throttle.destroy();
    stage.until(99);
    stage.check(&["30 wait 2: destroyed"]);
    stage.until(1_000);
    stage.check(&["30 wait 2: destroyed", "100 exec 1: destroyed"]);
    // The key stays taken for at most L, with nobody running.
    engine.check(&["0 claim p:k=200 px 200: true"]);
    assert_eq!(engine.stored("p:k"), None);
}

#[test]
fn a_call_that_lost_its_race_ends_with_the_engines_answer() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.foreign("p:k", "10000", 10_000);
    engine.answers(|asked| if asked.operation == Operation::Get { after(100) } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(30);
    throttle.destroy();
    stage.until(1_000);
    stage.check(&["30 wait 2: destroyed", "100 exec 1: destroyed"]);
}

#[test]
fn a_trailing_run_that_asks_the_engine_never_runs() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Claim, 2) => after(100),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(60);
    throttle.destroy();
    stage.until(1_000);
    stage.check(&["0 exec 1: now", "0 run 1 leading", "60 wait 2: destroyed"]);
}

#[test]
fn a_run_goes_on_for_those_it_covers() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Claim { after(10) } else { AT_ONCE });
    let throttle = stage.on(&engine, 200);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 5, "k", work(2).takes(500));
    stage.wait(&throttle, 100, "k", work(3));
    stage.exec(&throttle, 120, "k", work(4));
    stage.until(150);
    throttle.destroy();
    check_stats(&throttle, (0, 0, 0, 0));
    stage.until(5_000);
    stage.check(&[
        "10 run 2 leading",
        "120 exec 4: later",
        "150 wait 3: destroyed",
        "510 end 2",
        "510 exec 1: now",
        "510 wait 2: 2",
    ]);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.clock.timers(), 1, "the engine's sweep");
}

#[test]
fn a_run_keeps_its_lease_after_destroy() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let (throttle, other) = (stage.on(&engine, 50), stage.on(&engine, 50));
    stage.exec(&throttle, 0, "k", work(1).takes(600));
    stage.until(60);
    throttle.destroy();
    for call in 0..100 {
        stage.exec(&other, 70 + 10 * u64::from(call), "k", work(2 + call));
    }
    stage.until(5_000);
    let runs = stage.traced(&["run", "end"]);
    assert_eq!(runs[..2], ["0 run 1 leading", "600 end 1"], "{runs:?}");
    assert!(runs.len() > 2);
}

#[test]
fn pending_calls_never_run_and_those_who_wait_are_told() {
    let stage = Stage::new();
    let throttle = stage.builder(100).log(stage.log()).build().unwrap();
    for key in ["a", "b"] {
        stage.exec(&throttle, 0, key, work(1));
    }
    stage.exec(&throttle, 10, "a", work(2));
    stage.wait(&throttle, 10, "b", work(3));
    stage.wait_for(&throttle, 10, 1_000, "b", work(4));
    stage.until(50);
    throttle.destroy();
    check_stats(&throttle, (0, 0, 0, 0));
    stage.until(10_000);
    let waits = ["50 wait 3: destroyed of b", "50 wait 4: destroyed of b"];
    assert_eq!(stage.traced(&["wait"]), waits);
    assert_eq!(stage.starts(), [0, 0]);
    assert_eq!(stage.traced(&["error"]), Vec::<String>::new());
    assert_eq!((throttle.stats().destroyed, stage.clock.timers()), (3, 0));
}

#[test]
fn destroy_inside_a_run_is_fine() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    let (tell, inner) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        let (inside, destroys) = (tell.clone(), inner.clone());
        let job = inner.job("k", move |_run| {
            inside.clock.sleep(ms(50));
            destroys.destroy();
            inside.exec_here(&destroys, "k", work(9));
            inside.clock.sleep(ms(50));
            Ok(7)
        });
        tell.say(format!("given {:?}", job.wait_finish().exec()));
    });
    stage.exec(&throttle, 10, "k", work(2));
    stage.wait(&throttle, 20, "k", work(3));
    stage.until(10_000);
    stage.check(&["10 exec 2: later", "50 exec 9: destroyed", "50 wait 3: destroyed", "100 given Ok(7)"]);
}

#[test]
fn only_an_engine_of_ones_own_is_cleared() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let (one, two) = (stage.on(&engine, 1_000), stage.on(&engine, 1_000));
    stage.exec_here(&one, "k", work(1));
    one.destroy();
    assert_eq!((engine.len(), engine.count(Operation::Clear)), (1, 0));
    // Its windows hold on for others.
    stage.exec_here(&two, "k", work(2));
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now", "0 exec 2: later"]);
    // Two throttles never share the engine that neither was given, and each loses its windows alone.
    let (one, two) = (stage.private(1_000), stage.private(1_000));
    stage.exec_here(&one, "k", work(3));
    stage.exec_here(&two, "k", work(4));
    one.destroy();
    stage.exec_here(&two, "k", work(5));
    let execs = ["0 exec 3: now", "0 exec 4: now", "0 exec 5: later"];
    assert_eq!(stage.traced(&["exec"])[2..], execs);
}

#[test]
fn destroying_a_hundred_thousand_keys_takes_no_time() {
    let stage = Stage::new();
    let throttle = stage.private(3_600_000);
    for key in 0..100_000 {
        let key = format!("key {key}");
        let _ = throttle.job(&key, |_run| Ok(0)).exec().unwrap();
        let _ = throttle.job(&key, |_run| Ok(0)).exec().unwrap();
    }
    check_stats(&throttle, (0, 100_000, 100_000, 100_000));
    #[expect(clippy::disallowed_methods, reason = "how long it really takes")]
    let begin = std::time::Instant::now();
    throttle.destroy();
    assert!(begin.elapsed() < ms(1_000), "{:?}", begin.elapsed());
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!((throttle.stats().destroyed, stage.clock.timers()), (100_000, 0));
}

#[test]
fn shutdown_waits_for_runs() {
    for (timeout, expected) in [(1_000, "300 shutdown Ok(())"), (50, "150 shutdown timeout")] {
        let stage = Stage::new();
        let throttle = stage.private(100);
        stage.exec(&throttle, 0, "k", work(1).takes(300));
        stage.wait(&throttle, 10, "k", work(2));
        let tell = stage.clone();
        let ends = throttle.clone();
        stage.at(100, move || tell.say(format!("shutdown {}", shut(&ends, timeout))));
        stage.until(1_000);
        assert_eq!(stage.traced(&["shutdown"]), [expected]);
        assert_eq!(stage.traced(&["wait", "exec"]), ["100 wait 2: destroyed", "300 exec 1: now"]);
    }
}

fn shut(throttle: &Throttle, timeout: u64) -> String {
    match throttle.shutdown(ms(timeout)) {
        Err(Error::Timeout { .. }) => "timeout".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn shutdown_waits_for_trailing_runs_and_those_on_workers() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    stage.exec(&throttle, 0, "trailing", work(1));
    stage.exec(&throttle, 10, "trailing", work(2).takes(300));
    stage.wait_for(&throttle, 150, 50, "leading", work(3).takes(400));
    let (tell, ends) = (stage.clone(), throttle.clone());
    stage.at(200, move || tell.say(format!("shutdown {}", shut(&ends, 10_000))));
    stage.until(2_000);
    assert_eq!(stage.traced(&["end", "shutdown"]), ["400 end 2", "550 end 3", "550 shutdown Ok(())"]);
}

#[test]
fn shutdown_and_flush_inside_a_run_do_not_wait_for_it() {
    let stage = Stage::new();
    let throttle = stage.private(100);
    let (tell, inner) = (stage.clone(), throttle.clone());
    stage.exec(&throttle, 0, "other", work(1));
    stage.exec(&throttle, 5, "other", work(2));
    stage.at(10, move || {
        let (inside, ends) = (tell.clone(), inner.clone());
        let job = inner.job("k", move |_run| {
            inside.say(format!("flush {}", ends.flush()));
            inside.clock.sleep(ms(10));
            inside.say(format!("shutdown {}", shut(&ends, 1_000)));
            Ok(7)
        });
        tell.say(format!("given {:?}", job.exec()));
    });
    stage.until(1_000);
    stage.check(&[
        "0 exec 1: now",
        "0 run 1 leading of other",
        "5 exec 2: later",
        "10 flush 1",
        "10 run 2 trailing of other",
        "20 given Ok(Now)",
        "20 shutdown Ok(())",
    ]);
}

#[test]
fn flush_runs_what_is_pending_now_and_returns_when_that_is_over() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    for throttle in [stage.private(1_000), stage.on(&engine, 1_000)] {
        let begin = u64::try_from(stage.clock.now().as_millis()).unwrap();
        let before = stage.trace().len();
        for key in ["a", "b", "idle"] {
            stage.exec(&throttle, begin, key, work(1));
        }
        stage.exec(&throttle, begin + 10, "a", work(2).takes(50));
        stage.wait(&throttle, begin + 20, "b", work(3).takes(50));
        let (tell, flushes) = (stage.clone(), throttle.clone());
        stage.at(begin + 100, move || tell.say(format!("flush {}", flushes.flush())));
        stage.until(begin + 5_000);
        let expected = [
            (100, "run 2 trailing of a"),
            (100, "run 3 trailing of b"),
            (150, "end 2"),
            (150, "end 3"),
            (150, "flush 2"),
            (150, "wait 3: 3"),
        ];
        let expected: Vec<_> = expected.map(|(at, line)| format!("{} {line}", begin + at)).into();
        assert_eq!(stage.trace()[before + 7..], expected);
        check_stats(&throttle, (0, 0, 0, 0));
    }
}

#[test]
fn flush_never_lets_a_key_run_twice_at_once() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    stage.exec(&throttle, 0, "k", work(1).takes(300));
    stage.exec(&throttle, 100, "k", work(2).takes(100));
    let (tell, flushes) = (stage.clone(), throttle.clone());
    stage.at(150, move || tell.say(format!("flush {}", flushes.flush())));
    stage.until(5_000);
    stage.check(&[
        "0 run 1 leading",
        "100 exec 2: later",
        "300 end 1",
        "300 exec 1: now",
        "300 run 2 trailing",
        "400 end 2",
        "400 flush 1",
    ]);
}

#[test]
fn flush_waits_for_the_window_of_another_instance() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.foreign("p:k", "150", 150);
    let throttle = stage.on(&engine, 100);
    stage.exec(&throttle, 0, "k", work(1));
    let (tell, flushes) = (stage.clone(), throttle.clone());
    stage.at(50, move || tell.say(format!("flush {}", flushes.flush())));
    stage.until(5_000);
    stage.check(&["0 exec 1: later", "150 flush 1", "150 run 1 trailing"]);
}

#[test]
fn dropping_the_last_handle_loses_no_call() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    for throttle in [stage.private(100), stage.on(&engine, 100)] {
        let begin = u64::try_from(stage.clock.now().as_millis()).unwrap();
        stage.exec_here(&throttle, "k", work(1));
        stage.exec_here(&throttle, "k", work(2));
        drop(throttle);
        stage.until(begin + 1_000);
        let runs = stage.traced(&["run"]);
        assert!(runs.last().unwrap().ends_with("run 2 trailing"), "{runs:?}");
    }
    assert_eq!(stage.starts().len(), 4);
    assert_eq!(stage.clock.timers(), 1, "the engine's sweep");
}
