//! How many hold a slot, what is taken with it, and what a store does with the names of those that ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use valve::testing::ManualClock;
use valve::{
    Answer, Ask, Blocked, Concurrency, Counts, Deadline, Error, Lease, MemoryStore, OnStoreError, Rule,
    RuleSet, Slots, Store, Token, Valve,
};

use crate::fleet::{Fleet, Kind, Reply, Step};
use crate::support::{Random, ms, secs, us};

/// V50: four processes, each with more work than there are slots.
#[test]
fn a_fleet_never_holds_more_slots_than_its_limit() {
    let fleet = Fleet::new();
    let running = Arc::new(AtomicU64::new(0));
    for process in 0..4 {
        let store = if process % 2 == 0 { fleet.local() } else { fleet.remote() };
        let valve = fleet.valve(&store, 20, secs(3));
        for thread in 0..15 {
            let (clock, valve, running) = (fleet.clock.clone(), valve.clone(), Arc::clone(&running));
            let mut random = Random::new(process * 100 + thread);
            fleet.clock.spawn("worker", move || {
                while clock.now() < secs(60) {
                    let lasts = ms(random.below(5_000));
                    valve
                        .run(|| {
                            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                            assert!(now <= 20, "{now} run at once");
                            clock.sleep(lasts);
                            running.fetch_sub(1, Ordering::Relaxed);
                        })
                        .unwrap();
                }
            });
        }
    }
    fleet.clock.advance(secs(30));
    assert_eq!((fleet.held(), running.load(Ordering::Relaxed)), (20, 20), "slots lie idle while jobs wait");
    fleet.clock.advance(secs(60));
    assert_eq!((fleet.most(), fleet.held(), running.load(Ordering::Relaxed)), (20, 0, 0));
}

/// V51, first half.
#[test]
fn a_job_without_a_slot_spends_no_budget() {
    let fleet = Fleet::new();
    let hourly = || Rule::fixed_window(3, secs(3600));
    let build =
        || fleet.builder(&fleet.local()).rule(hourly()).global_concurrency(1, secs(3)).build().unwrap();
    let (one, other) = (build(), build());
    let held = one.acquire().unwrap();
    for _ in 0..10 {
        let refused = other.try_acquire();
        assert!(matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::GlobalConcurrency, .. })));
    }
    let waiter = fleet.spawn_lasting(&other, ms(1));
    fleet.clock.advance(secs(10));
    assert_eq!(waiter.start(), None);
    drop(held);
    fleet.clock.advance(ms(1));
    assert!(waiter.result().is_ok());
    one.try_acquire().unwrap().finish().unwrap();
    // Three started, and three are all that the hour had.
    let refused = one.try_acquire().map(drop);
    assert!(matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::Rate { .. }, .. })), "{refused:?}");
}

/// V51, second half: with two rules, either of which refuses, and with a batch of which a part fits.
#[test]
fn a_job_without_budget_takes_no_slot() {
    let fleet = Fleet::new();
    let store = fleet.local();
    let gcra = Rule::gcra(2, secs(3600)).burst(2);
    let builder = fleet.builder(&store).rule(gcra).rule(Rule::fixed_window(5, secs(1)));
    let valve = builder.global_concurrency(5, secs(3)).build().unwrap();
    valve.pause(ms(1)).unwrap();
    let jobs: Vec<_> = (0..5).map(|_| fleet.spawn_lasting(&valve, secs(100))).collect();
    fleet.clock.advance(ms(10));
    assert_eq!(jobs.iter().filter(|job| job.start().is_some()).count(), 2);
    assert_eq!((fleet.held(), fleet.most()), (2, 2));
    let refused = valve.job().priority(1).try_acquire().map(drop);
    assert!(matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::Rate { .. }, .. })), "{refused:?}");
    assert_eq!(fleet.held(), 2);
    // The store itself has three slots left for those whose rules let them.
    let free = fleet.valve(&fleet.local(), 5, secs(3));
    let permits: Vec<_> = (0..3).map(|_| free.try_acquire().unwrap()).collect();
    assert!(free.try_acquire().is_err());
    drop(permits);
}

