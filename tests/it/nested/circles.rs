//! Waits that could never end, and those that only look like it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Blocked, CancelToken, Concurrency, Error, Rule, Valve};

use crate::fleet::{Fleet, Kind, Reply, Step};
use crate::support::{ms, secs};
use crate::watchdog::watchdog;

/// O77, without a deadline: every way to wait.
#[test]
fn a_call_that_waits_for_its_own_threads_slot_would_deadlock() {
    type Way = fn(&Valve) -> Result<(), Error>;
    let ways: [Way; 7] = [
        |valve| valve.run(|| ()),
        |valve| valve.try_run(|| Ok(())),
        |valve| valve.acquire().map(drop),
        |valve| valve.acquire_owned().map(drop),
        |valve| valve.job().priority(i32::MAX).run(|_| ()),
        |valve| valve.job().max_wait(Duration::MAX).acquire().map(drop),
        |valve| valve.clone().job().priority(-1).try_run(|_| Ok(())),
    ];
    for way in ways {
        for global in [false, true] {
            let fleet = Fleet::new();
            let builder = fleet.builder(&fleet.local());
            let builder =
                if global { builder.global_concurrency(1, secs(3)) } else { builder.concurrency(1) };
            let valve = builder.build().unwrap();
            let inside = valve.clone();
            let job = fleet.spawn(&valve, move |_| way(&inside));
            fleet.clock.settle();
            let inner = job.result().unwrap();
            assert!(matches!(inner, Err(Error::WouldDeadlock)), "{inner:?}");
            assert_eq!(inner.unwrap_err().code(), 9);
            // All goes on as if the call had not been made.
            assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
            way(&valve).unwrap();
            valve.run(|| valve.try_acquire().map(drop)).unwrap().unwrap_err();
        }
    }
}

/// O77, with a deadline of 100 ms, and with a slot to spare.
#[test]
fn a_nested_call_with_a_deadline_waits_for_it() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let (inside, its_clock) = (valve.clone(), clock.clone());
    let job = clock.spawn("job", move || {
        let inner = inside.run(|| inside.job().max_wait(ms(100)).run(|_| ())).unwrap();
        assert!(
            matches!(inner, Err(Error::Timeout { blocked_by: Blocked::LocalConcurrency, .. })),
            "{inner:?}"
        );
        assert_eq!(its_clock.now(), ms(100));
        inside.run(|| ()).unwrap();
        its_clock.now()
    });
    clock.advance(secs(1));
    assert_eq!(job.join().unwrap(), ms(100));
    valve.set_concurrency(Concurrency::unlimited().local(2)).unwrap();
    assert_eq!(valve.run(|| valve.run(|| 2).unwrap()).unwrap(), 2);
}

/// A token can end the wait, so it is left to its owner.
#[test]
fn a_nested_call_with_a_token_waits_for_it() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").concurrency(1).clock(&clock).build().unwrap();
    let token = CancelToken::new();
    let its_token = token.clone();
    let job = clock.spawn("job", move || valve.run(|| valve.job().cancel(&its_token).run(|_| ())).unwrap());
    clock.advance(secs(3600));
    assert!(!job.is_finished());
    token.cancel();
    clock.settle();
    assert!(matches!(job.join().unwrap(), Err(Error::Cancelled)));
}

/// As deep as there are slots and no deeper; each level's slot comes back.
#[test]
fn a_thread_nests_as_deep_as_there_are_slots() {
    let _hangs = watchdog(5);
    fn depth(valve: &Valve) -> u32 {
        match valve.run(|| depth(valve) + 1) {
            Ok(depth) => depth,
            Err(Error::WouldDeadlock) => 0,
            Err(other) => panic!("{other:?}"),
        }
    }
    for limit in 1..6 {
        let local = Valve::builder("id").concurrency(limit).build().unwrap();
        let global = Valve::builder("id").global_concurrency(limit, secs(3)).build().unwrap();
        for valve in [local, global] {
            assert_eq!([depth(&valve), depth(&valve)], [limit, limit]);
        }
    }
}

/// Jobs of other valves in between hide nothing, and are hidden by nothing.
#[test]
fn a_circle_through_another_valves_job_is_seen() {
    let fleet = Fleet::new();
    let build = |id: &str, global: bool| {
        let builder = Valve::builder(id).clock(&fleet.clock);
        if global { builder.global_concurrency(1, secs(3)) } else { builder.concurrency(1) }.build().unwrap()
    };
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        let (one, other) = (build("one", first), build("other", second));
        let (mine, theirs) = (one.clone(), other.clone());
        let job = fleet.spawn(&one, move |_| {
            let inner = theirs.run(|| (mine.run(|| ()).is_err(), theirs.run(|| ()).is_err())).unwrap();
            (inner, mine.run(|| ()).is_err(), theirs.run(|| ()).is_ok())
        });
        fleet.clock.settle();
        assert_eq!(job.result().unwrap(), ((true, true), true, true), "global {first}, {second}");
        assert_eq!((one.stats().running, other.stats().running), (0, 0));
    }
}

