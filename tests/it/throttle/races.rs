//! Several instances on one engine: who loses a race, when it tries again, and when it gives up.

use super::scripted::{AT_ONCE, FAILS, Operation, Reply, Scripted, What, reads, says, shifted};
use super::stage::{Stage, check_stats, work};
use crate::support::ms;

#[test]
fn of_two_instances_one_leads_and_the_other_follows() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let (one, two) = (stage.on(&engine, 50), stage.on(&engine, 50));
    stage.exec(&one, 0, "k", work(1).takes(20));
    stage.exec(&two, 5, "k", work(2));
    stage.wait(&two, 10, "k", work(3));
    stage.until(10_000);
    // At 5 the key says 200, the end of the first's lease.
    stage.check(&[
        "0 run 1 leading",
        "5 exec 2: later",
        "20 end 1",
        "20 exec 1: now",
        "200 run 3 trailing",
        "200 wait 3: 3",
    ]);
}

#[test]
fn instances_that_call_all_the_time_run_once_a_window_between_them() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    for instance in 0..3_u32 {
        let throttle = stage.on(&engine, 100);
        for call in 0..200 {
            let at = 10 * u64::from(call) + u64::from(instance);
            stage.exec(&throttle, at, "k", work(1_000 * (instance + 1) + call).takes(20));
        }
    }
    stage.until(10_000);
    let starts = stage.starts();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 120), "{starts:?}");
    assert!(starts.len() >= 12, "{starts:?}");
    // The last call of each instance is covered.
    let runs = stage.traced(&["run"]);
    for instance in 1..=3 {
        let last = format!("run {} ", 1_000 * instance + 199);
        assert!(runs.iter().any(|run| run.contains(&last)), "{last}: {runs:?}");
    }
}

#[test]
fn two_throttles_of_one_prefix_are_two_instances_and_of_two_prefixes_strangers() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = |prefix: &str| {
        let builder = super::stage::Throttle::builder(prefix).window(ms(50));
        builder.engine(engine.clone()).build().unwrap()
    };
    let [a, b, again] = ["a:", "b:", "a:"].map(throttle);
    stage.exec(&a, 0, "42", work(1));
    stage.exec(&b, 0, "42", work(2));
    stage.exec(&again, 0, "42", work(3));
    stage.until(0);
    stage.check(&[
        "0 exec 1: now",
        "0 exec 2: now",
        "0 exec 3: later",
        "0 run 1 leading of 42",
        "0 run 2 leading of 42",
    ]);
}

#[test]
fn a_lost_race_is_run_again_at_the_stored_end() {
    #[track_caller]
    fn check(stored: Option<&'static str>, again_in: u64) {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        engine.answers(move |asked| match asked.operation {
            Operation::Get => reads(stored),
            _ => says(false),
        });
        let throttle = stage.on(&engine, 50);
        stage.exec(&throttle, 1_000, "k", work(1));
        stage.until(1_000);
        check_stats(&throttle, (0, 1, 1, 1));
        stage.until(10_000);
        assert_eq!(engine.times(Operation::Claim)[1] - 1_000, again_in, "{stored:?}");
    }
    // The end of a window, not longer than L = 200 ms away and not sooner than 10 ms.
    check(Some("1042"), 42);
    check(Some("1010"), 10);
    check(Some("1011"), 11);
    check(Some("1009"), 10);
    check(Some("1000"), 10);
    check(Some("999"), 10);
    check(Some("0"), 10);
    check(Some("1199"), 199);
    check(Some("1200"), 200);
    check(Some("1201"), 200);
    check(Some("31536001000"), 200);
    check(Some("18446744073709551615"), 200);
    // Gone meanwhile.
    check(None, 10);
    // With blanks around it.
    check(Some(" 1042\n"), 42);
    // Unreadable: W.
    for unreadable in ["", " ", "x", "Infinity", "NaN", "12abc", "1e3", "0x10", "1042.5", "1 042", "١٠٤٢"]
    {
        check(Some(unreadable), 50);
    }
}

#[test]
fn a_race_whose_end_cannot_be_read_is_run_again_after_a_window() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Get { FAILS } else { says(false) });
    let throttle = stage.on(&engine, 70);
    stage.exec(&throttle, 1_000, "k", work(1));
    stage.until(1_200);
    assert_eq!(engine.times(Operation::Claim), [1_000, 1_070, 1_140]);

    // Nor if the breaker opened after the claim: its five failures are reads of other keys.
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match asked.operation {
        Operation::Get => FAILS,
        _ => says(false),
    });
    let throttle = stage.on(&engine, 70);
    for key in 0..4 {
        stage.exec(&throttle, 2_000, &format!("other {key}"), work(key));
    }
    stage.until(2_010);
    assert_eq!(engine.count(Operation::Get), 4);
}

