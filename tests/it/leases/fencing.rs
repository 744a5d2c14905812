//! Fencing tokens: each greater than all before it, so that whatever a job changes can tell a late one from its successor.

use std::num::NonZeroU64;

use parking_lot::Mutex;
use std::sync::Arc;
use valve::{Answer, Ask, MemoryStore, RuleSet, Slots, Store, Token, Valve};

use crate::fleet::Fleet;
use crate::support::{Random, ms, secs};

/// V60: two processes, jobs of random lengths, many at one instant.
#[test]
fn each_token_is_greater_than_all_before_it() {
    let fleet = Fleet::new();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    for (process, store) in [fleet.local(), fleet.remote()].iter().enumerate() {
        let valve = fleet.valve(store, 8, secs(3));
        for thread in 0..6 {
            let (clock, valve, tokens) = (fleet.clock.clone(), valve.clone(), Arc::clone(&tokens));
            let mut random = Random::new(process as u64 * 10 + thread);
            fleet.clock.spawn("worker", move || {
                while clock.now() < secs(20) {
                    let lasts = ms(random.below(3) * 40);
                    let run = valve.job().run(|running| {
                        tokens.lock().push((running.admitted_at(), running.fencing_token().unwrap()));
                        clock.sleep(lasts + ms(1));
                    });
                    run.unwrap();
                }
            });
        }
    }
    fleet.clock.advance(secs(30));
    let mut tokens = tokens.lock().clone();
    assert!(tokens.len() > 1_000, "{} jobs", tokens.len());
    tokens.sort_unstable();
    assert!(tokens.is_sorted_by_key(|(at, _)| *at));
    let fences: Vec<NonZeroU64> = tokens.iter().map(|(_, fence)| *fence).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "a later job has no greater token");
}

/// A batch of several jobs, and permits of every kind.
#[test]
fn tokens_of_one_batch_and_of_all_kinds_of_permits_differ() {
    let fleet = Fleet::new();
    let valve = fleet.valve(&fleet.local(), 100, secs(3));
    let first = valve.acquire().unwrap().fencing_token().unwrap();
    let owned = valve.acquire_owned().unwrap().fencing_token().unwrap();
    let tried = valve.try_acquire().unwrap().fencing_token().unwrap();
    valve.pause(ms(1)).unwrap();
    let jobs: Vec<_> =
        (0..20).map(|_| fleet.spawn(&valve, |running| running.fencing_token().unwrap())).collect();
    fleet.clock.advance(secs(1));
    let mut all = vec![first, owned, tried];
    all.extend(jobs.iter().map(|job| job.result().unwrap()));
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    assert_eq!(Valve::builder("id").concurrency(1).build().unwrap().acquire().unwrap().fencing_token(), None);
    assert_eq!(
        Valve::builder("id").build().unwrap().job().run(|running| running.fencing_token()).unwrap(),
        None
    );
}

/// The greatest token that an asker has seen counts as given out, and so does the store's time.
#[test]
fn a_store_that_lost_its_count_goes_on_above_the_askers_floor() {
    let clock = valve::testing::ManualClock::new();
    let counts = MemoryStore::builder().clock(&clock).build().open("id").unwrap();
    let rules = RuleSet::new(Vec::new()).unwrap();
    let take = |name: u128, floor: u64, costs: &[u32]| {
        let tokens: Vec<_> = (0..costs.len() as u128).map(|job| Token(name * 100 + job)).collect();
        let mut ask = Ask::new(&rules, costs);
        let mut slots = Slots::new(100, secs(1), &tokens);
        slots.floor = floor;
        ask.slots = Some(slots);
        let mut answer = Answer::default();
        counts.admit(&ask, &mut answer).unwrap();
        assert_eq!(answer.granted, costs.len());
        answer.fence.unwrap().get()
    };
    assert_eq!(take(1, 0, &[1]), 1);
    assert_eq!(take(2, 5_000, &[1, 1, 1]), 5_001);
    assert_eq!(take(3, 0, &[1]), 5_004);
    clock.advance(secs(1));
    assert_eq!(take(4, 0, &[1]), 1_000_001);
    assert_eq!(take(5, 1_000_001, &[1]), 1_000_002);
}
