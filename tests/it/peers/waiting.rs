//! Waits that end early, and the line in which the others stand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use valve::{Blocked, CancelToken, Error, Rule};

use super::{Scene, micros, millis, seconds};

#[test]
fn cancelled_waiters_cost_nothing() {
    let scene = Scene::new(Rule::gcra(1, seconds(1)));
    let tokens: Vec<_> = (0..10).map(|_| CancelToken::new()).collect();
    let cancelled: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (valve, token) = (scene.valve.clone(), token.clone());
            scene.clock.spawn("doomed", move || valve.job().cancel(&token).run(|_| ()))
        })
        .collect();
    scene.jobs(1);
    scene.to(1);
    for token in &tokens[1..] {
        token.cancel();
    }
    scene.to(20_000);
    scene.check_starts([1_000]);
    let ends: Vec<_> = cancelled.into_iter().map(|call| call.join().unwrap()).collect();
    assert!(ends[0].is_ok(), "it had started");
    assert!(ends[1..].iter().all(|end| matches!(end, Err(Error::Cancelled))), "{ends:?}");
    let stats = scene.valve.stats();
    assert_eq!((stats.started, stats.cancelled, stats.queued, stats.running), (2, 9, 0, 0));
    assert_eq!(scene.clock.timers(), 0);
}

#[test]
fn a_hopeless_wait_ends_at_once() {
    let scene = Scene::new(Rule::gcra(1, seconds(5)));
    scene.jobs(1);
    scene.clock.settle();
    let hopeless = scene.job(|job| job.max_wait(seconds(1)));
    scene.clock.settle();
    match hopeless.join().unwrap() {
        Err(Error::Timeout { waited, retry_after, blocked_by, .. }) => {
            assert_eq!((micros(waited), retry_after), (0, Some(seconds(5))));
            assert_eq!(blocked_by.to_string(), "rule gcra/5s");
        }
        other => panic!("{other:?}"),
    }
    scene.to(5_000);
    scene.check_starts([0]);
    scene.jobs(1);
    scene.to(20_000);
    scene.check_starts([0, 5_000]);
}

#[test]
fn those_too_far_back_are_refused_early() {
    let scene = Scene::new(Rule::fixed_window(3, seconds(60)));
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (valve, clock) = (scene.valve.clone(), scene.clock.clone());
            scene.clock.spawn("call", move || {
                let end = valve.job().max_wait(seconds(70)).run(|_| ());
                (micros(clock.now()), end)
            })
        })
        .collect();
    scene.to(200_000);
    let ends: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    for (place, (at, end)) in ends.into_iter().enumerate() {
        match end {
            Ok(()) => assert_eq!(at, if place < 3 { 0 } else { 60_000_000 }, "place {place}"),
            Err(Error::Timeout { retry_after, .. }) => {
                assert!(place >= 6 && at <= 60_000_000, "place {place} was refused at {at}");
                assert_eq!(retry_after, Some(seconds(120) - std::time::Duration::from_micros(at)));
            }
            other => panic!("{other:?}"),
        }
    }
    let stats = scene.valve.stats();
    assert_eq!((stats.started, stats.timed_out, stats.queued), (6, 4, 0));
}

#[test]
fn a_waiter_that_gave_up_frees_no_slot() {
    let scene = Scene::with(|valve, _| valve.concurrency(1));
    let (valve, clock) = (scene.valve.clone(), scene.clock.clone());
    scene.clock.spawn("long job", move || valve.run(|| clock.sleep(millis(200))).unwrap());
    scene.clock.settle();
    let impatient = scene.job(|job| job.max_wait(millis(10)));
    scene.jobs(1);
    for ms in 1..200 {
        scene.to(ms);
        assert_eq!(scene.valve.stats().running, 1, "at {ms} ms");
    }
    match impatient.join().unwrap() {
        Err(Error::Timeout { waited, blocked_by, .. }) => {
            assert_eq!((waited, blocked_by), (millis(10), Blocked::LocalConcurrency));
        }
        other => panic!("{other:?}"),
    }
    scene.to(1_000);
    scene.check_starts([200]);
    assert_eq!(scene.valve.stats().running, 0);
}

#[test]
fn each_thread_starts_at_its_place_in_line() {
    const THREADS: usize = 100;
    let scene = Scene::new(Rule::gcra(50, seconds(1)));
    let served: Arc<Mutex<Vec<usize>>> = Arc::default();
    for thread in 0..THREADS {
        let (valve, clock) = (scene.valve.clone(), scene.clock.clone());
        let (served, starts) = (Arc::clone(&served), Arc::clone(&scene.starts));
        scene.clock.spawn("caller", move || {
            for _ in 0..3 {
                let record = || {
                    served.lock().push(thread);
                    starts.lock().push(micros(clock.now()));
                };
                valve.run(record).unwrap();
            }
        });
    }
    scene.to(10_000);
    scene.check_starts((0..300).map(|place| place * 20));
    // Thread 0 starts at once and is the first to call again, ahead of those who have not called yet.
    let others = || 1..THREADS;
    let calls: Vec<_> =
        [0, 0].into_iter().chain(others()).chain([0]).chain(others()).chain(others()).collect();
    assert_eq!(*served.lock(), calls);
}

#[test]
fn a_thousand_jobs_keep_their_order() {
    let scene = Scene::with(|valve, _| valve.concurrency(1));
    scene.valve.pause(seconds(60)).unwrap();
    let served: Arc<Mutex<Vec<(i32, u32)>>> = Arc::default();
    for number in 0..1_000_u32 {
        let priority = i32::try_from(number % 3).unwrap();
        let (valve, served) = (scene.valve.clone(), Arc::clone(&served));
        scene.clock.spawn("queued", move || {
            valve.job().priority(priority).run(|_| served.lock().push((priority, number))).unwrap();
        });
    }
    scene.to(1_000);
    assert_eq!(scene.valve.stats().queued, 1_000);
    scene.valve.resume().unwrap();
    scene.to(2_000);
    let of = |priority: u32| (0..1_000).filter(move |number| number % 3 == priority);
    let expected: Vec<_> =
        of(2).chain(of(1)).chain(of(0)).map(|number| ((number % 3) as i32, number)).collect();
    assert_eq!(*served.lock(), expected);
}

#[test]
fn a_starved_job_still_meets_its_deadline() {
    let scene = Scene::with(|valve, _| valve.concurrency(1));
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let (valve, clock, over) = (scene.valve.clone(), scene.clock.clone(), Arc::clone(&over));
        scene.clock.spawn("stream", move || {
            while !over.load(Ordering::Relaxed) {
                valve.job().priority(9).run(|_| clock.sleep(millis(10))).unwrap();
            }
        });
    }
    scene.clock.settle();
    let starved = scene.job(|job| job.max_wait(seconds(1)));
    scene.to(999);
    assert!(!starved.is_finished());
    scene.to(1_000);
    match starved.join().unwrap() {
        Err(Error::Timeout { waited, .. }) => assert_eq!(waited, seconds(1)),
        other => panic!("{other:?}"),
    }
    over.store(true, Ordering::Relaxed);
    scene.to(2_000);
    scene.job(|job| job.max_wait(seconds(1)));
    scene.clock.settle();
    scene.check_starts([2_000]);
}
