//! What is written to the engine: acquiring, extending, closing; and how long the engine may take.

use super::scripted::{AT_ONCE, FAILS, NEVER, Operation, Scripted, after};
use super::stage::{Stage, check_stats, work};

#[test]
fn the_stored_value_is_the_end_of_the_window_under_prefix_and_key() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.builder(1_000).engine(engine.clone()).build().unwrap();
    stage.exec(&throttle, 1_000_000, "{room}:42", work(1).takes(1_200));
    stage.until(1_001_200);
    assert_eq!(engine.stored("p:{room}:42").as_deref(), Some("1002200"));
    stage.until(1_010_000);
    engine.check(&[
        "1000000 claim p:{room}:42=1001000 px 1000: true",
        "1000500 set p:{room}:42=1001500 px 1000: true",
        "1001000 set p:{room}:42=1002000 px 1000: true",
        "1001200 set p:{room}:42=1002200 px 1000: true",
    ]);
    // One window after the run's end nothing is left there.
    assert_eq!(engine.stored("p:{room}:42"), None);
}

#[test]
fn leases_are_at_least_two_hundred_milliseconds_and_windows_are_what_they_are() {
    #[track_caller]
    fn check(window: u64, takes: u64, expected: &[&str]) {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        let throttle = stage.on(&engine, window);
        stage.exec(&throttle, 1_000, "k", work(1).takes(takes));
        stage.until(1_000 + takes);
        engine.check(expected);
    }
    check(50, 0, &["1000 claim p:k=1200 px 200: true", "1000 set p:k=1050 px 50: true"]);
    check(1, 0, &["1000 claim p:k=1200 px 200: true", "1000 set p:k=1001 px 1: true"]);
    check(199, 0, &["1000 claim p:k=1200 px 200: true", "1000 set p:k=1199 px 199: true"]);
    check(201, 0, &["1000 claim p:k=1201 px 201: true", "1000 set p:k=1201 px 201: true"]);
    check(
        50,
        250,
        &[
            "1000 claim p:k=1200 px 200: true",
            "1100 set p:k=1300 px 200: true",
            "1200 set p:k=1400 px 200: true",
            "1250 set p:k=1300 px 50: true",
        ],
    );
    check(
        300,
        700,
        &[
            "1000 claim p:k=1300 px 300: true",
            "1150 set p:k=1450 px 300: true",
            "1300 set p:k=1600 px 300: true",
            "1450 set p:k=1750 px 300: true",
            "1600 set p:k=1900 px 300: true",
            "1700 set p:k=2000 px 300: true",
        ],
    );
    check(
        2_147_483_647,
        0,
        &["1000 claim p:k=2147484647 px 2147483647: true", "1000 set p:k=2147484647 px 2147483647: true"],
    );
}

#[test]
fn every_run_closes_with_a_write_of_its_window() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 500);
    for (number, work) in [work(1), work(2).fails(), work(3).panics()].into_iter().enumerate() {
        let begin = 10_000 * (number as u64 + 1);
        stage.exec(&throttle, begin, "k", work.takes(10));
        stage.exec(&throttle, begin + 100, "k", work.takes(10));
    }
    stage.until(100_000);
    let closing: Vec<u64> = [10_010, 20_010, 30_010].into_iter().flat_map(|at| [at, at + 512]).collect();
    assert_eq!(engine.times(Operation::Set), closing);
    assert!(engine.calls().iter().all(|call| call.contains(" px 500: true")), "{:?}", engine.calls());
}

#[test]
fn nobody_else_gets_the_key_during_a_run_and_its_window() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    let (other, tell) = (engine.clone(), stage.clone());
    stage.exec(&throttle, 0, "k", work(1).takes(350));
    stage.at(5, move || {
        while tell.clock.now() < crate::support::ms(1_000) {
            if other.foreign_claim("p:k", 10_000) {
                tell.say("foreign");
            }
            tell.clock.sleep(crate::support::ms(10));
        }
    });
    stage.until(1_000);
    stage.check(&["0 run 1 leading", "350 end 1", "350 exec 1: now", "405 foreign"]);
}

#[test]
fn a_run_of_ten_windows_is_never_overlapped() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let (one, two) = (stage.on(&engine, 300), stage.on(&engine, 300));
    stage.exec(&one, 0, "k", work(1).takes(3_000));
    for call in 0..40 {
        stage.exec(&two, 10 + 90 * call, "k", work(100 + call as u32));
    }
    stage.until(3_299);
    assert_eq!(stage.starts(), [0]);
    stage.until(10_000);
    assert!(stage.starts()[1] >= 3_300, "{:?}", stage.starts());
}

#[test]
fn a_private_engine_needs_no_lease() {
    let stage = Stage::new();
    let throttle = stage.private(50);
    stage.exec(&throttle, 0, "k", work(1).takes(10_000));
    stage.until(5_000);
    check_stats(&throttle, (1, 0, 1, 0));
    // The closure's own sleep.
    assert_eq!(stage.clock.timers(), 1);
}

#[test]
fn an_extension_on_its_way_puts_off_the_next() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Set, 1) => NEVER,
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).takes(350));
    stage.until(1_099);
    // The closing write waits for it, but no longer than a second in all.
    engine.check(&["0 claim p:k=200 px 200: true", "100 set p:k=300 px 200: no answer"]);
    check_stats(&throttle, (1, 0, 1, 0));
    stage.until(1_100);
    assert_eq!(engine.times(Operation::Set).len() + engine.times(Operation::Claim).len(), 3);
    assert_eq!(stage.traced(&["exec"]), ["1100 exec 1: now"]);
}