/// Two threads in a circle: the one that closes it is told, and by that the other gets its slot.
#[test]
fn the_last_to_wait_in_a_circle_is_told_and_the_others_go_on() {
    for global in [false, true] {
        for threads in [2, 3, 5] {
            let fleet = Fleet::new();
            let builder = fleet.builder(&fleet.local());
            let builder = if global {
                builder.global_concurrency(threads, secs(3))
            } else {
                builder.concurrency(threads)
            };
            let valve = builder.build().unwrap();
            let jobs: Vec<_> = (0..threads)
                .map(|thread| {
                    let (valve, clock) = (valve.clone(), fleet.clock.clone());
                    fleet.clock.spawn("job", move || {
                        valve
                            .run(|| {
                                clock.sleep(ms(u64::from(thread) + 1));
                                valve.run(|| clock.now())
                            })
                            .unwrap()
                    })
                })
                .collect();
            fleet.clock.advance(secs(1));
            let told: Vec<_> = jobs.into_iter().map(|job| job.join().unwrap()).collect();
            let (last, others) = told.split_last().unwrap();
            assert!(matches!(last, Err(Error::WouldDeadlock)), "{last:?}");
            assert!(
                others.iter().all(|told| matches!(told, Ok(at) if *at == ms(threads.into()))),
                "{others:?}"
            );
            assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
        }
    }
}

/// A slot that a permit holds may come back at any time, whoever has it.
#[test]
fn a_permit_elsewhere_is_no_part_of_a_circle() {
    for global in [false, true] {
        let fleet = Fleet::new();
        let builder = fleet.builder(&fleet.local());
        let builder = if global { builder.global_concurrency(2, secs(3)) } else { builder.concurrency(2) };
        let valve = builder.build().unwrap();
        let permit = valve.acquire().unwrap();
        let inside = valve.clone();
        let job = fleet.spawn(&valve, move |_| inside.run(|| ()).is_ok());
        fleet.clock.advance(secs(60));
        assert!(job.end().is_none());
        drop(permit);
        fleet.clock.settle();
        assert!(job.result().unwrap());
    }
}

/// Another process's job ends some time.
#[test]
fn another_processs_slot_is_no_part_of_a_circle() {
    let fleet = Fleet::new();
    let (one, other) = (fleet.valve(&fleet.local(), 2, secs(3)), fleet.valve(&fleet.remote(), 2, secs(3)));
    let theirs = fleet.spawn_lasting(&other, secs(60));
    fleet.clock.settle();
    let inside = one.clone();
    let job = fleet.spawn(&one, move |_| inside.run(|| ()).is_ok());
    fleet.clock.advance(secs(61));
    assert!(theirs.result().is_ok() && job.result().unwrap());
    // Its release was sent within a millisecond.
    assert_eq!(job.end().unwrap().0, secs(60) + ms(1));
}

/// A job whose lease was lost holds no slot of the fleet any more, however deep its calls are.
#[test]
fn a_lost_slot_is_no_part_of_a_circle() {
    let fleet = Fleet::new();
    let store = fleet.local();
    let valve = fleet.valve(&store, 2, ms(900));
    store.next(Kind::Renew, [Step::reply(Reply::NotHeld)]);
    let (clock, inside) = (fleet.clock.clone(), valve.clone());
    let nested = fleet.spawn(&valve, move |_| {
        clock.sleep(ms(400));
        inside
            .run(|| {
                clock.sleep(ms(100));
                inside.run(|| ())
            })
            .unwrap()
            .map_err(|error| error.code())
    });
    fleet.clock.advance(ms(350));
    let other = fleet.spawn_lasting(&valve, secs(5));
    fleet.clock.advance(secs(20));
    assert!(other.result().is_ok());
    // The outermost was lost, and knows; the innermost had the slot of the other job as soon as it ended.
    assert!(matches!(nested.result(), Err(Error::LeaseLost)), "{:?}", nested.result());
    assert_eq!(nested.end().unwrap().0, ms(5_350), "a wait was ended that another's end would have ended");
}

