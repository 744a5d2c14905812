//! How a slot comes back: with the next ask or by itself, whoever drops the permit, wherever, and whatever the store does.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use valve::testing::ManualClock;
use valve::{CancelToken, Error, OwnedPermit, Valve};

use crate::fleet::{Fleet, Kind, Reply, Step};
use crate::support::{ms, secs, us};

/// V53: another process's job starts within a millisecond, plus none on a store that does not block.
#[test]
fn a_slot_comes_back_to_the_fleet_however_its_job_ends() {
    check_end("a value", |valve, clock| valve.run(|| clock.sleep(ms(10))).unwrap());
    check_end("an error", |valve, clock| {
        let end: Result<(), Error> = valve.try_run(|| {
            clock.sleep(ms(10));
            Err(Error::Closed)
        });
        assert!(matches!(end, Err(Error::Closed)));
    });
    check_end("a panic", |valve, clock| {
        let end = catch_unwind(AssertUnwindSafe(|| {
            valve.run(|| {
                clock.sleep(ms(10));
                resume_unwind(Box::new("in the job"));
            })
        }));
        assert_eq!(end.unwrap_err().downcast_ref(), Some(&"in the job"));
    });
    check_end("a cancelled run", |valve, clock| {
        let token = CancelToken::new();
        let end = valve.job().cancel(&token).run(|running| {
            clock.sleep(ms(10));
            token.cancel();
            running.is_aborted()
        });
        assert!(end.unwrap());
    });
    check_end("a dropped permit", |valve, clock| {
        let permit = valve.acquire().unwrap();
        clock.sleep(ms(10));
        drop(permit);
    });
    check_end("a finished permit", |valve, clock| {
        let permit = valve.job().acquire().unwrap();
        clock.sleep(ms(10));
        permit.finish().unwrap();
    });
    check_end("a permit moved to another thread", |valve, clock| {
        let permit = valve.acquire_owned().unwrap();
        drop_elsewhere(permit, clock);
    });
}

fn drop_elsewhere(permit: OwnedPermit, clock: &ManualClock) {
    let other = clock.clone();
    clock.spawn("other", move || {
        other.sleep(ms(10));
        drop(permit);
    });
}

#[track_caller]
fn check_end(how: &str, job: impl FnOnce(&Valve, &ManualClock) + Clone + Send + 'static) {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = || if remote { fleet.remote() } else { fleet.local() };
        let (one, other) = (fleet.valve(&store(), 1, secs(3)), fleet.valve(&store(), 1, secs(3)));
        let (job, clock) = (job.clone(), fleet.clock.clone());
        let ended = fleet.clock.spawn("job", move || job(&one, &clock));
        fleet.clock.settle();
        let next = fleet.spawn_lasting(&other, ms(1));
        fleet.clock.advance(ms(1));
        assert_eq!((fleet.held(), next.start()), (1, None), "{how}");
        fleet.clock.advance(secs(1));
        let latest = ms(10) + if remote { ms(1) } else { us(0) };
        assert!((ms(10)..=latest).contains(&next.start().unwrap()), "{how}: {:?}", next.start());
        ended.join().unwrap();
        assert_eq!(fleet.held(), 0, "{how}");
    }
}

/// What ends while there is an ask to come goes with it; what has none goes alone within a millisecond, in one call.
#[test]
fn a_release_rides_on_the_next_ask_or_goes_alone() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1_000, secs(3));
    let mut permits: Vec<_> = (0..600).map(|_| valve.acquire().unwrap()).collect();
    drop(permits.pop());
    fleet.clock.advance(ms(1) - us(1));
    assert_eq!(store.calls(Kind::Release).len(), 0, "it does not wait for a ride");
    permits.push(valve.acquire().unwrap());
    assert_eq!(store.calls(Kind::Admit).pop().unwrap().rides, 1);
    fleet.clock.advance(ms(10));
    assert_eq!((store.calls(Kind::Release).len(), fleet.held()), (0, 600), "it is sent twice");
    drop(permits);
    fleet.clock.advance(ms(1));
    let calls: Vec<_> =
        store.calls(Kind::Release).iter().map(|call| (call.sent, call.tokens.len())).collect();
    let at = ms(12) - us(1);
    assert_eq!(calls, [(at, 500), (at, 100)]);
    assert_eq!(fleet.held(), 0);
    // No more than 256 ride on one ask.
    let permits: Vec<_> = (0..300).map(|_| valve.acquire().unwrap()).collect();
    drop(permits);
    let _next = valve.acquire().unwrap();
    assert_eq!((store.calls(Kind::Admit).pop().unwrap().rides, fleet.held()), (256, 45));
    fleet.clock.advance(ms(1));
    assert_eq!(fleet.held(), 1);
}

