//! What a throttle writes, at which level, and that nobody is disturbed by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use valve::{Log, LogLevel, Valve};

use super::scripted::{AT_ONCE, FAILS, Operation, Scripted, reads, says};
use super::stage::{Stage, Throttle, check_stats, work};
use crate::support::ms;
use crate::trouble::alone::alone;

/// Everything that a log is for: good, failed and panicked runs, an open breaker, dropped calls, many keys.
fn everything(stage: &Stage, log: Log) {
    let engine = Scripted::new(stage);
    let throttle = stage.builder(50).engine(engine.clone()).log(log.clone()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1).fails());
    stage.exec(&throttle, 10, "k", work(2).fails());
    stage.exec(&throttle, 60, "k", work(3).panics());
    stage.until(500);
    engine.answers(|asked| if asked.operation == Operation::Get { reads(None) } else { says(false) });
    stage.exec(&throttle, 500, "dropped", work(4));
    stage.until(1_000);
    engine.answers(|_| FAILS);
    for key in 0..5_001 {
        stage.exec_here(&throttle, &format!("key {key}"), work(5));
    }
    stage.until(2_000);
    throttle.destroy();
}

#[test]
fn nothing_is_written_unless_asked_for() {
    static LINES: AtomicUsize = AtomicUsize::new(0);
    struct Counts;
    impl log::Log for Counts {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            let of_a_throttle = record.target() == "valve::throttle";
            LINES.fetch_add(usize::from(of_a_throttle), Ordering::Relaxed);
        }
        fn flush(&self) {}
    }
    alone(concat!(module_path!(), "::nothing_is_written_unless_asked_for"), || {
        log::set_logger(&Counts).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        everything(&Stage::new(), Log::default());
        assert_eq!(LINES.load(Ordering::Relaxed), 0);
        everything(&Stage::new(), Log::Off);
        assert_eq!(LINES.load(Ordering::Relaxed), 0);
        everything(&Stage::new(), Log::On);
        assert!(LINES.load(Ordering::Relaxed) > 5_000);
    });
}

#[test]
fn each_run_is_written_before_it_begins() {
    let stage = Stage::new();
    let throttle = stage.builder(50).log(stage.log()).build().unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let (tell, calls) = (stage.clone(), throttle.clone());
    stage.at(0, move || {
        for number in 0..2 {
            let (tell, seen) = (tell.clone(), Arc::clone(&seen));
            let job = calls.job("k", move |_run| {
                seen.lock().push((number, tell.trace().len()));
                Ok(0)
            });
            drop(job.exec());
        }
    });
    stage.until(1_000);
    stage.check(&["0 info run key=k phase=leading", "50 info run key=k phase=trailing"]);
    assert_eq!(*lines.lock(), [(0, 1), (1, 2)], "each run saw its own line");
}

#[test]
fn records_carry_a_message_and_fields() {
    let stage = Stage::new();
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&records);
    let log = Log::to(move |record| {
        let fields: Vec<_> = record.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        sink.lock().push((record.level, record.message.to_owned(), fields, record.to_string()));
    });
    let throttle = stage.builder(50).name("rooms").log(log).build().unwrap();
    stage.exec(&throttle, 0, "a key", work(1));
    stage.exec(&throttle, 10, "a key", work(2).fails());
    stage.until(1_000);
    let records = records.lock().clone();
    let (level, message, fields, line) = &records[0];
    assert_eq!((*level, message.as_str()), (LogLevel::Info, "run"));
    assert_eq!(fields, &["key=a key", "phase=leading"]);
    assert_eq!(line, "[throttle:rooms] run key=a key phase=leading");
    let (level, _, fields, line) = &records[2];
    assert_eq!(*level, LogLevel::Error);
    assert!(
        fields.contains(&"key=a key".to_owned()) && fields.contains(&"phase=trailing".to_owned()),
        "{fields:?}"
    );
    assert!(line.starts_with("[throttle:rooms] ") && line.contains("error 2"), "{line}");
    assert_eq!(records.len(), 3);
}

