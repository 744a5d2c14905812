//! How the loss of a slot is told, by whom it is noticed, and what it does not undo.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use valve::{Abort, Error};

use crate::fleet::{Fleet, Kind, Reply, Step, add};
use crate::support::{ms, secs, us};

/// V55: the store says at the first renewal that the lease is another's.
#[test]
fn the_stores_no_is_loss_at_once() {
    let fleet = Fleet::new();
    for store in [fleet.local(), fleet.remote()] {
        store.then(Kind::Renew, Step::reply(Reply::NotHeld));
        let valve = fleet.valve(&store, 8, ms(900));
        let clock = fleet.clock.clone();
        let job = fleet.spawn(&valve, move |running| {
            clock.sleep(ms(300) - us(1));
            assert_eq!(running.aborted(), None);
            clock.sleep(us(2));
            assert_eq!(running.aborted(), Some(Abort::LeaseLost));
        });
        fleet.clock.advance(secs(1));
        assert!(matches!(job.result(), Err(Error::LeaseLost)));
        // It is not renewed again, and not released: it may be another's by now.
        fleet.clock.advance(secs(5));
        assert_eq!((store.calls(Kind::Renew).len(), store.calls(Kind::Release).len()), (1, 0));
    }
}

/// V58: the answer does not wait until somebody has looked. Here the job asks at the very instant, before any timer.
#[test]
fn a_question_looks_at_the_deadline_itself() {
    let fleet = Fleet::new();
    let store = fleet.local();
    store.then(Kind::Renew, Step::reply(Reply::Unreachable));
    let noticed = Arc::new(AtomicUsize::new(0));
    let notices = Arc::clone(&noticed);
    let valve = fleet
        .builder(&store)
        .global_concurrency(2, ms(300))
        .on_event(move |_| add(&notices, 1))
        .build()
        .unwrap();
    let (clock, seen) = (fleet.clock.clone(), Arc::clone(&noticed));
    let job = fleet.spawn(&valve.clone(), move |running| {
        let permit = valve.acquire().unwrap();
        clock.sleep(ms(300) - us(1));
        assert!(!running.is_aborted() && !permit.is_aborted());
        clock.sleep(us(1));
        assert_eq!(seen.load(Ordering::Relaxed), 0, "this is to be asked before anybody noticed");
        assert!(running.is_aborted() && permit.is_aborted());
        assert!(matches!(permit.finish(), Err(Error::LeaseLost)));
    });
    fleet.clock.advance(secs(1));
    assert!(matches!(job.result(), Err(Error::LeaseLost)));
    // Both were noticed as they ended, before any timer: each has been told.
    assert_eq!(noticed.load(Ordering::Relaxed), 2);
}

/// V58: a process that is frozen beyond its leases' length: none of its calls gets out. Another has its slot meanwhile, and
/// the first question after the thaw says so.
#[test]
fn a_frozen_process_knows_at_its_first_question() {
    let fleet = Fleet::new();
    let (frozen, awake) = (fleet.remote(), fleet.remote());
    let (one, other) = (fleet.valve(&frozen, 1, ms(900)), fleet.valve(&awake, 1, ms(900)));
    for kind in [Kind::Admit, Kind::Renew, Kind::Release] {
        frozen.then(kind, Step { before: secs(3), ..Step::AT_ONCE });
    }
    frozen.next(Kind::Admit, [Step::AT_ONCE]);
    let clock = fleet.clock.clone();
    let first = fleet.spawn(&one, move |running| {
        let fence = running.fencing_token().unwrap();
        clock.sleep(secs(2));
        assert!(running.is_aborted(), "the first question after the thaw");
        fence
    });
    fleet.clock.settle();
    let clock = fleet.clock.clone();
    let second = fleet.spawn(&other, move |running| {
        clock.sleep(secs(5));
        (running.fencing_token().unwrap(), running.is_aborted())
    });
    fleet.clock.advance(secs(2));
    assert!(second.start().unwrap() >= ms(900) && second.start().unwrap() < secs(2));
    assert!(matches!(first.result(), Err(Error::LeaseLost)));
    fleet.clock.advance(secs(20));
    // What the frozen process sent at last did nothing to the second job.
    let (_, lost) = second.result().unwrap();
    assert!(!lost);
    assert_eq!((fleet.most(), fleet.held()), (1, 0));
}