/// An ask may take longer than a release waits for one. Only if it is lost, the release goes alone after all.
#[test]
fn a_release_that_rides_on_a_slow_ask_is_not_sent_twice() {
    for (reply, sent) in
        [(Reply::Decided, None), (Reply::Lost, Some(ms(7))), (Reply::Unreachable, Some(ms(7)))]
    {
        let fleet = Fleet::new();
        let store = fleet.remote();
        let valve = fleet.valve(&store, 10, secs(3));
        drop(valve.acquire().unwrap());
        store.next(Kind::Admit, [Step { before: ms(3), reply, after: ms(3) }]);
        let next = fleet.spawn_lasting(&valve, secs(1));
        fleet.clock.advance(ms(10));
        assert_eq!(store.sent(Kind::Release).first().copied(), sent, "the ask was {reply:?}");
        assert_eq!(fleet.held(), 1);
        fleet.clock.advance(secs(2));
        assert!(next.result().is_ok());
    }
}

/// Applied although the ask itself is refused, and the fleet has the slot.
#[test]
fn a_release_counts_even_if_its_ask_is_refused() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let rule = valve::Rule::fixed_window(1, secs(3600));
    let valve = fleet.builder(&store).rule(rule).global_concurrency(1, secs(3)).build().unwrap();
    let other = fleet.valve(&fleet.local(), 1, secs(3));
    drop(valve.acquire().unwrap());
    assert!(valve.try_acquire().is_err());
    assert_eq!(store.calls(Kind::Admit).pop().unwrap().rides, 1);
    assert!(other.try_acquire().is_ok());
}

/// A job refused a slot while this process's own release is on its way asks again when that has arrived.
#[test]
fn a_refusal_that_crosses_a_release_is_asked_again() {
    let fleet = Fleet::new();
    let store = fleet.remote().silent();
    let valve = fleet.valve(&store, 1, secs(3));
    let first = fleet.spawn_lasting(&valve, ms(10));
    fleet.clock.settle();
    // Decided at 8 ms, its answer is back at 20; the release arrives at 16 and its answer too.
    store.next(Kind::Admit, [Step { before: ms(7), reply: Reply::Decided, after: ms(12) }]);
    store.next(Kind::Release, [Step { before: ms(5), ..Step::AT_ONCE }]);
    fleet.clock.advance(ms(1));
    let second = fleet.spawn_lasting(&valve, ms(1));
    fleet.clock.advance(secs(1));
    assert!(first.result().is_ok());
    assert_eq!(second.start(), Some(ms(20)), "it waited for its poll");
}

#[test]
fn a_release_that_fails_is_sent_again_until_the_lease_ends() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = if remote { fleet.remote() } else { fleet.local() };
        let valve = fleet.valve(&store, 1, secs(30));
        for reply in [Reply::Unreachable, Reply::Lost, Reply::Panics] {
            store.next(Kind::Release, std::iter::repeat_n(Step::reply(reply), 3));
            drop(valve.acquire().unwrap());
            fleet.clock.advance(secs(2));
            assert_eq!(fleet.held(), 0, "remote {remote}: nobody sent the release again after {reply:?}");
        }
        store.then(Kind::Release, Step::reply(Reply::Unreachable));
        drop(valve.acquire().unwrap());
        fleet.clock.advance(secs(29));
        let calls = store.calls(Kind::Release).len();
        assert!((100..1_000).contains(&calls), "{calls} calls in 30 s");
        fleet.clock.advance(secs(2));
        let calls = store.calls(Kind::Release).len();
        fleet.clock.advance(secs(60));
        assert_eq!(store.calls(Kind::Release).len(), calls, "the release of a lease that has ended");
        assert_eq!(fleet.clock.timers(), 0);
    }
}