/// Jobs that started under a local limit hold no slot of the fleet, of which there are as many now.
#[test]
fn a_slot_of_another_limit_is_no_part_of_a_circle() {
    let fleet = Fleet::new();
    let valve = fleet.builder(&fleet.local()).build().unwrap();
    let (clock, inside) = (fleet.clock.clone(), valve.clone());
    let nested = fleet.spawn(&valve, move |_| {
        clock.sleep(ms(100));
        inside.run(|| inside.run(|| ())).unwrap().map_err(|error| error.code())
    });
    fleet.clock.advance(ms(10));
    valve.set_concurrency(Concurrency::unlimited().global(2, secs(3))).unwrap();
    let other = fleet.spawn_lasting(&valve, secs(5));
    fleet.clock.advance(secs(20));
    assert!(other.result().is_ok());
    assert_eq!(nested.result().unwrap(), Ok(()));
    assert_eq!(nested.end().unwrap().0, ms(5_010));
}

/// A limit that shrinks closes a circle at once if nothing else runs, or else when the last that is not in it ends.
#[test]
fn a_limit_that_shrinks_into_a_circle_ends_it() {
    let clock = ManualClock::new();
    let rule = Rule::gcra(1, secs(10));
    let valve = Valve::builder("id").rule(rule).concurrency(2).clock(&clock).build().unwrap();
    let (inside, its_clock) = (valve.clone(), clock.clone());
    let job = clock.spawn("job", move || (inside.run(|| inside.run(|| ())).unwrap(), its_clock.now()));
    clock.advance(secs(1));
    assert_eq!(valve.stats().queued, 1);
    valve.set_concurrency(Concurrency::unlimited().local(1)).unwrap();
    clock.settle();
    let (told, at) = job.join().unwrap();
    assert!(matches!(told, Err(Error::WouldDeadlock)) && at == secs(1), "{told:?}");

    let fleet = Fleet::new();
    for global in [false, true] {
        let limit = |limit| match global {
            true => Concurrency::unlimited().global(limit, secs(3)),
            false => Concurrency::unlimited().local(limit),
        };
        let valve = fleet.builder(&fleet.local()).build().unwrap();
        valve.set_concurrency(limit(2)).unwrap();
        let other = valve.acquire().unwrap();
        let inside = valve.clone();
        let nested = fleet.spawn(&valve, move |_| inside.run(|| ()).map_err(|error| error.code()));
        fleet.clock.advance(secs(1));
        valve.set_concurrency(limit(1)).unwrap();
        fleet.clock.advance(secs(1));
        assert!(nested.end().is_none(), "the permit may come back, and be used");
        drop(other);
        fleet.clock.settle();
        assert_eq!(nested.result().unwrap(), Err(9), "global {global}");
    }
}

/// A circle that closes while a third call asks, and is refused.
#[test]
fn a_circle_closed_during_anothers_ask_is_seen() {
    let fleet = Fleet::new();
    let store = fleet.local();
    let rule = Rule::fixed_window(2, secs(3600));
    let valve = fleet.builder(&store).rule(rule).concurrency(2).build().unwrap();
    let inside = valve.clone();
    let nested = fleet.spawn(&valve, move |_| inside.job().cost(2).run(|_| ()).map_err(|error| error.code()));
    fleet.clock.settle();
    assert_eq!((valve.stats().running, valve.stats().queued), (1, 1));
    let (asks, shrinking) = (AtomicUsize::new(0), valve.clone());
    store.hook(Kind::Admit, move || {
        if asks.fetch_add(1, Ordering::Relaxed) == 0 {
            shrinking.set_concurrency(Concurrency::unlimited().local(1)).unwrap();
        }
    });
    store.next(Kind::Admit, [Step::reply(Reply::Unreachable)]);
    let passing = valve.job().priority(9).try_acquire().map(drop);
    assert!(passing.is_err());
    fleet.clock.settle();
    assert_eq!(nested.result().unwrap(), Err(9));
}

/// The list of slots that a thread holds survives a panic in any of its jobs.
#[test]
fn a_panicking_job_leaves_its_thread_outside() {
    let _hangs = watchdog(5);
    let valve = Valve::builder("id").concurrency(2).build().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        valve.run(|| valve.run(|| std::panic::resume_unwind(Box::new("inside"))))
    }));
    assert!(caught.is_err());
    // This thread holds no slot: it waits like any other for the permits of another.
    let permits = [valve.acquire_owned().unwrap(), valve.acquire_owned().unwrap()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (_never, waits) = std::sync::mpsc::channel::<()>();
            waits.recv_timeout(ms(100)).unwrap_err();
            drop(permits);
        });
        valve.run(|| ()).unwrap();
    });
}
