//! What a refused call is told: exact to the tick, in the rule's own unit, and kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};
use valve::{MemoryStore, Rule};

use super::{Scene, millis, seconds};
use crate::hooked::{Called, Hooked};

#[test]
fn waiting_the_hint_always_grants() {
    let scene = Scene::new(Rule::gcra(1, seconds(3_600)));
    scene.take();
    scene.to(3_599_999);
    assert_eq!(scene.hint(), 1_000);
    scene.to(3_600_000);
    scene.take();

    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let rules = (1..20_000_u32, 1..20_000_000_u64, 1..6_u32, proptest::bool::ANY);
    let pauses = vec(0..3_000_000_u64, 8);
    let check = |((limit, interval, burst, window), pauses): ((u32, u64, u32, bool), Vec<u64>)| {
        let interval = Duration::from_micros(interval);
        let scene = match window {
            true => Scene::new(Rule::fixed_window(limit.min(50), interval)),
            false => Scene::new(Rule::gcra(limit, interval).burst(burst)),
        };
        for pause in pauses {
            scene.clock.advance(Duration::from_micros(pause));
            while scene.valve.try_acquire().is_ok() {}
            let hint = scene.hint();
            scene.clock.advance(Duration::from_micros(hint - 1));
            assert_eq!(scene.hint(), 1, "a tick early");
            scene.clock.advance(Duration::from_micros(1));
            scene.take();
        }
        Ok(())
    };
    TestRunner::new(config).run(&(rules, pauses), check).unwrap();
}

#[test]
fn hints_round_up_to_the_tick() {
    for ms in 1..=333 {
        let scene = Scene::new(Rule::gcra(3, seconds(1)));
        scene.take();
        scene.to(ms);
        let hint = scene.hint();
        assert_eq!(hint, 333_334 - ms * 1_000);
        if ms == 1 {
            assert_eq!(hint.div_ceil(1_000), 333, "in milliseconds, rounded up");
        }
        scene.clock.advance(Duration::from_micros(hint));
        scene.take();
    }
}

#[test]
fn an_exact_wait_is_not_rounded_up() {
    let scene = Scene::new(Rule::gcra(1, seconds(2)));
    scene.take();
    assert_eq!(scene.hint(), 2_000_000);
    scene.to(500);
    assert_eq!(scene.hint(), 1_500_000);
    scene.jobs(1);
    scene.to(10_000);
    scene.check_starts([2_000]);
}

#[test]
fn a_large_cost_waits_only_for_what_is_missing() {
    let scene = Scene::new(Rule::gcra(3, seconds(3)).burst(3));
    scene.jobs(1);
    scene.job(|job| job.cost(3));
    scene.to(10_000);
    scene.check_starts([0, 1_000]);
}

#[test]
fn a_hint_is_in_the_rules_own_unit() {
    let scene = Scene::new(Rule::gcra(2, seconds(60)).burst(2));
    scene.take();
    scene.take();
    assert_eq!(scene.hint(), 30_000_000);
}

#[test]
fn the_end_of_a_window_is_outside_it() {
    for rule in [Rule::from(Rule::fixed_window(1, millis(100))), Rule::gcra(1, millis(100)).into()] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let scene = Scene::with(|valve, clock| {
            let memory = MemoryStore::builder().clock(clock).build();
            let store = Hooked::new(memory, None, move |called| {
                counted.fetch_add(usize::from(called == Called::Admit), Ordering::Relaxed);
                Ok(())
            });
            valve.rule(rule).store(store)
        });
        scene.take();
        scene.to(1);
        assert_eq!(scene.hint(), 99_000);
        calls.store(0, Ordering::Relaxed);
        scene.jobs(1);
        scene.to(1_000);
        scene.check_starts([100]);
        let calls = calls.load(Ordering::Relaxed);
        assert!(calls <= 2, "{calls} calls of the store for one job");
    }
}

#[test]
fn the_hint_is_the_first_instant_with_room() {
    let rules = [
        (Rule::from(Rule::fixed_window(2, seconds(60))), 40_000),
        (Rule::gcra(2, seconds(60)).burst(2).into(), 10_000),
    ];
    for (rule, wait) in rules {
        let scene = Scene::new(rule);
        scene.take();
        scene.to(10_000);
        scene.take();
        scene.to(20_000);
        assert_eq!(scene.hint(), wait * 1_000);
        scene.jobs(1);
        scene.to(100_000);
        scene.check_starts([20_000 + wait]);
    }
}
