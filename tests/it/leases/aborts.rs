//! `on_abort`: called once, at once, on a thread where it can do no harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::{Abort, CancelToken, Event};

use crate::fleet::{Fleet, Kind, Reply, Step, add};
use crate::support::{ms, secs, us};
use crate::watchdog::watchdog;

/// V55: the store's no at the first renewal, or our own clock at the end. Called at that very instant.
#[test]
fn a_job_is_called_when_its_loss_is_noticed() {
    check_called(Reply::NotHeld, ms(300));
    check_called(Reply::Unreachable, ms(900));
}

#[track_caller]
fn check_called(reply: Reply, expected: Duration) {
    let fleet = Fleet::new();
    let store = fleet.remote();
    store.then(Kind::Renew, Step::reply(reply));
    let valve = fleet.valve(&store, 1, ms(900));
    let called = Arc::new(Mutex::new(Vec::new()));
    let (clock, calls) = (fleet.clock.clone(), Arc::clone(&called));
    let job = fleet.spawn(&valve, move |running| {
        let told = clock.clone();
        let _guard = running.on_abort(move |why| calls.lock().push((told.now(), why)));
        clock.sleep(secs(5));
    });
    fleet.clock.advance(expected - us(1));
    assert_eq!(*called.lock(), []);
    fleet.clock.advance(secs(10));
    assert_eq!(*called.lock(), [(expected, Abort::LeaseLost)], "{reply:?}");
    assert!(job.result().is_err());
}

/// Both reasons come, in either order: the job hears the first.
#[test]
fn a_job_is_called_once_whatever_comes_after() {
    for cancelled_at in [ms(100), ms(2_000)] {
        let fleet = Fleet::new();
        let store = fleet.remote();
        store.then(Kind::Renew, Step::reply(Reply::NotHeld));
        let valve = fleet.valve(&store, 1, ms(900));
        let (called, token) = (Arc::new(Mutex::new(Vec::new())), CancelToken::new());
        let (clock, calls, its_token) = (fleet.clock.clone(), Arc::clone(&called), token.clone());
        fleet.clock.spawn("job", move || {
            let ended = valve.job().cancel(&its_token).run(|running| {
                let _guard = running.on_abort(move |why| calls.lock().push(why));
                clock.sleep(secs(5));
                assert_eq!(running.aborted(), Some(Abort::LeaseLost), "loss is the graver of the two");
            });
            assert!(ended.is_err());
        });
        fleet.clock.advance(cancelled_at);
        token.cancel();
        token.cancel();
        fleet.clock.advance(secs(10));
        let first = if cancelled_at < ms(300) { Abort::Cancelled } else { Abort::LeaseLost };
        assert_eq!(*called.lock(), [first], "cancelled at {cancelled_at:?}");
    }
}

#[test]
fn a_job_that_took_its_wish_back_is_not_called() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    store.then(Kind::Renew, Step::reply(Reply::NotHeld));
    let valve = fleet.valve(&store, 1, ms(900));
    let called = Arc::new(AtomicUsize::new(0));
    let (clock, calls) = (fleet.clock.clone(), Arc::clone(&called));
    let token = CancelToken::new();
    fleet.clock.spawn("job", move || {
        let _ = valve.job().cancel(&token).run(|running| {
            let count = |weight| {
                let calls = Arc::clone(&calls);
                move |_| add(&calls, weight)
            };
            let early = running.on_abort(count(1));
            let kept = running.on_abort(count(10));
            drop(early);
            clock.sleep(secs(1));
            drop(kept);
            // It is lost by now: the wish is granted at once, unless it is taken back before anybody can.
            drop(running.on_abort(count(100)));
            let late = running.on_abort(count(1_000));
            clock.sleep(ms(1));
            token.cancel();
            clock.sleep(secs(1));
            drop(late);
        });
    });
    fleet.clock.advance(secs(10));
    assert_eq!(called.load(Ordering::Relaxed), 1_010);
}

/// More than there is room for events.
#[test]
fn thousands_of_jobs_are_all_called() {
    let fleet = Fleet::new();
    let store = fleet.local();
    store.then(Kind::Renew, Step::reply(Reply::NotHeld));
    let lost = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&lost);
    let valve = fleet
        .builder(&store)
        .global_concurrency(u32::MAX, secs(3))
        .on_event(move |event| {
            if let Event::LeaseLost { count, .. } = event {
                told.fetch_add(*count, Ordering::Relaxed);
            }
        })
        .build()
        .unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let (clock, calls) = (fleet.clock.clone(), Arc::clone(&called));
    fleet.spawn(&valve.clone(), move |running| {
        let others: Vec<_> = (0..2_999).map(|_| valve.acquire().unwrap()).collect();
        let count = || {
            let calls = Arc::clone(&calls);
            move |_| add(&calls, 1)
        };
        let _guards: Vec<_> = (0..3_000).map(|_| running.on_abort(count())).collect();
        clock.sleep(secs(5));
        assert!(others.iter().all(valve::Permit::is_aborted));
    });
    fleet.clock.advance(secs(10));
    assert_eq!((called.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)), (3_000, 3_000));
}

/// On real threads: the first callback panics, the second never returns while the test lasts.
#[test]
fn a_callback_that_panics_or_blocks_harms_nobody() {
    let _hangs = watchdog(5);
    let valve = valve::Valve::builder("id").global_concurrency(8, secs(2)).build().unwrap();
    let (panics, well, hangs) = (CancelToken::new(), CancelToken::new(), CancelToken::new());
    let (sender, called) = mpsc::channel();
    let (stay, stays) = mpsc::channel::<()>();
    valve
        .job()
        .cancel(&panics)
        .run(|running| {
            let _first = running.on_abort(|_| std::panic::resume_unwind(Box::new("in the callback")));
            panics.cancel();
            valve.job().cancel(&well).run(|running| {
                let _second = running.on_abort(move |why| sender.send(why).unwrap());
                well.cancel();
                assert_eq!(called.recv(), Ok(Abort::Cancelled));
            })
        })
        .unwrap()
        .unwrap();
    valve
        .job()
        .cancel(&hangs)
        .run(|running| {
            let _third = running.on_abort(move |_| assert!(stays.recv().is_err()));
            hangs.cancel();
            // Renewals, grants and questions go on: this job is cancelled and not lost, and the next runs.
            let (sender, later) = mpsc::channel::<()>();
            assert!(later.recv_timeout(ms(1_000)).is_err());
            drop(sender);
            assert_eq!(running.aborted(), Some(Abort::Cancelled));
            assert!(valve.run(|| ()).is_ok());
        })
        .unwrap();
    drop(stay);
}