#[test]
fn a_local_and_a_global_limit_hold_together() {
    let fleet = Fleet::new();
    let store = fleet.local();
    let build = || fleet.builder(&store).concurrency(2).global_concurrency(3, secs(3)).build().unwrap();
    let (one, other) = (build(), build());
    let first: Vec<_> = (0..4).map(|_| fleet.spawn_lasting(&one, secs(1))).collect();
    let second: Vec<_> = (0..4).map(|_| fleet.spawn_lasting(&other, secs(1))).collect();
    fleet.clock.advance(ms(1));
    let running = || (one.stats().running, other.stats().running, fleet.held());
    assert_eq!(running(), (2, 1, 3));
    assert_eq!(one.stats().blocked_by, Some(Blocked::LocalConcurrency));
    assert_eq!(other.stats().blocked_by, Some(Blocked::GlobalConcurrency));
    fleet.clock.advance(secs(5));
    assert_eq!((running(), fleet.most()), ((0, 0, 0), 3));
    assert!(first.iter().chain(&second).all(|job| job.result().is_ok()));
    // What limits this valve costs no call of the store.
    let asks = store.calls(Kind::Admit).len();
    let _held = [one.acquire().unwrap(), one.acquire().unwrap()];
    assert!(one.try_acquire().is_err());
    assert_eq!(store.calls(Kind::Admit).len(), asks + 2);
}

#[test]
fn limits_and_lease_ttls_out_of_range_are_refused_by_name() {
    check_refused(0, secs(1), "global_concurrency");
    check_refused(1, Duration::ZERO, "lease_ttl");
    check_refused(1, ms(100) - us(1), "lease_ttl");
    check_refused(1, ms(100) - Duration::from_nanos(1), "lease_ttl");
    check_refused(1, secs(24 * 3600) + Duration::from_nanos(1), "lease_ttl");
    check_refused(1, Duration::MAX, "lease_ttl");
    for ttl in [ms(100), secs(24 * 3600)] {
        let valve = Valve::builder("id").global_concurrency(u32::MAX, ttl).build().unwrap();
        assert_eq!(valve.run(|| 1).unwrap(), 1);
    }
}

#[track_caller]
fn check_refused(limit: u32, ttl: Duration, name: &str) {
    let built = Valve::builder("id").concurrency(1).global_concurrency(limit, ttl).build().map(drop);
    let valve = Valve::builder("id").concurrency(1).build().unwrap();
    let set = valve.set_concurrency(Concurrency::unlimited().global(limit, ttl));
    for refused in [built, set] {
        match refused {
            Err(Error::Invalid { field, .. }) => assert_eq!(field, name, "{limit} for {ttl:?}"),
            other => panic!("{limit} for {ttl:?}: {other:?}"),
        }
    }
    // The limit that was there still holds.
    let _held = valve.try_acquire().unwrap();
    assert!(valve.try_acquire().is_err());
}

/// V66.
#[test]
fn a_valve_that_starts_jobs_without_its_store_has_no_global_limit() {
    let builder = || Valve::builder("id").on_store_error(OnStoreError::Open);
    let built = builder().global_concurrency(1, secs(1)).build().map(drop);
    let valve = builder().build().unwrap();
    let set = valve.set_concurrency(Concurrency::unlimited().global(1, secs(1)));
    for refused in [built, set] {
        assert!(
            matches!(&refused, Err(Error::Invalid { field, .. }) if field == "on_store_error"),
            "{refused:?}"
        );
    }
    assert!(valve.run(|| ()).is_ok());
}

/// The calls of a store, without a valve.
struct Counted {
    clock: ManualClock,
    counts: Arc<dyn Counts>,
    rules: RuleSet,
}

