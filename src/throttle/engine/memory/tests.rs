//! Keys, their expiry, and the sweep that gives their memory back.

use super::{Engine, MemoryEngine, SHARDS, SWEPT_AT_ONCE, SetOptions};
use crate::error::Error;
use crate::testing::ManualClock;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn engine(clock: &ManualClock, sweep_interval: Duration) -> MemoryEngine {
    MemoryEngine::builder().clock(clock).sweep_interval(sweep_interval).build().unwrap()
}

fn set(engine: &MemoryEngine, key: &str, expiry: Duration) {
    assert_eq!(engine.set(key, "value", SetOptions::new(expiry)).ok(), Some(true));
}

fn get(engine: &MemoryEngine, key: &str) -> Option<String> {
    engine.get(key).unwrap()
}

#[test]
fn a_key_is_gone_at_its_expiry_and_not_a_tick_before() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 60_000);
    set(&engine, "a", MS * 30);
    clock.advance(MS * 30 - Duration::from_micros(1));
    assert!(get(&engine, "a").is_some());
    clock.advance(Duration::from_micros(1));
    assert!(get(&engine, "a").is_none());
}

#[test]
fn reading_an_expired_key_removes_it() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 60_000);
    set(&engine, "a", MS * 30);
    clock.advance(MS * 60);
    assert_eq!(engine.len(), 1, "expired, not yet swept");
    assert_eq!(get(&engine, "a"), None);
    assert!(engine.is_empty());
}

#[test]
fn reading_an_absent_key_stores_nothing() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS);
    assert_eq!(get(&engine, "a"), None);
    assert_eq!((engine.len(), clock.timers()), (0, 0));
}

#[test]
fn an_expired_key_that_is_claimed_counts_once() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 60_000);
    set(&engine, "a", MS);
    clock.advance(MS);
    assert_eq!(engine.set("a", "2", SetOptions::new(MS).if_absent()).ok(), Some(true));
    assert_eq!(engine.len(), 1);
}

#[test]
fn the_sweep_runs_only_while_there_are_keys() {
    #[track_caller]
    fn check(name: &str, empty: impl Fn(&MemoryEngine, &ManualClock)) {
        let clock = ManualClock::new();
        let engine = engine(&clock, MS * 1_000);
        assert_eq!(clock.timers(), 0, "{name}: before the first key");
        for round in 0..3 {
            let begin = clock.now();
            set(&engine, "a", MS * 1_500);
            set(&engine, "b", MS * 1_500);
            assert_eq!(clock.timers(), 1, "{name}, round {round}: with keys");
            assert_eq!(clock.next_due(), Some(begin + MS * 1_000), "{name}, round {round}");
            clock.advance(MS * 1_000);
            assert_eq!((engine.len(), clock.timers()), (2, 1), "{name}, round {round}: nothing has expired");
            empty(&engine, &clock);
            assert_eq!((engine.len(), clock.timers()), (0, 0), "{name}, round {round}: after the last key");
        }
    }
    check("by the sweep", |_, clock| {
        assert_eq!(clock.advance(MS * 999), 0);
        assert_eq!(clock.advance(MS), 1);
    });
    check("by reading", |engine, clock| {
        clock.advance(MS * 500);
        assert_eq!((get(engine, "a"), get(engine, "b")), (None, None));
    });
    check("by del", |engine, _| {
        engine.del("a").unwrap();
        engine.del("missing").unwrap();
        engine.del("b").unwrap();
    });
    check("by clear", |engine, _| engine.clear().unwrap());
}

#[test]
fn a_sweep_removes_only_what_has_expired() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 100);
    for number in 0..300_u32 {
        set(&engine, &format!("key {number}"), MS * if number % 3 == 0 { 100 } else { 101 });
    }
    clock.advance(MS * 100);
    assert_eq!(engine.len(), 200);
    assert!(get(&engine, "key 1").is_some());
    clock.advance(MS * 100);
    assert_eq!((engine.len(), clock.timers()), (0, 0));
}

#[test]
fn a_sweep_of_many_keys_lets_other_timers_in() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 100);
    let count = 3 * SWEPT_AT_ONCE;
    for number in 0..count {
        set(&engine, &number.to_string(), MS * 50);
    }
    assert_eq!(engine.len(), count);
    let timers = clock.advance(MS * 100);
    assert!((2..=SHARDS).contains(&timers), "{timers} parts");
    assert_eq!((engine.len(), clock.timers()), (0, 0));
    // And the maps are as small as at first.
    let capacity = |shard: &crate::sync::Mutex<super::Shard>| shard.lock().entries.capacity();
    assert_eq!(engine.shared.shards.iter().map(capacity).sum::<usize>(), 0);
}

#[test]
fn steady_new_keys_do_not_put_the_sweep_off() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 1_000);
    let mut most = 0;
    for number in 0..500 {
        set(&engine, &format!("key {number}"), MS * 50);
        clock.advance(MS * 10);
        most = most.max(engine.len());
    }
    assert!(most <= 110, "{most} keys at once");
}

#[test]
fn an_engine_works_on_after_clear() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 1_000);
    set(&engine, "a", MS * 10_000);
    engine.clear().unwrap();
    assert_eq!(get(&engine, "a"), None);
    set(&engine, "a", MS * 10);
    assert!(get(&engine, "a").is_some());
    clock.advance(MS * 1_000);
    assert_eq!((engine.len(), clock.timers()), (0, 0));
}

#[test]
fn clones_are_the_same_engine() {
    let clock = ManualClock::new();
    let engine = engine(&clock, MS * 1_000);
    let clone = engine.clone();
    set(&engine, "a", MS * 10);
    assert_eq!(clone.set("a", "2", SetOptions::new(MS).if_absent()).ok(), Some(false));
    drop(engine);
    assert_eq!((clone.len(), clock.timers()), (1, 1));
    drop(clone);
    assert_eq!(clock.timers(), 0, "the last handle takes the timer with it");
}

#[test]
fn sweep_intervals_are_whole_milliseconds_in_range() {
    #[track_caller]
    fn check(interval: Duration, allowed: bool) {
        match MemoryEngine::builder().sweep_interval(interval).build() {
            Ok(_) => assert!(allowed, "{interval:?}"),
            Err(Error::Invalid { field, reason }) => {
                assert!(!allowed, "{interval:?}");
                assert_eq!(field, "sweep_interval");
                assert!(reason.contains(&format!("{interval:?}")), "{reason}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    check(MS, true);
    check(MS * 2_147_483_647, true);
    check(Duration::ZERO, false);
    check(Duration::from_micros(999), false);
    check(Duration::from_micros(1_500), false);
    check(Duration::from_nanos(1_000_001), false);
    check(MS * 2_147_483_647 + MS, false);
    check(Duration::MAX, false);
}

#[test]
fn the_default_sweep_is_once_a_minute() {
    let clock = ManualClock::new();
    let engine = MemoryEngine::builder().clock(&clock).build().unwrap();
    set(&engine, "a", MS);
    assert_eq!(clock.next_due(), Some(Duration::from_secs(60)));
}
