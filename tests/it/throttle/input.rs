//! What a throttle takes and what it refuses, naming the field.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Error, Log, MemoryEngine, ThrottleError, Valve};

use super::scripted::Scripted;
use super::stage::{Builder, Stage, Throttle, check_stats, work};
use crate::support::ms;

#[track_caller]
fn check(builder: Builder, refused: Option<(&str, &str)>) {
    match (builder.build(), refused) {
        (Ok(_), None) => {}
        (Err(Error::Invalid { field, reason, .. }), Some((expected, names))) => {
            assert_eq!(field, expected, "{reason}");
            assert!(reason.contains(names), "{reason} lacks {names}");
        }
        (result, refused) => panic!("{:?} and not {refused:?}", result.map(drop)),
    }
}

#[test]
fn the_prefix_is_any_text_but_the_empty_one() {
    check(Throttle::builder(""), Some(("prefix", "")));
    for prefix in [" ", ":", "sync:room:", "{a}", "日本", "\0"] {
        check(Throttle::builder(prefix), None);
    }
}

#[test]
fn windows_are_whole_milliseconds_in_range() {
    let window = |window| Throttle::builder("p:").window(window);
    for allowed in [ms(1), ms(999), ms(1_000), ms(2_147_483_647)] {
        check(window(allowed), None);
    }
    for (refused, names) in [
        (Duration::ZERO, "0ns"),
        (Duration::from_micros(999), "999µs"),
        (Duration::from_micros(1_500), "1.5ms"),
        (ms(1) + Duration::from_nanos(1), "1.000001ms"),
        (ms(2_147_483_648), "2147483.648s"),
        (Duration::MAX, "18446744073709551615.999999999s"),
    ] {
        check(window(refused), Some(("window", names)));
    }
}

#[test]
fn a_window_is_a_second_unless_told_otherwise() {
    let stage = Stage::new();
    let throttle = Throttle::builder("p:").clock(&stage.clock).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.exec(&throttle, 1, "k", work(2));
    stage.until(10_000);
    assert_eq!(stage.starts(), [0, 1_000]);
}

#[test]
fn the_longest_window_does_not_end_at_once() {
    for shared in [false, true] {
        let stage = Stage::new();
        let engine = Scripted::new(&stage);
        let longest = 2_147_483_647;
        let throttle = if shared { stage.on(&engine, longest) } else { stage.private(longest) };
        stage.exec(&throttle, 0, "k", work(1));
        stage.exec(&throttle, 1, "k", work(2));
        stage.until(longest - 1);
        assert_eq!(stage.starts(), [0]);
        stage.until(longest + 2);
        assert_eq!(stage.starts().len(), 2);
    }
}

#[test]
fn other_settings_are_in_range() {
    let builder = || Throttle::builder("p:");
    for workers in [1, 4, 1_024] {
        check(builder().workers(workers), None);
    }
    for workers in [0, 1_025, usize::MAX] {
        check(builder().workers(workers), Some(("workers", &workers.to_string())));
    }
    for timeout in [ms(1), Duration::from_micros(1_500), ms(24 * 3_600_000)] {
        check(builder().engine_timeout(timeout), None);
    }
    for timeout in [Duration::ZERO, Duration::from_micros(999), ms(24 * 3_600_000 + 1), Duration::MAX] {
        check(builder().engine_timeout(timeout), Some(("engine_timeout", &format!("{timeout:?}"))));
    }
}

#[test]
fn everything_that_tells_the_time_tells_the_same() {
    let (one, two) = (ManualClock::new(), ManualClock::new());
    let engine = MemoryEngine::builder().clock(&one).build().unwrap();
    let valve = Valve::builder("v").clock(&one).concurrency(1).build().unwrap();
    let builder = || Throttle::builder("p:");
    check(builder().engine(engine.clone()), None);
    check(builder().engine(engine.clone()).clock(&one).valve(&valve), None);
    check(builder().engine(engine.clone()).clock(&two), Some(("clock", "")));
    check(builder().engine(MemoryEngine::new()).clock(&two), Some(("clock", "")));
    check(builder().valve(&valve), Some(("clock", "")));
    check(builder().valve(&valve).clock(&two), Some(("clock", "")));
}

#[test]
fn keys_are_any_text_up_to_ten_kilobytes() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    let longest = "ä".repeat(5_120);
    for key in [" ", ":", "{a}", "a\0b", "日本", "a\r\nDEL b", "*", &longest] {
        stage.exec_here(&throttle, key, work(1));
        assert!(engine.stored(&format!("p:{key}")).is_some(), "{key:?}");
    }
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now"; 8]);

    let too_long = "x".repeat(10_241);
    let before = (engine.calls().len(), throttle.stats());
    for key in ["", too_long.as_str()] {
        let job = || throttle.job(key, |_run| Ok(1));
        let is_refused = |given: Result<(), ThrottleError<String>>| match given {
            Err(ThrottleError::Invalid { field, reason, .. }) => {
                assert_eq!(field, "key");
                assert!(reason.contains(&key.len().to_string()), "{reason}");
            }
            other => panic!("{other:?}"),
        };
        is_refused(job().exec().map(drop));
        is_refused(job().wait_finish().exec().map(drop));
        is_refused(job().wait_finish().timeout(ms(10)).exec().map(drop));
    }
    assert_eq!((engine.calls().len(), throttle.stats()), before);
}

#[test]
fn the_name_is_the_prefix_without_one_colon_unless_it_is_given() {
    #[track_caller]
    fn check(prefix: &str, name: Option<&str>, expected: &str) {
        let clock = ManualClock::new();
        let names = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&names);
        let log = Log::to(move |record| sink.lock().push(record.name.to_owned()));
        let builder = Throttle::builder(prefix).clock(&clock).log(log);
        let builder = if let Some(name) = name { builder.name(name) } else { builder };
        let _ = builder.build().unwrap().job("k", |_run| Ok(1)).exec().unwrap();
        assert_eq!(*names.lock(), [expected]);
    }
    check("user:seen:", None, "user:seen");
    check("sync", None, "sync");
    check("a::", None, "a:");
    check(":", None, "");
    check("user:seen:", Some("rooms"), "rooms");
    check("user:seen:", Some("rooms:"), "rooms:");
    check("user:seen:", Some(""), "");
}

#[test]
fn a_throttle_needs_nothing_but_a_prefix() {
    let throttle = Throttle::builder("p:").build().unwrap();
    let given = throttle.job("k", |_run| Ok(7)).wait_finish().exec().unwrap();
    assert_eq!(given, 7);
    check_stats(&throttle, (0, 0, 1, 1));
    throttle.destroy();
    check_stats(&throttle, (0, 0, 0, 0));
}
