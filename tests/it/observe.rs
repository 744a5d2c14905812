//! What a provider said, heeded: the pause begins here at once, and the store hears of it in its turn.

mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{
    Blocked, Error, Event, Executed, Feedback, MemoryStore, OnStoreError, Remote, Rule, Store, StoreError,
    StoreErrorKind, Valve,
};

use crate::hooked::{Called, Hooked};
use crate::support::{
    Call, Jobs, MILLISECOND, Reply, SECOND, Scripted, Step, call, micros, ms, secs, start_now, us,
};
use crate::watchdog::watchdog;

fn told(seconds: &str) -> Feedback {
    Feedback::from_response(429, [("Retry-After", seconds)])
}

fn memory(clock: &ManualClock) -> MemoryStore {
    MemoryStore::builder().clock(clock).build()
}

fn ten_a_second(store: impl Store) -> Valve {
    Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store).build().unwrap()
}

fn unreachable() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, Executed::No, "nobody listens there")
}

/// V30: however long the store takes. The pause holds here from the call on, and elsewhere once it is recorded.
#[test]
fn observing_returns_at_once() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.writes(Step { before: ms(400), ..Step::AT_ONCE });
    let (one, other) = (ten_a_second(store.clone()), ten_a_second(store.clone()));
    let returned = Arc::new(Mutex::new(Vec::new()));
    let jobs = Jobs::new(&clock);
    clock.spawn("observes", {
        let (one, clock, returned) = (one.clone(), clock.clone(), Arc::clone(&returned));
        move || {
            let pause = one.observe(&told("2"));
            returned.lock().push((micros(clock.now()), pause));
        }
    });
    clock.settle();
    jobs.spawn(&one, call("here"));
    clock.advance(ms(300));
    assert_eq!(*returned.lock(), [(0, Some(secs(2)))]);
    assert_eq!(one.stats().paused_for, Some(secs(2) - ms(300)));
    assert_eq!(store.sent(), [], "a known pause spares the store");
    jobs.spawn(&other, call("elsewhere, before"));
    clock.advance(ms(200));
    jobs.spawn(&other, call("elsewhere, after"));
    clock.advance(secs(10));
    // The store counts from when the pause has come to it.
    let stamps = [300, 2_400, 2_500].map(|at| at * MILLISECOND);
    assert_eq!(jobs.stamps(), stamps, "{:?}", jobs.order());

    // In real time: it returns although the store never does.
    let _watchdog = watchdog(30);
    let (stalled, released) = (Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
    let hold = stalled.lock();
    let (its, count) = (Arc::clone(&stalled), Arc::clone(&released));
    let store = Hooked::new(MemoryStore::new(), Some(Remote::default()), move |called| {
        if called == Called::Pause {
            drop(its.lock());
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let valve = Valve::builder("id").store(store).build().unwrap();
    for _ in 0..1_000 {
        assert_eq!(valve.observe(&told("60")), Some(secs(60)));
    }
    assert_eq!(released.load(Ordering::Relaxed), 0, "the store has answered");
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    drop(hold);
}

/// V31: one event for each write that failed, one command for each, also when the store is known to be bad; and the pause
/// holds here although nobody else knows.
#[test]
fn a_failed_pause_write_is_told_once_and_not_repeated() {
    #[track_caller]
    fn check(remote: Option<Remote>, known_to_be_bad: bool) {
        let clock = ManualClock::new();
        let (writes, events) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let counted = Arc::clone(&writes);
        let store = Hooked::new(memory(&clock), remote, move |called| match called {
            Called::Pause => {
                counted.fetch_add(1, Ordering::Relaxed);
                Err(unreachable())
            }
            Called::Admit if known_to_be_bad => Err(unreachable()),
            _ => Ok(()),
        });
        let tell = Arc::clone(&events);
        let valve = Valve::builder("id")
            .concurrency(1)
            .store(store)
            .on_store_error(OnStoreError::Open)
            .on_event(move |event| tell.lock().push(format!("{event:?}")))
            .build()
            .unwrap();
        if known_to_be_bad {
            start_now(&valve, 1);
            clock.settle();
            assert!(valve.stats().store_down.is_some());
        }
        events.lock().clear();
        for (count, length) in [(1, secs(5)), (2, secs(1)), (3, secs(9))] {
            assert_eq!(valve.observe(&Feedback::pause(length)), Some(length));
            clock.settle();
            assert_eq!(writes.load(Ordering::Relaxed), count);
        }
        clock.advance(secs(2));
        let told = std::mem::take(&mut *events.lock());
        let failed = told.iter().filter(|event| event.starts_with("PauseFailed")).count();
        let paused = told.iter().filter(|event| event.starts_with("Paused")).count();
        assert_eq!((failed, paused, told.len()), (3, 2, 5), "{told:?}");
        assert_eq!(writes.load(Ordering::Relaxed), 3);
        let left = secs(7);
        match valve.try_acquire() {
            Err(Error::WouldWait { retry_after, blocked_by: Blocked::Paused, .. }) => {
                assert_eq!(retry_after, Some(left));
            }
            other => panic!("{other:?}"),
        }
        clock.advance(left);
        start_now(&valve, 1);
        assert_eq!(clock.timers(), 0);
    }
    for known_to_be_bad in [false, true] {
        check(None, known_to_be_bad);
        check(Some(Remote::new(1, ms(500)).unwrap()), known_to_be_bad);
    }
}

/// O63: no start of the fifty until the pause is over, and then at the rule's pace.
#[test]
fn everybody_waits_out_what_one_job_was_told() {
    let clock = ManualClock::new();
    let rule = Rule::gcra(100, secs(1)).burst(10);
    let valve = Valve::builder("id").rule(rule).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    for number in 0..50 {
        jobs.spawn(&valve, call(number.to_string()));
    }
    clock.advance(ms(20));
    let before = jobs.starts().len();
    assert_eq!(before, 12);
    assert_eq!(valve.observe(&told("60")), Some(secs(60)));
    clock.advance(secs(60) - us(1));
    assert_eq!(jobs.starts().len(), before);
    clock.advance(secs(60));
    let again = 60 * SECOND + 20 * MILLISECOND;
    // The burst of ten, then one each 10 ms.
    let expected: Vec<_> =
        (0..38_u64).map(|number| again + number.saturating_sub(9) * 10 * MILLISECOND).collect();
    assert_eq!(jobs.stamps()[before..], expected);
}

/// O06: too long is cut, and does not hold what was to wait for less; 400 digits are not zero.
#[test]
fn an_endless_pause_is_cut_and_can_be_lifted() {
    let month = secs(31 * 24 * 3_600);
    for length in ["9999999999", &"9".repeat(400)] {
        let clock = ManualClock::new();
        let valve = Valve::builder("id").clock(&clock).build().unwrap();
        assert_eq!(valve.observe(&told(length)), Some(month), "{length}");
        assert_eq!(valve.stats().paused_for, Some(month));
        let waited = clock.spawn("waits", {
            let (valve, clock) = (valve.clone(), clock.clone());
            move || {
                let result = valve.job().max_wait(ms(20)).run(|_| panic!("it is paused"));
                (result, micros(clock.now()))
            }
        });
        clock.advance(ms(19));
        assert!(!waited.is_finished());
        clock.advance(ms(1));
        let (result, at) = waited.join().unwrap();
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
        assert_eq!(at, 20 * MILLISECOND);
        valve.resume().unwrap();
        start_now(&valve, 1);
    }
    let clock = ManualClock::new();
    let valve = Valve::builder("id").max_pause(secs(10)).clock(&clock).build().unwrap();
    assert_eq!(valve.observe(&told("60")), Some(secs(10)));
    assert_eq!(valve.stats().paused_for, Some(secs(10)));
}

#[test]
fn what_says_nothing_changes_nothing() {
    let clock = ManualClock::new();
    let valve = ten_a_second(memory(&clock));
    let nothing = [
        Feedback::from_response(200, [("Retry-After", "60")]),
        Feedback::from_response(429, [("Retry-After", "0")]),
        Feedback::from_response(429, [("Retry-After", "-1")]),
        Feedback::from_response(503, std::iter::empty::<(&str, &str)>()),
        Feedback::pause(Duration::ZERO),
    ];
    for feedback in &nothing {
        assert_eq!(valve.observe(feedback), None);
    }
    start_now(&valve, 1);

    // Nor does it shorten a pause that is known, and neither does a shorter one.
    valve.pause(secs(60)).unwrap();
    for feedback in &nothing {
        valve.observe(feedback);
    }
    assert_eq!(valve.observe(&told("1")), Some(secs(1)));
    assert_eq!(valve.stats().paused_for, Some(secs(60)));
    clock.advance(secs(10));
    assert_eq!(valve.observe(&told("60")), Some(secs(60)));
    assert_eq!(valve.stats().paused_for, Some(secs(60)));
}

/// What is not recorded yet, or could not be, survives what makes a valve ask anew: other limits, and news of slots.
#[test]
fn an_unrecorded_pause_is_not_forgotten() {
    for fails in [false, true] {
        let clock = ManualClock::new();
        let store = Scripted::remote(&clock);
        let reply = if fails { Reply::Unreachable } else { Reply::Decided };
        store.writes(Step { before: ms(400), reply, ..Step::AT_ONCE });
        let rule = || Rule::gcra(10, secs(1));
        let valve = ten_a_second(store.clone());
        let jobs = Jobs::new(&clock);
        jobs.spawn(&valve, call("before"));
        clock.settle();
        valve.observe(&told("10"));
        jobs.spawn(&valve, call("after"));
        let change = || {
            clock.advance(ms(100));
            valve.set_rules([rule().into()]).unwrap();
            clock.advance(ms(100));
            valve.set_concurrency(valve::Concurrency::unlimited().local(7)).unwrap();
        };
        change();
        clock.advance(secs(1));
        change();
        clock.settle();
        let paused_until = if fails { secs(10) } else { secs(10) + ms(400) };
        assert_eq!(valve.stats().paused_for, Some(paused_until - clock.now()));
        clock.advance(secs(60));
        assert_eq!(jobs.stamps(), [0, micros(paused_until)], "fails: {fails}");
    }
}

/// Also for calls whose ask was under way when it began: without the store's grant there is none that came before it.
#[test]
fn nobody_starts_without_the_store_during_an_observed_pause() {
    for max_wait in [Duration::MAX, ms(450)] {
        let clock = ManualClock::new();
        let store = Scripted::remote(&clock);
        store.next([Step { before: ms(400), reply: Reply::Unreachable, ..Step::AT_ONCE }]);
        store.writes(Step { reply: Reply::Unreachable, ..Step::AT_ONCE });
        let builder = Valve::builder("id").store(store.clone()).on_store_error(OnStoreError::Open);
        let valve = builder.build().unwrap();
        let jobs = Jobs::new(&clock);
        jobs.spawn(&valve, Call { max_wait, ..call("asks") });
        clock.advance(ms(100));
        valve.observe(&told("60"));
        clock.advance(secs(59));
        assert_eq!(jobs.stamps(), [], "max_wait {max_wait:?}");
        clock.advance(secs(2));
        let started = if max_wait == Duration::MAX { vec![60_100 * MILLISECOND] } else { Vec::new() };
        assert_eq!(jobs.stamps(), started, "max_wait {max_wait:?}");
        assert_eq!(valve.stats().running, 0);
    }
}

/// A resume ends it here at once, wherever it is called: before it was sent, and after it could not be recorded.
#[test]
fn a_resume_ends_an_observed_pause() {
    // Its own: the write is under way, and another has not been sent.
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.writes(Step { before: ms(200), reply: Reply::Unreachable, ..Step::AT_ONCE });
    let valve = ten_a_second(store.clone());
    let jobs = Jobs::new(&clock);
    valve.observe(&told("60"));
    clock.advance(ms(10));
    jobs.spawn(&valve, call("waits"));
    clock.advance(ms(10));
    clock.spawn("resumes", {
        let valve = valve.clone();
        move || drop(valve.resume())
    });
    clock.advance(ms(1));
    assert_eq!(jobs.stamps(), [20 * MILLISECOND]);
    clock.advance(secs(1));
    assert_eq!(valve.stats().paused_for, None);

    // Another's, told by the store, after the write failed.
    valve.observe(&told("60"));
    clock.advance(secs(1));
    assert!(valve.stats().paused_for.is_some());
    store.writes(Step::AT_ONCE);
    let other = ten_a_second(store.clone());
    clock.spawn("resumes", move || other.resume().unwrap());
    clock.settle();
    assert_eq!(valve.stats().paused_for, None);

    // Another's while ours is under way may be the older: ours holds.
    store.writes(Step { before: ms(200), ..Step::AT_ONCE });
    let elsewhere = Valve::builder("id").store(store.memory()).build().unwrap();
    valve.observe(&told("60"));
    clock.advance(ms(100));
    elsewhere.resume().unwrap();
    assert!(valve.stats().paused_for.is_some());
    // What it records then is known to all, until somebody lifts that.
    clock.advance(secs(1));
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    elsewhere.resume().unwrap();
    assert_eq!(valve.stats().paused_for, None);
}

/// Told although the last handle of its valve is gone.
#[test]
fn an_observed_pause_is_told_though_its_valve_goes() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.writes(Step { before: ms(100), ..Step::AT_ONCE });
    let valve = ten_a_second(store.clone());
    valve.observe(&told("60"));
    drop(valve);
    clock.advance(ms(200));
    let other = ten_a_second(store);
    assert!(matches!(other.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
}

/// A handler may observe, and a job; and many threads at once.
#[test]
fn anybody_may_observe() {
    let _watchdog = watchdog(30);
    let (sender, receiver) = mpsc::channel();
    let heard = Arc::new(Mutex::new(None::<Valve>));
    let its = Arc::clone(&heard);
    let valve = Valve::builder("id")
        .store(Hooked::new(MemoryStore::new(), Some(Remote::default()), |_| Ok(())))
        .on_event(move |event| {
            if let (Event::Paused { .. }, Some(valve)) = (event, &*its.lock()) {
                sender.send(valve.observe(&told("2"))).unwrap();
            }
        })
        .build()
        .unwrap();
    *heard.lock() = Some(valve.clone());
    valve.run(|| valve.observe(&told("1"))).unwrap();
    assert_eq!(receiver.recv_timeout(secs(10)).unwrap(), Some(secs(2)));
    *heard.lock() = None;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|_| assert!(valve.observe(&told("3")).is_some())));
        }
    });
    let left = valve.stats().paused_for.unwrap();
    assert!(left > secs(1) && left <= secs(3), "{left:?}");
}