/// An ask that nobody knows the outcome of: its slot is given back as soon as it may, and counts for nobody.
#[test]
fn a_slot_granted_unheard_is_given_back() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = if remote { fleet.remote() } else { fleet.local() };
        let valve = fleet.valve(&store, 1, secs(30));
        store.next(Kind::Admit, [Step::reply(Reply::Lost)]);
        let job = fleet.spawn_lasting(&valve, secs(1));
        fleet.clock.advance(secs(2));
        let start = job.start().unwrap();
        assert!(start <= ms(100), "remote {remote}: started at {start:?}");
        assert!(job.result().is_ok());
        fleet.clock.advance(ms(1));
        assert_eq!((fleet.most(), fleet.held()), (1, 0));
        let granted: HashSet<_> = store.calls(Kind::Admit).into_iter().flat_map(|call| call.tokens).collect();
        assert_eq!(granted.len(), 2);
        assert!(store.calls(Kind::Renew).is_empty(), "an orphan was renewed");
    }
}

/// Cancelled while its ask is on its way: the slot that nobody took is released.
#[test]
fn a_slot_granted_to_a_cancelled_job_is_given_back() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1, secs(30));
    store.next(Kind::Admit, [Step { before: ms(5), reply: Reply::Decided, after: ms(5) }]);
    let token = CancelToken::new();
    let (its_token, its_valve) = (token.clone(), valve.clone());
    let job = fleet.clock.spawn("job", move || its_valve.job().cancel(&its_token).run(|_| ()));
    fleet.clock.advance(ms(7));
    token.cancel();
    fleet.clock.settle();
    assert!(matches!(job.join().unwrap(), Err(Error::Cancelled)));
    assert_eq!(fleet.held(), 1);
    fleet.clock.advance(ms(4));
    assert_eq!((fleet.held(), valve.stats().running), (0, 0));
}

/// On a store that blocks nobody is left to send the release but a thread that does without the valve.
#[test]
fn the_last_handle_of_all_still_gives_its_slot_back() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = if remote { fleet.remote() } else { fleet.local() };
        let valve = fleet.valve(&store, 1, secs(30));
        let permit = valve.acquire_owned().unwrap();
        drop(valve);
        fleet.clock.advance(secs(40));
        assert_eq!(fleet.held(), 1, "its permit kept the valve alive, and the valve the lease");
        drop(permit);
        fleet.clock.advance(ms(1));
        assert_eq!((fleet.held(), fleet.clock.timers()), (0, 0), "remote {remote}");
        let other = fleet.valve(&store, 1, secs(30));
        drop(other.acquire_owned().unwrap());
        drop(other);
        fleet.clock.advance(ms(1));
        assert_eq!((fleet.held(), fleet.clock.timers()), (0, 0), "remote {remote}");
    }
}

/// Forgotten for ever, its lease is renewed as long as its valve lives, as any permit's; after that it ends.
#[test]
fn a_leaked_permit_holds_its_slot_while_its_valve_lives() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1, secs(3));
    std::mem::forget(valve.acquire().unwrap());
    fleet.clock.advance(secs(60));
    assert_eq!((fleet.held(), valve.stats().running), (1, 1));
    drop(valve);
    fleet.clock.advance(secs(3));
    assert_eq!((fleet.held(), fleet.clock.timers()), (0, 0));
}

/// O78: the last handle goes inside a renewal, on the thread that makes it.
#[test]
fn the_last_handle_may_go_in_the_renewal_thread() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = if remote { fleet.remote() } else { fleet.local() };
        let valve = fleet.valve(&store, 1, ms(300));
        let permit = parking_lot::Mutex::new(Some((valve.acquire_owned().unwrap(), valve)));
        store.hook(Kind::Renew, move || drop(permit.lock().take()));
        fleet.clock.advance(ms(101));
        assert_eq!(store.sent(Kind::Renew), [ms(100)]);
        fleet.clock.advance(ms(1));
        assert_eq!((fleet.held(), fleet.clock.timers()), (0, 0), "remote {remote}");
        store.hook(Kind::Renew, || ());
        let next = fleet.valve(&store, 1, ms(300));
        let job = fleet.spawn_lasting(&next, secs(1));
        fleet.clock.advance(secs(2));
        assert!(job.result().is_ok());
    }
}

/// Closing ends no lease: what runs has its slot until it ends, and gives it back.
#[test]
fn a_closed_valve_renews_and_releases_what_still_runs() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1, ms(300));
    let job = fleet.spawn_lasting(&valve, secs(2));
    fleet.clock.advance(ms(10));
    valve.close();
    fleet.clock.advance(secs(1));
    assert_eq!(fleet.held(), 1);
    fleet.clock.advance(secs(1));
    assert!(job.result().is_ok());
    assert_eq!(fleet.held(), 0);
    assert_eq!(Duration::ZERO, valve.stats().paused_for.unwrap_or_default());
}