impl Counted {
    fn new() -> Counted {
        let clock = ManualClock::new();
        let counts = MemoryStore::builder().clock(&clock).build().open("id").unwrap();
        Counted { clock, counts, rules: RuleSet::new(Vec::new()).unwrap() }
    }

    /// Asks for one of one slot.
    fn take(&self, token: u128, ttl: Duration) -> bool {
        let (tokens, costs) = ([Token(token)], [1]);
        let mut ask = Ask::new(&self.rules, &costs);
        ask.slots = Some(Slots::new(1, ttl, &tokens));
        let mut answer = Answer::default();
        self.counts.admit(&ask, &mut answer).unwrap();
        answer.granted == 1
    }

    fn renew(&self, token: u128, ttl: Duration) -> bool {
        let mut held = Vec::new();
        self.counts.renew(&[Lease { token: Token(token), ttl }], Deadline::never(), &mut held).unwrap();
        held == [true]
    }

    fn release(&self, token: u128) {
        self.counts.release(&[Token(token)]).unwrap();
    }
}

/// V40 and O46: nobody took the slot, and nothing has looked at the lease since it ended.
#[test]
fn a_renewal_never_revives_a_lease() {
    for late in [us(0), us(1), ms(1), ms(50), secs(3600)] {
        let store = Counted::new();
        assert!(store.take(1, ms(100)));
        store.clock.advance(ms(100) + late);
        assert!(!store.renew(1, ms(100)), "revived {late:?} after its end");
        assert!(!store.renew(1, ms(100)), "revived by the second renewal");
        assert!(store.take(2, ms(100)), "its slot is not free {late:?} after its end");
        assert!(!store.renew(1, ms(100)), "revived beside its successor");
    }
    let store = Counted::new();
    assert!(store.take(1, ms(100)));
    store.clock.advance(ms(99));
    assert!(store.renew(1, ms(100)));
    store.clock.advance(ms(1));
    assert!(!store.take(2, ms(100)), "a rival got a renewed slot");
    store.clock.advance(ms(99) - us(1));
    assert!(!store.take(2, ms(100)));
    store.clock.advance(us(1));
    assert!(store.take(2, ms(100)), "a renewed lease outlasts its length");
}

/// V41 and O47: the first owner's release comes when the second has the slot.
#[test]
fn a_release_ends_the_leases_it_names_and_no_other() {
    let store = Counted::new();
    assert!(store.take(1, ms(100)));
    store.clock.advance(ms(100));
    assert!(store.take(2, ms(100)));
    store.release(1);
    assert!(!store.take(3, ms(100)), "a stranger's release freed the slot");
    assert!(store.renew(2, ms(100)));
    store.release(2);
    store.release(2);
    assert!(store.take(3, ms(100)), "a late release of a lease that holds did not free it");
    assert!(!store.renew(2, ms(100)));
}

/// The same with whole valves: what a job says after its lease ended changes nothing for its successor.
#[test]
fn a_job_that_lost_its_slot_does_not_free_its_successors() {
    let fleet = Fleet::new();
    let (stuck, sound) = (fleet.remote(), fleet.local());
    let (one, other) = (fleet.valve(&stuck, 1, ms(300)), fleet.valve(&sound, 1, ms(300)));
    stuck.then(Kind::Renew, Step::reply(Reply::Unreachable));
    let first = fleet.spawn_lasting(&one, ms(500));
    fleet.clock.settle();
    let second = fleet.spawn_lasting(&other, secs(2));
    let third = fleet.spawn_lasting(&other, ms(10));
    fleet.clock.advance(secs(1));
    assert!(matches!(first.result(), Err(Error::LeaseLost)));
    let began = second.start().unwrap();
    assert!((ms(300)..secs(1)).contains(&began), "{began:?}");
    fleet.clock.advance(secs(5));
    assert_eq!(fleet.most(), 1);
    assert!(third.start().unwrap() >= began + secs(2));
    assert!(second.result().is_ok() && third.result().is_ok());
}
