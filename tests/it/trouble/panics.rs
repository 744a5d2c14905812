//! Panics in what callers hand over: jobs, handlers, a logger, stores. Nothing is poisoned and no slot is lost.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::thread;

use valve::testing::ManualClock;
use valve::{
    Error, Event, Executed, MemoryStore, OnStoreError, Remote, Retry, Rule, Scheduler, Step, Store,
    StoreError, StoreErrorKind, Valve,
};

use super::alone::alone;
use super::{check_sound, millis, nap, seconds};
use crate::hooked::{Called, Hooked};
use crate::watchdog::watchdog;

#[test]
fn a_panicking_job_frees_its_slot() {
    let _watchdog = watchdog(30);
    let valve = Valve::builder("jobs").concurrency(2).build().unwrap();
    let fails = || -> u32 { panic!("the job's own") };
    let calls: [&dyn Fn() -> Result<u32, Error>; 6] = [
        &|| valve.run(fails),
        &|| valve.try_run(|| Ok(fails())),
        &|| valve.job().max_wait(seconds(60)).run(|_| fails()),
        &|| valve.job().retry(Retry::times(3)).run(|_, _| Step::Done(fails())),
        &|| {
            let _permit = valve.acquire()?;
            Ok(fails())
        },
        &|| {
            let _permit = valve.acquire_owned()?;
            Ok(fails())
        },
    ];
    for call in calls.iter().chain(&calls) {
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the job's own"), "it does not reach its caller");
    }
    check_sound(&valve, 2);

    // A neighbour that runs meanwhile does not notice, and a waiter gets the slot.
    let waiter_ran = AtomicBool::new(false);
    let until_it_ran = || {
        while !waiter_ran.load(Ordering::Acquire) {
            thread::yield_now();
        }
    };
    let until_it_waits = || {
        while valve.stats().queued == 0 {
            thread::yield_now();
        }
        fails()
    };
    thread::scope(|scope| {
        let neighbour = scope.spawn(|| valve.run(until_it_ran));
        let failing = scope.spawn(|| catch_unwind(AssertUnwindSafe(|| valve.run(until_it_waits))).is_err());
        while valve.stats().running < 2 {
            thread::yield_now();
        }
        valve.run(|| waiter_ran.store(true, Ordering::Release)).unwrap();
        assert!(failing.join().unwrap());
        neighbour.join().unwrap().unwrap();
    });
    check_sound(&valve, 2);
}

#[test]
fn a_panicking_handler_poisons_nothing() {
    alone(concat!(module_path!(), "::a_panicking_handler_poisons_nothing"), || {
        install_panicking_logger();
        for panics in [say as fn(), panic_on_drop_too] {
            let (told, tells) = mpsc::channel();
            let handler = move |event: &Event| {
                told.send(format!("{event:?}")).unwrap();
                panics();
            };
            let rule = Rule::gcra(1_000, seconds(1)).burst(20);
            let valve =
                Valve::builder("handler").rule(rule).concurrency(2).on_event(handler).build().unwrap();
            for round in 0..3 {
                ARMED.store(round == 1, Ordering::Relaxed);
                let _ = catch_unwind(AssertUnwindSafe(|| valve.pause(millis(1))));
                let _ = catch_unwind(AssertUnwindSafe(|| valve.resume()));
                let heard =
                    [(); 2].map(|()| tells.recv_timeout(seconds(10)).expect("the events thread is gone"));
                assert!(heard[0].starts_with("Paused") && heard[1].starts_with("Resumed"), "{heard:?}");
                thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| (0..25).for_each(|_| valve.run(|| ()).unwrap()));
                    }
                });
            }
            ARMED.store(false, Ordering::Relaxed);
            nap(50);
            check_sound(&valve, 2);
        }
    });
}

#[test]
fn a_panicking_logger_stops_nobody() {
    alone(concat!(module_path!(), "::a_panicking_logger_stops_nobody"), || {
        install_panicking_logger();
        for remote in [None, Some(Remote::new(1, millis(500)).unwrap())] {
            let fails = Arc::new(AtomicBool::new(false));
            let failing = Arc::clone(&fails);
            let store = Hooked::new(MemoryStore::new(), remote, move |called| {
                let bad = called == Called::Admit && failing.load(Ordering::Relaxed);
                let error = || StoreError::new(StoreErrorKind::Unreachable, Executed::No, "pulled out");
                if bad { Err(error()) } else { Ok(()) }
            });
            let valve = Valve::builder("logged").concurrency(2).store(store).build().unwrap();
            for _ in 0..3 {
                fails.store(true, Ordering::Relaxed);
                ARMED.store(true, Ordering::Relaxed);
                // A caller whose own call it is may see the panic; everyone else must not.
                let calls = |count: usize| {
                    thread::scope(|scope| {
                        let jobs: Vec<_> =
                            (0..count).map(|_| scope.spawn(|| valve.run(|| ()).is_ok())).collect();
                        nap(20);
                        fails.store(false, Ordering::Relaxed);
                        jobs.into_iter().map(|job| job.join()).filter(Result::is_ok).count()
                    })
                };
                assert!(calls(8) >= 7);
                ARMED.store(false, Ordering::Relaxed);
                assert_eq!(calls(8), 8);
            }
            check_sound(&valve, 2);
        }
        assert!(LOGGED.load(Ordering::Relaxed) > 0, "nothing was logged: the test shows nothing");
    });
}

