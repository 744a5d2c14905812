//! The circles that are not seen, each ended by `max_wait`.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use valve::{Error, Valve};

use crate::support::secs;
use crate::watchdog::watchdog;

const WAIT: Duration = Duration::from_millis(200);

fn valve(id: &str, limit: u32) -> Valve {
    Valve::builder(id).concurrency(limit).build().unwrap()
}

fn patient(valve: &Valve) -> Result<(), Error> {
    valve.job().max_wait(WAIT).run(|_| ())
}

/// What each case comes to: its call is given up, and the valve is as good as new.
#[track_caller]
fn check_given_up(told: &Result<(), Error>, valves: &[&Valve]) {
    assert!(matches!(told, Err(Error::Timeout { waited, .. }) if *waited >= WAIT), "{told:?}");
    for valve in valves {
        assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
        valve.run(|| ()).unwrap();
    }
}

#[test]
fn a_job_that_waits_for_a_thread_that_waits_for_its_slot() {
    let _hangs = watchdog(5);
    let valve = valve("id", 1);
    let told = valve.run(|| thread::scope(|scope| scope.spawn(|| patient(&valve)).join().unwrap())).unwrap();
    check_given_up(&told, &[&valve]);
}

#[test]
fn a_thread_that_waits_while_it_holds_a_permit() {
    let _hangs = watchdog(5);
    let valve = valve("id", 1);
    let permit = valve.acquire().unwrap();
    let told = patient(&valve);
    drop(permit);
    check_given_up(&told, &[&valve]);
    let global = Valve::builder("id").global_concurrency(1, secs(3)).build().unwrap();
    let permit = global.acquire().unwrap();
    let told = patient(&global);
    drop(permit);
    check_given_up(&told, &[&global]);
}

/// Each thread has the slot that the other wants.
#[test]
fn two_valves_in_a_circle() {
    let _hangs = watchdog(5);
    let (one, other) = (valve("one", 1), valve("other", 1));
    let (ready, is_ready) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    let told = thread::scope(|scope| {
        let (one, other) = (&one, &other);
        let theirs = scope.spawn(move || {
            other.run(|| {
                ready.send(()).unwrap();
                goes.recv().unwrap();
                patient(one)
            })
        });
        let mine = one.run(|| {
            is_ready.recv().unwrap();
            go.send(()).unwrap();
            patient(other)
        });
        [mine.unwrap(), theirs.join().unwrap().unwrap()]
    });
    // Whoever gives up first lets the other go on, or both give up.
    assert!(told.iter().any(Result::is_err));
    for told in told.iter().filter(|told| told.is_err()) {
        check_given_up(told, &[&one, &other]);
    }
}

/// The other process's job waits for ours, and ours for a slot that it holds.
#[test]
fn another_process_in_the_circle() {
    let _hangs = watchdog(5);
    let store = valve::MemoryStore::new();
    let build = || Valve::builder("id").store(store.clone()).global_concurrency(2, secs(3)).build().unwrap();
    let (one, other) = (build(), build());
    let (done, is_done) = mpsc::channel::<()>();
    let told = thread::scope(|scope| {
        let (entered, has_entered) = mpsc::channel();
        let theirs = scope.spawn(move || {
            other.run(|| {
                entered.send(()).unwrap();
                let _ = is_done.recv();
            })
        });
        has_entered.recv().unwrap();
        let told = one.run(|| patient(&one)).unwrap();
        drop(done);
        theirs.join().unwrap().unwrap();
        told
    });
    check_given_up(&told, &[&one]);
}

/// A nested call with a deadline keeps its circle from being one: it ends, and with it the others' waits.
#[test]
fn a_circle_with_one_deadline_in_it() {
    let _hangs = watchdog(5);
    let valve = valve("id", 2);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            valve.run(|| {
                ready.send(()).unwrap();
                valve.run(|| ())
            })
        });
        let mine = valve.run(|| {
            is_ready.recv().unwrap();
            patient(&valve)
        });
        let (mine, theirs) = (mine.unwrap(), theirs.join().unwrap().unwrap());
        assert!(theirs.is_ok(), "{theirs:?}");
        // Unless the other came too late to be waited for.
        assert!(mine.is_ok() || matches!(mine, Err(Error::Timeout { .. })), "{mine:?}");
    });
    assert!(valve.run(|| ()).is_ok());
    assert_eq!(valve.stats().running, 0);
}
