//! Settings and arguments that are zero, absurd, odd or enormous.

use std::time::{Duration, UNIX_EPOCH};

use valve::testing::ManualClock;
use valve::{Blocked, Error, Remote, Rule, Scheduler, Valve, ValveBuilder};

use super::alone::alone;
use super::{Footprint, millis, seconds};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

fn builder() -> ValveBuilder {
    Valve::builder("input")
}

/// The settings are refused, the error names this field and says what to do.
#[track_caller]
fn check_refused(result: Result<impl std::fmt::Debug, Error>, named: &str) {
    match result {
        Err(error @ Error::Invalid { .. }) => {
            assert_eq!(error.code(), 11);
            let Error::Invalid { field, reason, .. } = error else { unreachable!() };
            assert!(field.contains(named), "{field:?} does not name {named:?}");
            let cures = ["use ", "at most", "at least", "allowed", "leave", "not in", "give "];
            assert!(cures.iter().any(|cure| reason.contains(cure)), "no cure for {field}: {reason}");
        }
        other => panic!("{named}: {other:?}"),
    }
}

#[test]
fn limits_of_zero_are_refused() {
    alone(concat!(module_path!(), "::limits_of_zero_are_refused"), || {
        let before = Footprint::now();
        check_refused(builder().rule(Rule::gcra(0, seconds(1))).build(), "limit");
        check_refused(builder().rule(Rule::fixed_window(0, seconds(1))).build(), "limit");
        check_refused(builder().rule(Rule::gcra(10, seconds(1)).burst(0)).build(), "burst");
        check_refused(builder().concurrency(0).build(), "concurrency");
        check_refused(builder().max_queue(0).build(), "max_queue");
        let second_is_wrong =
            builder().rule(Rule::gcra(1, seconds(1))).rule(Rule::fixed_window(0, seconds(1)));
        check_refused(second_is_wrong.on_event(|_| ()).build(), "rule 2");
        assert_eq!(Footprint::now(), before, "a thread or a file is left behind");
    });
}

#[test]
fn absurd_settings_are_refused_by_name() {
    alone(concat!(module_path!(), "::absurd_settings_are_refused_by_name"), || {
        let before = Footprint::now();
        let intervals =
            [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(1_500), YEAR * 11, Duration::MAX];
        for interval in intervals {
            check_refused(builder().rule(Rule::gcra(10, interval)).build(), "interval");
            check_refused(builder().rule(Rule::fixed_window(10, interval)).build(), "interval");
        }
        // More than ten years to earn, and more than doubles count exactly.
        check_refused(builder().rule(Rule::gcra(1, seconds(3_600)).burst(u32::MAX)).build(), "burst");
        check_refused(builder().rule(Rule::gcra(u32::MAX, seconds(1)).burst(u32::MAX)).build(), "burst");
        let long = "n".repeat(65);
        for name in ["", "a\nb", "\0", "\u{7f}", &long] {
            check_refused(builder().rule(Rule::gcra(1, seconds(1)).named(name)).build(), "name");
            check_refused(builder().rule(Rule::fixed_window(1, seconds(1)).named(name)).build(), "name");
        }
        let twice = || Rule::gcra(1, seconds(1)).named("same");
        check_refused(builder().rule(twice()).rule(twice()).build(), "name");
        let many = |count: u64| (1..=count).fold(builder(), |valve, s| valve.rule(Rule::gcra(1, seconds(s))));
        check_refused(many(17).build(), "rules");
        for id in [String::new(), "i".repeat(10_241), "i".repeat(100_000_000)] {
            check_refused(Valve::builder(id).build(), "id");
        }
        for pause in [Duration::ZERO, seconds(31 * 24 * 3_600 + 1), Duration::MAX] {
            check_refused(builder().max_pause(pause).build(), "max_pause");
        }
        for workers in [0, 65, usize::MAX] {
            check_refused(Remote::new(workers, seconds(1)), "workers");
        }
        for timeout in [Duration::ZERO, Duration::from_nanos(999_999), seconds(3_601), Duration::MAX] {
            check_refused(Remote::new(1, timeout), "timeout");
        }
        assert_eq!(Footprint::now(), before, "a thread or a file is left behind");
        assert!(many(16).build().is_ok());
    });
}

