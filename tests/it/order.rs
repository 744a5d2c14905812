//! What a valve promises of order: priority, then the order of the calls, on every way a call can take.

use valve::testing::ManualClock;
use valve::{Rule, Valve};

use crate::support::{Call, Jobs, MILLISECOND, SECOND, Scripted, Step, call, ms, secs};

/// V43: and the head holds up those behind it, cheaper ones too.
#[test]
fn higher_priority_starts_first() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, Call { lasts: secs(1), ..call("runs") });
    let priorities = [("d", 0), ("e", 0), ("c", 9), ("f", -1), ("a", i32::MAX), ("g", i32::MIN), ("b", 10)];
    for (name, priority) in priorities {
        jobs.spawn(&valve, Call { priority, lasts: ms(1), ..call(name) });
    }
    clock.advance(secs(2));
    assert_eq!(jobs.order(), ["runs", "a", "b", "c", "d", "e", "f", "g"]);

    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1)).burst(3)).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, Call { cost: 3, ..call("spends all") });
    jobs.spawn(&valve, Call { cost: 1, ..call("cheap") });
    jobs.spawn(&valve, Call { cost: 3, priority: 1, ..call("dear") });
    clock.advance(secs(1));
    assert_eq!(jobs.order(), ["spends all", "dear", "cheap"]);
    assert_eq!(jobs.stamps(), [0, 300 * MILLISECOND, 400 * MILLISECOND]);
}

/// V44: on a store that never blocks, and on one whose answers take 30 ms, so that calls come while one is asked for.
#[test]
fn equal_priorities_start_in_call_order() {
    for slow in [false, true] {
        let clock = ManualClock::new();
        let store = if slow { Scripted::remote(&clock) } else { Scripted::local(&clock) };
        if slow {
            store.then(Step { before: ms(15), after: ms(15), ..Step::AT_ONCE });
        }
        let valve = Valve::builder("id")
            .rule(Rule::gcra(10, secs(1)).burst(2))
            .concurrency(2)
            .store(store)
            .build()
            .unwrap();
        let jobs = Jobs::new(&clock);
        let mut called = Vec::new();
        for number in 0..40 {
            let name = format!("{number}");
            called.push(name.clone());
            jobs.spawn(&valve, Call { lasts: ms(7 * (number % 5)), ..call(name) });
            clock.advance(ms(10));
        }
        clock.advance(secs(60));
        assert_eq!(jobs.order(), called, "slow: {slow}");
    }

    // Refused after 30 ms, a call that asked for itself still comes before one that joined meanwhile.
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let valve = Valve::builder("id").rule(Rule::gcra(1, secs(1))).store(store.clone()).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, call("spends"));
    clock.advance(ms(10));
    store.next([Step { after: ms(30), ..Step::AT_ONCE }]);
    jobs.spawn(&valve, call("asks itself"));
    clock.advance(ms(10));
    jobs.spawn(&valve, call("joins"));
    clock.advance(secs(10));
    assert_eq!(jobs.order(), ["spends", "asks itself", "joins"]);
    assert_eq!(jobs.stamps(), [0, SECOND, 2 * SECOND]);
}

/// V46: what was sent before a higher priority came may be granted before it; what was not sent is not.
#[test]
fn a_batch_in_flight_keeps_its_places() {
    check_batch(ms(20), &["asks itself", "high", "1", "2", "3"]);
    check_batch(ms(40), &["asks itself", "1", "2", "3", "high"]);
}

/// Each ask takes 30 ms: the first goes out at 0, and at 30 ms the batch of those who joined at 5 ms.
#[track_caller]
fn check_batch(high_comes: std::time::Duration, expected: &[&str]) {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.then(Step { before: ms(30), ..Step::AT_ONCE });
    let valve = Valve::builder("id").rule(Rule::gcra(1, secs(60)).burst(10)).store(store).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, call("asks itself"));
    clock.advance(ms(5));
    for name in ["1", "2", "3"] {
        jobs.spawn(&valve, call(name));
    }
    clock.advance(high_comes - ms(5));
    jobs.spawn(&valve, Call { priority: 9, ..call("high") });
    clock.advance(secs(1));
    assert_eq!(jobs.order(), expected);
}
