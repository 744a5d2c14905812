//! How often those ask who wait for a slot of the fleet, and those whom a rule holds up.

use std::time::Duration;

use valve::{Rule, Store, Valve};

use crate::fleet::{Fleet, Kind, Member, Step};
use crate::support::{ms, secs};

/// V61: without notices each 50 ms and up to 10 more, however many wait; no later than one such pause after the release.
#[test]
fn without_notices_a_waiter_asks_each_fiftieth_of_a_second() {
    let fleet = Fleet::new();
    let store = fleet.remote().silent();
    let gap = ms(50)..=ms(60);
    let asked = waiters_ask(&fleet, &store, store.clone(), ms(5_030));
    assert!(asked.iter().all(|wait| gap.contains(wait)), "{asked:?}");
    assert!((83..=100).contains(&asked.len()), "{} asks in 5 s", asked.len());
}

/// V61: with notices that are all lost, once a second.
#[test]
fn with_notices_lost_a_waiter_asks_each_second() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let asked = waiters_ask(&fleet, &store, store.losing_notices(), ms(5_030));
    assert!(asked.iter().all(|wait| (ms(900)..=secs(1)).contains(wait)), "{asked:?}");
    assert!((5..=6).contains(&asked.len()), "{} asks in 5 s", asked.len());
}

/// Five jobs wait until the slot is freed at `freed`; the pauses between their asks until the first starts.
fn waiters_ask(fleet: &Fleet, log: &Member, store: impl Store, freed: Duration) -> Vec<Duration> {
    let holder = fleet.valve(&fleet.local(), 1, secs(3));
    let valve = Valve::builder("id").store(store).global_concurrency(1, secs(3)).build().unwrap();
    let held = fleet.spawn_lasting(&holder, freed);
    fleet.clock.settle();
    let jobs: Vec<_> = (0..5).map(|_| fleet.spawn_lasting(&valve, ms(1))).collect();
    fleet.clock.advance(freed + secs(2));
    assert!(held.result().is_ok());
    let started = jobs[0].start().unwrap();
    let sent: Vec<_> = log.sent(Kind::Admit).into_iter().filter(|at| *at <= started).collect();
    // The first caller asks for itself, and the next once more for all.
    let begun = sent.iter().filter(|at| **at == Duration::ZERO).count();
    assert!(begun <= 2, "{begun} asks at once");
    let gaps: Vec<_> = sent[begun - 1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(started - freed <= *gaps.iter().max().unwrap(), "{:?} after the release", started - freed);
    assert!(jobs.iter().all(|job| job.end().is_some()));
    gaps
}

/// The notice comes in time: long before the poll.
#[test]
fn with_notices_a_waiter_starts_at_the_release() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let store = if remote { fleet.remote() } else { fleet.local() };
        let holder = fleet.valve(&fleet.local(), 1, secs(3));
        let valve = fleet.valve(&store, 1, secs(3));
        let held = fleet.spawn_lasting(&holder, ms(333));
        fleet.clock.settle();
        let job = fleet.spawn_lasting(&valve, ms(1));
        fleet.clock.advance(secs(2));
        assert!(held.result().is_ok());
        assert_eq!(job.start(), Some(ms(333)), "remote {remote}");
        assert!(store.calls(Kind::Admit).len() <= 3, "{} asks", store.calls(Kind::Admit).len());
    }
}

/// V62: the hint and not the poll, with notices and without, on a store that takes its time.
#[test]
fn those_held_up_by_a_rule_follow_its_hint() {
    let fleet = Fleet::new();
    for (number, store) in [fleet.local(), fleet.remote(), fleet.remote().silent()].into_iter().enumerate() {
        let slow = if number == 2 { ms(3) } else { ms(0) };
        store.then(Kind::Admit, Step { after: slow, ..Step::AT_ONCE });
        let began = fleet.clock.now();
        let rule = Rule::gcra(1, ms(1_700));
        let id = format!("id-{number}");
        let builder = Valve::builder(id).store(store.clone()).rule(rule);
        let valve = builder.global_concurrency(5, secs(3)).build().unwrap();
        let jobs: Vec<_> = (0..3).map(|_| fleet.spawn_lasting(&valve, ms(1))).collect();
        fleet.clock.advance(secs(5));
        let starts: Vec<_> = jobs.iter().map(|job| job.start().unwrap() - began - slow).collect();
        assert_eq!(starts, [ms(0), ms(1_700), ms(3_400)]);
        let asks = store.calls(Kind::Admit).len();
        assert!(asks <= 5, "{asks} asks for three starts");
    }
}