/// V56: each way to run a job, 500 ms after its loss.
#[test]
fn loss_is_told_when_the_closure_has_returned_and_its_value_is_not() {
    let fleet = Fleet::new();
    let store = fleet.local();
    store.then(Kind::Renew, Step::reply(Reply::NotHeld));
    let valve = fleet.valve(&store, 8, ms(900));
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Value(Arc<AtomicUsize>);
    impl Drop for Value {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = |way: usize| {
        let (valve, clock) = (valve.clone(), fleet.clock.clone());
        let (dropped, ended) = (Arc::clone(&dropped), Arc::clone(&ended));
        fleet.clock.spawn("job", move || {
            let work = || {
                clock.sleep(ms(800));
                Value(dropped)
            };
            let result = match way {
                0 => valve.run(work).map(drop),
                1 => valve.try_run(|| Ok::<_, Error>(work())).map(drop),
                2 => valve.job().run(|_| work()).map(drop),
                3 => valve.job().try_run(|_| Ok::<_, Error>(work())).map(drop),
                4 => {
                    let permit = valve.acquire().unwrap();
                    drop(work());
                    permit.finish()
                }
                _ => {
                    let permit = valve.acquire_owned().unwrap();
                    drop(work());
                    permit.finish()
                }
            };
            assert!(matches!(result, Err(Error::LeaseLost)), "way {way}: {result:?}");
            assert_eq!((result.unwrap_err().code(), clock.now()), (7, ms(800)), "way {way}");
            ended.fetch_add(1, Ordering::Relaxed);
        });
    };
    (0..6).for_each(ends);
    fleet.clock.advance(ms(800) - us(1));
    assert_eq!((dropped.load(Ordering::Relaxed), ended.load(Ordering::Relaxed)), (0, 0));
    fleet.clock.advance(us(1));
    assert_eq!((dropped.load(Ordering::Relaxed), ended.load(Ordering::Relaxed)), (6, 6));
    assert_eq!(valve.stats().running, 0);
}

/// A closure's own error does not hide the loss, and its panic is not hidden by it.
#[test]
fn loss_comes_before_the_works_own_error() {
    let fleet = Fleet::new();
    let store = fleet.local();
    store.then(Kind::Renew, Step::reply(Reply::NotHeld));
    let valve = fleet.valve(&store, 8, ms(900));
    let clock = fleet.clock.clone();
    let job = fleet.clock.spawn("job", move || {
        let failed = valve.try_run(|| {
            clock.sleep(ms(500));
            Err::<(), _>(Error::Closed)
        });
        assert!(matches!(failed, Err(Error::LeaseLost)), "{failed:?}");
        let _ = valve.run(|| {
            clock.sleep(ms(500));
            std::panic::resume_unwind(Box::new("its own"));
        });
    });
    fleet.clock.advance(secs(2));
    assert_eq!(job.join().unwrap_err().downcast_ref(), Some(&"its own"));
}

/// V59: nothing stops a job that does not ask, and what it did stays done.
#[test]
fn a_job_that_ignores_its_abort_has_done_what_it_did() {
    let fleet = Fleet::new();
    let store = fleet.local();
    store.then(Kind::Renew, Step::reply(Reply::NotHeld));
    let valve = fleet.valve(&store, 1, ms(900));
    let effects = Arc::new(AtomicUsize::new(0));
    let (clock, done) = (fleet.clock.clone(), Arc::clone(&effects));
    let job = fleet.spawn(&valve, move |running| {
        for _ in 0..5 {
            clock.sleep(secs(1));
            done.fetch_add(usize::from(running.is_aborted()), Ordering::Relaxed);
        }
    });
    fleet.clock.advance(secs(10));
    assert!(matches!(job.result(), Err(Error::LeaseLost)));
    assert_eq!(effects.load(Ordering::Relaxed), 5);
}

/// With a token and no fleet-wide limit a job is never lost: its value arrives.
#[test]
fn a_cancelled_job_still_gives_its_value() {
    let fleet = Fleet::new();
    let valve = fleet.valve(&fleet.local(), 1, ms(900));
    let token = valve::CancelToken::new();
    let (clock, its_token) = (fleet.clock.clone(), token.clone());
    let job = fleet.clock.spawn("job", move || {
        valve.job().cancel(&its_token).run(|running| {
            clock.sleep(secs(2));
            running.aborted()
        })
    });
    fleet.clock.advance(secs(1));
    token.cancel();
    fleet.clock.advance(secs(10));
    assert_eq!(job.join().unwrap().unwrap(), Some(Abort::Cancelled));
}
