//! What pauses promise: who is held, until when, who may lift them, and what the store is spared.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Blocked, Error, MemoryStore, OnStoreError, Rule, Store, Valve};

use crate::hooked::{Called, Hooked};
use crate::support::{
    Call, Jobs, MILLISECOND, Reply, SECOND, Scripted, Step, call, closest, micros, ms, secs, start_now, us,
    wait_of,
};

fn ten_a_second(store: impl Store) -> Valve {
    Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store).build().unwrap()
}

fn memory(clock: &ManualClock) -> MemoryStore {
    MemoryStore::builder().clock(clock).build()
}

/// V22: on every valve that shares the store, also one that is built meanwhile; afterwards at the rule's pace, in order.
#[test]
fn nobody_is_granted_anything_during_a_pause() {
    let clock = ManualClock::new();
    let store = memory(&clock);
    let (one, other) = (ten_a_second(store.clone()), ten_a_second(store.clone()));
    let jobs = Jobs::new(&clock);
    jobs.spawn(&one, call("before"));
    for (name, priority) in [("second", 0), ("third", 0), ("first", 9)] {
        jobs.spawn(&one, Call { priority, ..call(name) });
        jobs.spawn(&other, call("other"));
    }
    clock.advance(ms(50));
    one.pause(secs(2)).unwrap();
    clock.advance(secs(1));
    let newest = ten_a_second(store);
    clock.advance(secs(1) - us(1));
    assert_eq!(jobs.order(), ["before"]);
    assert!(one.try_acquire().is_err() && other.try_acquire().is_err());
    match newest.try_acquire() {
        Err(Error::WouldWait { retry_after, blocked_by: Blocked::Paused, .. }) => {
            assert_eq!(retry_after, Some(us(1)));
        }
        other => panic!("{other:?}"),
    }
    clock.advance(secs(10));
    assert_eq!(jobs.stamps()[1], 2_050 * MILLISECOND);
    assert_eq!(closest(&jobs.units()), 100 * MILLISECOND);
    let mut order = jobs.order();
    order.retain(|name| name != "other");
    assert_eq!(order, ["before", "first", "second", "third"]);
}

/// V23: granted 1 ms before the pause, the closure entered 5 ms after it began.
#[test]
fn a_grant_made_before_the_pause_still_starts() {
    // A call with a deadline as near as this is asked for by a worker of the store, one without asks itself.
    for max_wait in [Duration::MAX, ms(100)] {
        let clock = ManualClock::new();
        let store = Scripted::remote(&clock);
        store.next([Step { after: ms(6), ..Step::AT_ONCE }]);
        let valve = ten_a_second(store);
        let jobs = Jobs::new(&clock);
        clock.advance(ms(9));
        jobs.spawn(&valve, Call { max_wait, ..call("granted before") });
        clock.advance(ms(1));
        clock.spawn("pause", {
            let valve = valve.clone();
            move || valve.pause(secs(1)).unwrap()
        });
        clock.advance(ms(1));
        jobs.spawn(&valve, call("asked afterwards"));
        clock.advance(secs(10));
        let starts: Vec<_> = jobs.starts().iter().map(|start| (start.at, start.seen)).collect();
        assert_eq!(
            starts,
            [(9 * MILLISECOND, 15 * MILLISECOND), (1_010 * MILLISECOND, 1_010 * MILLISECOND)],
            "max_wait {max_wait:?}"
        );
    }
}

/// V24.
#[test]
fn pauses_only_lengthen() {
    let clock = ManualClock::new();
    let store = memory(&clock);
    let (one, other) = (ten_a_second(store.clone()), ten_a_second(store));
    let jobs = Jobs::new(&clock);
    one.pause(secs(5)).unwrap();
    one.pause(secs(1)).unwrap();
    assert_eq!(one.stats().paused_for, Some(secs(5)));
    other.pause(us(1)).unwrap();
    assert_eq!(other.stats().paused_for, Some(secs(5)));
    jobs.spawn(&one, call("on one"));
    clock.advance(secs(3));
    assert_eq!(one.stats().paused_for, Some(secs(2)));
    other.pause(secs(10)).unwrap();
    jobs.spawn(&other, call("on the other"));
    clock.advance(secs(60));
    let mut stamps = jobs.stamps();
    stamps.sort_unstable();
    assert_eq!(stamps, [13 * SECOND, 13 * SECOND + 100 * MILLISECOND]);

    // A shorter one leaves a waiter's start where it was.
    one.pause(secs(5)).unwrap();
    other.pause(secs(1)).unwrap();
    jobs.spawn(&one, call("last"));
    clock.advance(secs(60));
    assert_eq!(jobs.stamps()[2], 68 * SECOND);
}