#[test]
fn a_failed_trailing_run_is_written_once_and_a_leading_one_never() {
    let stage = Stage::new();
    let throttle = stage.builder(50).log(stage.log()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1).fails());
    for call in 2..6 {
        stage.wait(&throttle, 10, "k", work(call).fails());
    }
    stage.exec(&throttle, 60, "k", work(6).panics());
    stage.exec(&throttle, 200, "k", work(7).panics());
    stage.until(1_000);
    let errors = stage.traced(&["error"]);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("50 ") && errors[0].contains("error 5"), "{errors:?}");
    assert!(errors[1].starts_with("100 ") && errors[1].contains("panic"), "{errors:?}");
}

#[test]
fn the_breaker_and_dropped_calls_are_for_debugging() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    engine.answers(|_| FAILS);
    let throttle = stage.builder(50).engine(engine.clone()).log(stage.log()).build().unwrap();
    for key in ["a", "b", "c", "d"] {
        stage.exec_here(&throttle, key, work(1));
    }
    let debug = stage.traced(&["debug"]);
    assert_eq!(debug.len(), 1, "{debug:?}");
    assert!(debug[0].contains("breaker"), "{debug:?}");
    stage.until(20_000);
    engine.answers(|asked| if asked.operation == Operation::Get { reads(None) } else { says(false) });
    stage.exec(&throttle, 20_000, "lost", work(2));
    stage.until(30_000);
    let debug = stage.traced(&["debug"]);
    assert_eq!(debug.len(), 2, "{debug:?}");
    assert!(debug[1].starts_with("20090 debug ") && debug[1].contains("key=lost"), "{debug:?}");
}

#[test]
fn an_unusual_number_of_keys_is_written_once_a_minute() {
    let stage = Stage::new();
    let throttle = stage.builder(3_600_000).log(stage.log()).build().unwrap();
    let call = |keys: std::ops::Range<u32>| {
        for key in keys {
            let _ = throttle.job(&format!("key {key}"), |_run| Ok(0)).exec().unwrap();
        }
    };
    let debug = || stage.traced(&["debug"]);
    call(0..5_000);
    call(0..5_000);
    assert_eq!(debug(), Vec::<String>::new());
    call(5_000..5_001);
    assert_eq!(debug().len(), 1, "{:?}", debug());
    assert!(debug()[0].contains("5001"), "{:?}", debug());
    call(5_001..5_100);
    stage.until(59_999);
    call(5_100..5_200);
    // Keys that are there already never lead to it.
    stage.until(60_000);
    call(0..5_200);
    assert_eq!(debug().len(), 1, "{:?}", debug());
    call(5_200..5_300);
    assert_eq!(debug().len(), 2, "{:?}", debug());
}

#[test]
fn a_sink_that_panics_breaks_nothing() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let log = Log::to(|_| panic!("the sink panics, as it should"));
    let throttle = stage.builder(50).engine(engine.clone()).log(log.clone()).build().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    stage.wait(&throttle, 10, "k", work(2).fails());
    stage.wait(&throttle, 60, "k", work(3));
    stage.until(1_000);
    assert_eq!(stage.traced(&["exec", "wait"]), ["0 exec 1: now", "52 wait 2: error 2", "104 wait 3: 3"]);
    check_stats(&throttle, (0, 0, 0, 0));
    everything(&Stage::new(), log);
}

#[test]
fn a_sink_is_never_called_under_a_lock() {
    let stage = Stage::new();
    let throttle = Arc::new(Mutex::new(None::<Throttle>));
    let inner = Arc::clone(&throttle);
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&calls);
    // Calls the throttle for the same key: under the key's lock that would hang.
    let log = Log::to(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        let throttle = inner.lock().clone();
        if let Some(throttle) = throttle {
            drop(throttle.job("k", |_run| Ok(0)).exec());
            std::hint::black_box(throttle.stats());
        }
    });
    let engine = Scripted::new(&stage);
    engine.answers(|asked| if asked.at > 1_000 { FAILS } else { AT_ONCE });
    let valve = Valve::builder("v").clock(&stage.clock).concurrency(2).build().unwrap();
    let built = stage.builder(50).engine(engine).valve(&valve).log(log).build().unwrap();
    *throttle.lock() = Some(built.clone());
    stage.exec(&built, 0, "k", work(1));
    stage.exec(&built, 10, "k", work(2).fails());
    stage.until(3_000);
    assert!(calls.load(Ordering::Relaxed) > 30);
    stage.clock.advance(ms(1));
    throttle.lock().take();
}