#[test]
fn the_greatest_settings_work() {
    let clock = ManualClock::new();
    let valves = [
        builder().rule(Rule::gcra(u32::MAX, Duration::from_micros(1))),
        builder().rule(Rule::gcra(1, YEAR * 10)),
        builder().rule(Rule::fixed_window(u32::MAX, YEAR * 10)),
        builder().rule(Rule::fixed_window(1, Duration::from_micros(1))),
        builder().rule(Rule::gcra(u32::MAX, seconds(1)).burst(2_000_000)),
        builder().concurrency(u32::MAX).max_queue(usize::MAX),
        builder().max_pause(Duration::from_nanos(1)),
    ];
    for valve in valves {
        let valve = valve.clock(&clock).build().unwrap();
        assert_eq!(valve.run(|| 1).unwrap(), 1);
        check_refused(valve.job().cost(0).try_acquire(), "cost");
        let largest = valve.job().cost(u32::MAX).try_acquire().map(drop);
        assert!(!matches!(largest, Err(Error::Invalid { .. })), "{largest:?}");
        assert_eq!(valve.stats().running, 0);
    }
    let decade = builder().rule(Rule::gcra(1, YEAR * 10)).clock(&clock).build().unwrap();
    decade.try_acquire().map(drop).unwrap();
    match decade.try_acquire() {
        Err(Error::WouldWait { retry_after, .. }) => assert_eq!(retry_after, Some(YEAR * 10)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_text_is_an_id() {
    let ids = [
        "a",
        " ",
        "\0",
        "a\nb",
        "{",
        "}{",
        "{}",
        "a{b}c",
        "%",
        "ключ",
        "🔑",
        "../../etc",
        "'; --",
        "\u{202e}",
    ];
    let longest = "é".repeat(5_120);
    let clock = ManualClock::new();
    let store = valve::MemoryStore::builder().clock(&clock).build();
    for id in ids.into_iter().chain([longest.as_str()]) {
        let rule = || Rule::gcra(1, seconds(1));
        let one = Valve::builder(id).rule(rule()).store(store.clone()).build().unwrap();
        let two = Valve::builder(id).rule(rule()).store(store.clone()).build().unwrap();
        assert_eq!(one.id(), id);
        assert!(one.try_acquire().is_ok(), "{id:?} shares its count with another id");
        assert!(two.try_acquire().is_err(), "{id:?} does not share its count with itself");
        assert!(format!("{one:?}").len() < 30_000);
    }
}

#[test]
fn the_longest_wait_means_for_ever() {
    for wait in [Duration::MAX, seconds(u64::MAX), YEAR * 10] {
        let clock = ManualClock::new();
        let valve = builder().clock(&clock).build().unwrap();
        let starts = |paused: bool| {
            if paused {
                valve.pause(millis(100)).unwrap();
            }
            let (valve, its_clock) = (valve.clone(), clock.clone());
            let call =
                clock.spawn("patient", move || valve.job().max_wait(wait).run(|_| its_clock.now()).unwrap());
            clock.advance(seconds(1));
            call.join().unwrap()
        };
        assert_eq!(starts(false), Duration::ZERO);
        assert_eq!(starts(true), seconds(1) + millis(100));
        for _ in 0..10 {
            valve.run(|| ()).unwrap();
        }
        assert_eq!(clock.timers(), 0);

        // It may be cut to what the valve allows, and resume ends it.
        valve.pause(wait).unwrap();
        match valve.try_acquire() {
            Err(Error::WouldWait { retry_after, blocked_by, .. }) => {
                assert_eq!((retry_after, blocked_by), (Some(seconds(31 * 24 * 3_600)), Blocked::Paused));
            }
            other => panic!("{other:?}"),
        }
        valve.resume().unwrap();
        valve.run(|| ()).unwrap();
        valve.drain(wait).unwrap();
    }

    // On the machine's clock and with threads of its own, too.
    let scheduler = Scheduler::new().unwrap();
    let valve = builder().scheduler(&scheduler).concurrency(1).build().unwrap();
    let held = valve.acquire().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| valve.job().max_wait(Duration::MAX).run(|_| ()));
        while valve.stats().queued == 0 {
            std::thread::yield_now();
        }
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    valve.drain(Duration::MAX).unwrap();
    scheduler.shutdown(Duration::MAX).unwrap();
}

#[test]
fn the_shortest_wait_means_one_try() {
    let valve = builder().concurrency(1).build().unwrap();
    for wait in [Duration::ZERO, Duration::from_nanos(1)] {
        valve.job().max_wait(wait).run(|_| ()).unwrap();
    }
    let held = valve.acquire().unwrap();
    for wait in [Duration::ZERO, Duration::from_nanos(1)] {
        let end = valve.job().max_wait(wait).run(|_| unreachable!("the slot is taken"));
        assert!(matches!(end, Err(Error::Timeout { .. })), "{end:?}");
    }
    valve.pause(Duration::ZERO).unwrap();
    assert_eq!(valve.stats().paused_for, None);
    assert!(matches!(valve.drain(Duration::ZERO), Err(Error::Timeout { .. })));
    drop(held);
    assert!(matches!(valve.run(|| ()), Err(Error::Closed)));
}

#[test]
fn ten_years_of_uptime_change_nothing() {
    // The last but one leaves the least room: its times are counted in 1/3,599 of a microsecond.
    for (limit, spacing) in [(1, 1_000_000), (3, 333_334), (3_600, 278), (3_599, 278), (65_521, 16)] {
        let clock = ManualClock::new();
        let rule = || Rule::gcra(limit, seconds(1)).burst(2);
        let early = builder().rule(rule()).clock(&clock).build().unwrap();
        early.run(|| ()).unwrap();
        clock.advance(YEAR * 10);
        let late = builder().rule(rule()).clock(&clock).build().unwrap();
        for valve in [early, late] {
            // Idle for ten years: the burst and not more, then the rule's own pace.
            let (waiting, its_clock) = (valve.clone(), clock.clone());
            let calls = clock.spawn("call", move || {
                let mut starts = Vec::new();
                for _ in 0..5 {
                    starts.push(waiting.run(|| its_clock.now()).unwrap());
                }
                starts
            });
            let begin = clock.now();
            clock.advance(seconds(10));
            let starts: Vec<_> =
                calls.join().unwrap().iter().map(|start| (*start - begin).as_micros()).collect();
            assert_eq!(starts[..2], [0, 0]);
            assert!(starts[2] <= spacing && starts[2] + 1 >= spacing, "{starts:?}");
            assert!(starts.windows(2).skip(1).all(|pair| pair[1] - pair[0] <= spacing), "{starts:?}");
            let stamp = valve.acquire().unwrap().admitted_at();
            assert_eq!(stamp.duration_since(UNIX_EPOCH).unwrap(), clock.now());
        }
    }

    let clock = ManualClock::new();
    let valve =
        builder().rule(Rule::fixed_window(1, seconds(60))).concurrency(1).clock(&clock).build().unwrap();
    clock.advance(YEAR * 10);
    clock.advance(millis(1));
    valve.pause(seconds(1)).unwrap();
    let waits = |priority: i32, wait: Duration| {
        let (valve, clock) = (valve.clone(), clock.clone());
        clock.clone().spawn("call", move || {
            let end = valve.job().priority(priority).max_wait(wait).run(|_| ());
            (clock.now() - YEAR * 10, end)
        })
    };
    let calls = [waits(0, YEAR), waits(9, YEAR), waits(-1, seconds(2))];
    clock.advance(seconds(300));
    let [second, first, none] = calls.map(|call| call.join().unwrap());
    assert!(matches!(first, (at, Ok(())) if at == seconds(1) + millis(1)), "{first:?}");
    assert!(matches!(second, (at, Ok(())) if at == seconds(60)), "{second:?}");
    assert!(matches!(none, (at, Err(Error::Timeout { .. })) if at <= seconds(2) + millis(1)), "{none:?}");
}