/// V25: however long it is, whoever made it.
#[test]
fn resume_removes_any_pause() {
    for resumed_by_the_other in [false, true] {
        let clock = ManualClock::new();
        let store = memory(&clock);
        let (one, other) = (ten_a_second(store.clone()), ten_a_second(store.clone()));
        let jobs = Jobs::new(&clock);
        one.pause(Duration::MAX).unwrap();
        assert_eq!(one.stats().paused_for, Some(secs(31 * 24 * 3_600)));
        jobs.spawn(&one, call("on one"));
        jobs.spawn(&other, call("on the other"));
        clock.advance(secs(1));
        assert_eq!(jobs.starts(), []);
        if resumed_by_the_other { &other } else { &one }.resume().unwrap();
        assert_eq!((one.stats().paused_for, other.stats().paused_for), (None, None));
        clock.advance(ms(100));
        assert_eq!(jobs.stamps(), [SECOND, SECOND + 100 * MILLISECOND]);
        clock.advance(ms(100));
        start_now(&ten_a_second(store), 1);
    }
}

/// V26: also when a refusal told of the pause, and when the store is down and the valve open.
#[test]
fn a_known_pause_spares_the_store() {
    let clock = ManualClock::new();
    let store = Scripted::local(&clock);
    let build = || Valve::builder("id").store(store.clone()).build().unwrap();
    let (one, other) = (build(), build());
    let jobs = Jobs::new(&clock);
    one.pause(secs(10)).unwrap();
    let crowd = |valve: &Valve| (0..100).for_each(|number| jobs.spawn(valve, call(number.to_string())));
    crowd(&one);
    clock.advance(secs(5));
    assert_eq!(store.sent(), []);
    crowd(&other);
    clock.advance(secs(5) - us(1));
    assert_eq!(store.sent(), [5 * SECOND]);
    clock.advance(us(1));
    assert_eq!(jobs.stamps(), [10 * SECOND; 200]);

    let clock = ManualClock::new();
    let store = Scripted::local(&clock);
    let open = Valve::builder("id").store(store.clone()).on_store_error(OnStoreError::Open).build().unwrap();
    store.then(Step { reply: Reply::Unreachable, ..Step::AT_ONCE });
    start_now(&open, 1);
    open.pause(secs(10)).unwrap();
    assert_eq!(wait_of(&open.try_acquire().unwrap_err()), secs(10));
    clock.advance(secs(10));
    start_now(&open, 1);
}

/// V28: within one process, where the store tells the valves.
#[test]
fn notices_wake_the_waiters_of_other_valves() {
    let clock = ManualClock::new();
    let store = memory(&clock);
    let (one, other) = (ten_a_second(store.clone()), ten_a_second(store));
    let jobs = Jobs::new(&clock);
    one.pause(secs(60)).unwrap();
    jobs.spawn(&other, call("waits"));
    clock.advance(secs(1));
    assert_eq!(other.stats().blocked_by, Some(Blocked::Paused));
    one.resume().unwrap();
    clock.settle();
    assert_eq!(jobs.stamps(), [SECOND]);
}

/// V32.
#[test]
fn pause_answers_what_the_store_answered() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let valve = ten_a_second(store.clone());
    let answers = Arc::new(Mutex::new(Vec::new()));
    let write = |pause: bool| {
        let (valve, clock, answers) = (valve.clone(), clock.clone(), Arc::clone(&answers));
        clock.clone().spawn("writes", move || {
            let answer = if pause { valve.pause(secs(60)) } else { valve.resume() };
            answers.lock().push((micros(clock.now()), answer));
        });
    };
    let unavailable = |answer: &Result<(), Error>| matches!(answer, Err(Error::StoreUnavailable(_)));
    store.writes(Step { before: ms(30), reply: Reply::Unreachable, after: ms(20) });
    write(true);
    // Once that is on its way: a pause that is not yet would never be.
    clock.advance(ms(1));
    write(false);
    clock.advance(secs(1) - ms(1));
    let at = 50 * MILLISECOND;
    let refused = std::mem::take(&mut *answers.lock());
    let when: Vec<_> = refused.iter().map(|(when, _)| *when).collect();
    assert_eq!(when, [at, 2 * at], "one after the other");
    assert!(refused.iter().all(|(_, answer)| unavailable(answer)), "{refused:?}");
    assert_eq!(valve.stats().paused_for, None);

    store.writes(Step { before: ms(30), after: ms(20), ..Step::AT_ONCE });
    write(true);
    clock.advance(ms(50) - us(1));
    assert!(answers.lock().is_empty());
    clock.advance(us(1));
    assert!(matches!(answers.lock()[..], [(when, Ok(()))] if when == SECOND + at));
    // The valve counts from when the answer came, so that its memory of the pause never ends before the pause.
    assert_eq!(valve.stats().paused_for, Some(secs(60)));
}

/// A pause that was lifted between its recording and its answer is not remembered: nobody would lift it a second time.
#[test]
fn a_pause_lifted_before_its_answer_is_not_remembered() {
    let clock = ManualClock::new();
    let store = memory(&clock);
    let other = ten_a_second(store.clone());
    let lifted = Hooked::new(store, None, move |called| {
        if called == Called::Paused {
            other.resume().unwrap();
        }
        Ok(())
    });
    let valve = ten_a_second(lifted);
    valve.pause(secs(60)).unwrap();
    assert_eq!(valve.stats().paused_for, None);
    drop(valve.try_acquire().unwrap());
}