#[test]
fn the_closing_write_comes_after_an_extension_on_its_way() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Set, 1) => after(90),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).takes(150));
    stage.until(190);
    engine.check(&[
        "0 claim p:k=200 px 200: true",
        "100 set p:k=300 px 200: true",
        "190 set p:k=240 px 50: true",
    ]);
    assert_eq!(stage.traced(&["exec"]), ["190 exec 1: now"]);
    // The window is what it should be, not the lease's length.
    stage.until(239);
    assert_eq!(engine.stored("p:k").as_deref(), Some("240"));
    stage.until(240);
    assert_eq!(engine.stored("p:k"), None);
}

#[test]
fn extensions_that_fail_do_not_disturb_the_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.at > 0 { FAILS } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).takes(750));
    stage.until(10_000);
    // They go on until the breaker opens.
    assert_eq!(engine.calls().len(), 1 + 5, "{:?}", engine.calls());
    stage.check(&["0 run 1 leading", "750 end 1", "750 exec 1: now"]);
}

#[test]
fn a_lease_that_was_lost_is_not_taken_from_others() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if (1..250).contains(&asked.at) { FAILS } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1).takes(950));
    let other = engine.clone();
    stage.at(250, move || other.foreign("p:k", "600", 350));
    stage.until(599);
    assert_eq!(engine.stored("p:k").as_deref(), Some("600"));
    stage.until(950);
    engine.check(&[
        "0 claim p:k=200 px 200: true",
        "100 set p:k=300 px 200: error",
        // By our own clock the lease has ended.
        "200 claim p:k=400 px 200: error",
        "300 claim p:k=500 px 200: false",
        "400 claim p:k=600 px 200: false",
        "500 claim p:k=700 px 200: false",
        // The other's window is over: the key is held again.
        "600 claim p:k=800 px 200: true",
        "700 set p:k=900 px 200: true",
        "800 set p:k=1000 px 200: true",
        "900 set p:k=1100 px 200: true",
        "950 set p:k=1000 px 50: true",
    ]);
}

#[test]
fn a_run_that_never_held_its_key_closes_with_a_claim() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.at == 0 { FAILS } else { AT_ONCE });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "free", work(1).takes(50));
    stage.exec(&throttle, 0, "taken", work(2).takes(50));
    let other = engine.clone();
    stage.at(20, move || other.foreign("p:taken", "10000", 10_000));
    stage.until(60);
    let closing = engine.calls().split_off(2);
    assert_eq!(closing, ["50 claim p:free=100 px 50: true", "50 claim p:taken=100 px 50: false"]);
    assert_eq!(engine.stored("p:taken").as_deref(), Some("10000"));
}

#[test]
fn one_instance_alone_reads_nothing_and_removes_nothing() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    for call in 0..100 {
        stage.exec(&throttle, 7 * u64::from(call), ["a", "b", "c"][call as usize % 3], work(call).takes(10));
    }
    stage.until(2_000);
    throttle.destroy();
    stage.until(3_000);
    assert!(stage.starts().len() > 20);
    let count = |operation| engine.count(operation);
    assert_eq!((count(Operation::Get), count(Operation::Del), count(Operation::Clear)), (0, 0, 0));
}

#[test]
fn an_engine_may_take_its_time() {
    #[track_caller]
    fn check(takes: u64) {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        engine.answers(move |asked| if asked.at == 0 && takes > 0 { after(takes) } else { AT_ONCE });
        let throttle = stage.on(&engine, 50);
        stage.exec(&throttle, 0, "k", work(1));
        stage.until(takes + 100);
        stage.check(&[&format!("{takes} exec 1: now"), &format!("{takes} run 1 leading")]);
    }
    check(0);
    check(150);
    check(10 * 60_000);
}

#[test]
fn a_hung_engine_stalls_only_its_own_key() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.key == "p:hung" { NEVER } else { AT_ONCE });
    let throttle = stage.builder(50).engine(engine.clone()).workers(1).build().unwrap();
    stage.exec(&throttle, 0, "hung", work(1));
    stage.exec(&throttle, 10, "hung", work(2));
    stage.wait_for(&throttle, 20, 500, "hung", work(3));
    stage.exec(&throttle, 0, "k", work(4));
    stage.exec(&throttle, 10, "k", work(5).takes(300));
    stage.until(600_000);
    stage.check(&[
        "0 exec 4: now",
        "0 run 4 leading",
        "10 exec 2: later",
        "10 exec 5: later",
        "52 run 5 trailing",
        "352 end 5",
        "520 wait 3: timeout 500 of hung",
    ]);
    assert_eq!(throttle.stats().active, 1);
}

#[test]
fn a_worker_that_the_engine_holds_up_is_replaced() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.key.as_str(), asked.at) {
        ("p:hung", 1..) => NEVER,
        _ => AT_ONCE,
    });
    let throttle = stage.builder(50).engine(engine.clone()).workers(1).build().unwrap();
    for key in ["hung", "k"] {
        stage.exec(&throttle, 0, key, work(1));
        stage.wait_for(&throttle, 10, 5_000, key, work(2));
    }
    stage.until(10_000);
    let waits = stage.traced(&["wait"]);
    assert_eq!(waits[1], "5010 wait 2: timeout 5000 of hung", "{waits:?}");
    // At the latest when the engine has had its second.
    let served: u64 = waits[0].strip_suffix(" wait 2: 2").unwrap().parse().unwrap();
    assert!((52..=1_052).contains(&served), "{waits:?}");
}