#[test]
fn a_call_is_dropped_at_its_tenth_lost_race() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match asked.operation {
        Operation::Get => reads(None),
        // Long enough for the second call to come before the first race is lost.
        _ => Reply { after: u64::from(asked.nth == 1), what: What::Says(false) },
    });
    let throttle = stage.builder(50).engine(engine.clone()).log(stage.log()).build().unwrap();
    stage.wait(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 0, "k", work(2));
    stage.until(90);
    assert_eq!(stage.traced(&["wait"]), Vec::<String>::new());
    stage.until(10_000);
    // The leading claim is the first; then one each 10 ms.
    assert_eq!(engine.times(Operation::Claim), [0, 11, 21, 31, 41, 51, 61, 71, 81, 91]);
    assert_eq!(stage.traced(&["wait", "exec", "run"]), ["0 exec 2: later", "91 wait 1: dropped"]);
    let logged = stage.traced(&["debug"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].starts_with("91 debug ") && logged[0].contains("key=k"), "{logged:?}");
    check_stats(&throttle, (0, 0, 0, 0));
    let stats = throttle.stats();
    assert_eq!((stats.dropped, stats.races_lost), (2, 10));
}

#[test]
fn a_call_of_exec_alone_is_dropped_too_and_learns_nothing() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Get { reads(None) } else { says(false) });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.until(10_000);
    stage.check(&["0 exec 1: later"]);
    assert_eq!((engine.count(Operation::Claim), throttle.stats().dropped), (10, 1));
    check_stats(&throttle, (0, 0, 0, 0));
    // The next call leads as if nothing had been.
    engine.answers(|_| AT_ONCE);
    stage.exec(&throttle, 20_000, "k", work(2));
    stage.until(20_000);
    assert_eq!(stage.traced(&["run"]), ["20000 run 2 leading"]);
}

#[test]
fn a_late_joiner_has_its_own_ten_races() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.operation == Operation::Get { reads(None) } else { says(false) });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 81, "k", work(2));
    stage.until(10_000);
    stage.check(&["90 wait 1: dropped", "180 wait 2: dropped"]);
    check_stats(&throttle, (0, 0, 0, 0));
}

#[test]
fn the_call_whose_closure_is_dropped_leaves_those_who_stay_a_closure() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match asked.operation {
        Operation::Get => reads(None),
        _ if asked.at < 100 => says(false),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 81, "k", work(2));
    stage.until(10_000);
    stage.check(&["90 wait 1: dropped", "100 run 2 trailing", "100 wait 2: 2"]);
}

#[test]
fn races_are_counted_anew_after_a_run() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    // Nine are lost and the tenth is won, twice.
    engine.answers(|asked| match asked.operation {
        Operation::Get => reads(None),
        Operation::Claim if asked.nth % 10 != 0 => says(false),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.wait(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 1_000, "k", work(2));
    stage.until(10_000);
    let served = ["90 run 1 trailing", "90 wait 1: 1", "1090 run 2 trailing", "1090 wait 2: 2"];
    stage.check(&served);
    assert_eq!(throttle.stats().dropped, 0);
}

#[test]
fn calls_of_a_window_are_dropped_at_their_tenth_trailing_race() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Get, _) => reads(None),
        (Operation::Claim, 2..) => says(false),
        _ => AT_ONCE,
    });
    let throttle = stage.on(&engine, 50);
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2));
    stage.until(10_000);
    // The first trailing race is at the end of the window.
    assert_eq!(stage.traced(&["wait"]), ["142 wait 2: dropped"]);
    assert_eq!(engine.count(Operation::Claim), 11);
}

#[test]
fn a_clock_that_is_off_by_an_hour_moves_retries_and_lets_no_two_run() {
    for off in [-3_600_000, 3_600_000] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        engine.answers(move |asked| if asked.operation == Operation::Get { shifted(off) } else { AT_ONCE });
        let throttles = [stage.on(&engine, 100), stage.on(&engine, 100)];
        for (instance, throttle) in throttles.iter().enumerate() {
            for call in 0..100 {
                let number = 1_000 * instance as u32 + call;
                let at = 10 * u64::from(call) + instance as u64;
                stage.exec(throttle, at, "k", work(number).takes(30));
            }
        }
        stage.until(10_000);
        let starts = stage.starts();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 130), "{off}: {starts:?}");
        // A retry is at most L later than it need be.
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] <= 130 + 2 + 200), "{off}: {starts:?}");
    }
}