#[test]
fn a_store_that_panics_when_opened_is_an_error() {
    for panicking in [Called::Open, Called::Remote, Called::Watch] {
        let store = Hooked::new(MemoryStore::new(), None, move |called| {
            assert!(called != panicking, "the store's own");
            Ok(())
        });
        match Valve::builder("opened").store(store).on_event(|_| ()).build() {
            Err(Error::StoreUnavailable(error)) => assert_eq!(error.kind(), StoreErrorKind::Panicked),
            other => panic!("{panicking:?}: {other:?}"),
        }
    }
}

#[test]
fn a_panicking_store_is_a_failing_one() {
    for remote in [false, true] {
        for mode in [OnStoreError::Wait, OnStoreError::Fail, OnStoreError::Open] {
            panicking_admissions(remote, mode);
        }
    }
}

/// The store panics on the first ten admissions, then serves.
fn panicking_admissions(remote: bool, mode: OnStoreError) {
    let case = format!("remote: {remote}, {mode:?}");
    let clock = ManualClock::new();
    let left = Arc::new(AtomicUsize::new(10));
    let counting = Arc::clone(&left);
    let memory = MemoryStore::builder().clock(&clock).build();
    let store = Hooked::new(memory, remote.then(Remote::default), move |called| {
        let took_one =
            || counting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(called != Called::Admit || took_one().is_err(), "the store's own");
        Ok(())
    });
    let rule = Rule::fixed_window(1_000, seconds(3_600));
    let valve = Valve::builder("panicky").rule(rule).concurrency(2).store(store).on_store_error(mode);
    let valve = valve.build().unwrap();
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let (valve, its_clock) = (valve.clone(), clock.clone());
            clock
                .spawn("call", move || valve.job().max_wait(seconds(600)).run(|_| its_clock.sleep(millis(1))))
        })
        .collect();
    clock.advance(seconds(300));
    let ends: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    let good = ends.iter().filter(|end| end.is_ok()).count();
    if mode == OnStoreError::Fail {
        let panicked = |error: &StoreError| error.kind() == StoreErrorKind::Panicked;
        let told =
            ends.iter().filter(|end| matches!(end, Err(Error::StoreUnavailable(error)) if panicked(error)));
        assert_eq!(good + told.count(), 30, "{case}: {ends:?}");
        assert!(good < 30, "{case}: nobody was told");
    } else {
        assert_eq!(good, 30, "{case}: {ends:?}");
    }
    while left.load(Ordering::Relaxed) > 0 {
        let _ = valve.try_acquire();
        clock.advance(seconds(1));
    }
    clock.advance(seconds(1));
    valve.try_acquire().map(drop).unwrap();
    assert!(valve.stats().store_down.is_none(), "{case}");
    check_sound(&valve, 2);
    assert_eq!(clock.timers(), 0, "{case}");
}

#[test]
fn a_store_that_panics_on_a_pause_says_so() {
    let panics = Arc::new(AtomicBool::new(true));
    let panicking = Arc::clone(&panics);
    let (told, tells) = mpsc::channel();
    let store = Hooked::new(MemoryStore::new(), None, move |called| {
        let pauses = matches!(called, Called::Pause | Called::Resume);
        assert!(!(pauses && panicking.load(Ordering::Relaxed)), "the store's own");
        Ok(())
    });
    let handler = move |event: &Event| told.send(format!("{event:?}")).unwrap();
    let valve = Valve::builder("pauses").concurrency(1).store(store).on_event(handler).build().unwrap();
    for result in [valve.pause(seconds(60)), valve.resume()] {
        match result {
            Err(Error::StoreUnavailable(error)) => assert_eq!(error.kind(), StoreErrorKind::Panicked),
            other => panic!("{other:?}"),
        }
    }
    assert!(tells.recv_timeout(seconds(10)).unwrap().starts_with("PauseFailed"));
    check_sound(&valve, 1);
    panics.store(false, Ordering::Relaxed);
    valve.pause(seconds(60)).unwrap();
    valve.resume().unwrap();
    check_sound(&valve, 1);
}

#[test]
fn a_store_that_panics_when_dropped_hurts_only_who_drops_it() {
    struct Bomb(MemoryStore);
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the store's own");
        }
    }
    impl Store for Bomb {
        fn open(&self, id: &str) -> Result<Arc<dyn valve::Counts>, StoreError> {
            self.0.open(id)
        }
        fn remote(&self) -> Option<Remote> {
            None
        }
    }

    let _watchdog = watchdog(30);
    let scheduler = Scheduler::new().unwrap();
    let valve = Valve::builder("bomb").store(Bomb(MemoryStore::new())).scheduler(&scheduler).build().unwrap();
    valve.run(|| ()).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(valve))).is_err());
    let valve =
        Valve::builder("next").rule(Rule::gcra(1_000, seconds(1))).scheduler(&scheduler).build().unwrap();
    (0..5).for_each(|_| valve.run(|| ()).unwrap());
    drop(valve);
    scheduler.shutdown(seconds(10)).unwrap();
}

fn say() {
    panic!("the handler's own");
}

/// The panic's payload panics once more when whoever caught it lets it go.
fn panic_on_drop_too() {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            assert!(thread::panicking(), "the payload's own");
        }
    }
    panic_any(Again);
}

/// While set, the logger panics at each record.
static ARMED: AtomicBool = AtomicBool::new(false);
static LOGGED: AtomicUsize = AtomicUsize::new(0);

fn install_panicking_logger() {
    struct Logger;
    impl log::Log for Logger {
        fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            LOGGED.fetch_add(1, Ordering::Relaxed);
            assert!(!ARMED.load(Ordering::Relaxed), "the logger's own, about: {}", record.args());
        }
        fn flush(&self) {}
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}
