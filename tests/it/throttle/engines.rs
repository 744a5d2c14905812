//! Engines as their users see them; the rules each must keep are in the contract suite.

use std::time::Duration;

use valve::{Engine, Error, MemoryEngine, SetOptions, StoreError};

use super::stage::{Stage, work};
use crate::support::{ms, secs};

/// The least that an engine is: four methods.
#[derive(Clone)]
struct Least(MemoryEngine);

impl Engine for Least {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.0.get(key)
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let again = SetOptions::new(options.expiry());
        let again = if options.is_if_absent() { again.if_absent() } else { again };
        assert_eq!((again, again.px()), (options, options.px()));
        self.0.set(key, value, again)
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        self.0.del(key)
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.0.clear()
    }
}

#[test]
fn a_custom_engine_is_four_methods_and_is_given_prefixed_keys() {
    let engine = Least(MemoryEngine::new());
    let builder = || super::stage::Throttle::builder("p:").engine(engine.clone());
    let [one, two] = [builder(), builder()].map(|builder| builder.build().unwrap());
    assert_eq!(one.job("k", |_run| Ok(1)).wait_finish().exec().unwrap(), 1);
    assert!(engine.get("p:k").unwrap().is_some() && engine.get("k").unwrap().is_none());
    assert_eq!(two.job("k", |_run| Ok(2)).exec().unwrap(), valve::Ran::Later);
    one.destroy();
    assert_eq!(engine.0.len(), 1, "it is not the throttle's to clear");
    two.destroy();
}

#[test]
fn one_engine_serves_many_throttles() {
    let stage = Stage::new();
    let engine = MemoryEngine::builder().clock(&stage.clock).build().unwrap();
    let throttle = |prefix: &str| {
        super::stage::Throttle::builder(prefix).window(ms(50)).engine(engine.clone()).build().unwrap()
    };
    let (a, b) = (throttle("a:"), throttle("b:"));
    stage.exec(&a, 0, "42", work(1));
    stage.exec(&b, 0, "42", work(2));
    stage.until(0);
    assert_eq!(stage.traced(&["exec"]), ["0 exec 1: now", "0 exec 2: now"]);
    assert_eq!(engine.len(), 2);
}

#[test]
fn of_threads_that_claim_a_key_one_wins() {
    let engine = MemoryEngine::new();
    let options = SetOptions::new(secs(60)).if_absent();
    let wins: usize = std::thread::scope(|scope| {
        let claims = |_| scope.spawn(|| usize::from(engine.set("k", "1", options).unwrap()));
        let threads: Vec<_> = (0..64).map(claims).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn steady_new_keys_do_not_put_the_sweep_off() {
    let stage = Stage::new();
    let engine = MemoryEngine::builder().clock(&stage.clock).sweep_interval(secs(1)).build().unwrap();
    let mut most = 0;
    for number in 0..500 {
        engine.set(&format!("key {number}"), "1", SetOptions::new(ms(50))).unwrap();
        stage.clock.advance(ms(10));
        most = most.max(engine.len());
    }
    assert!((50..=110).contains(&most), "{most} keys at once");
}

#[test]
fn the_sweep_interval_is_refused_by_name() {
    for interval in [Duration::ZERO, Duration::from_micros(1_500), ms(1 << 31)] {
        match MemoryEngine::builder().sweep_interval(interval).build() {
            Err(Error::Invalid { field, .. }) => assert_eq!(field, "sweep_interval"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_hundred_thousand_keys_leave_nothing() {
    let stage = Stage::new();
    let engine = MemoryEngine::builder().clock(&stage.clock).sweep_interval(ms(500)).build().unwrap();
    let throttle = stage.builder(100).engine(engine.clone()).build().unwrap();
    for key in 0..100_000 {
        let _ = throttle.job(&format!("key {key}"), |_run| Ok(0)).exec().unwrap();
    }
    assert_eq!((throttle.stats().keys, engine.len()), (100_000, 100_000));
    stage.until(1_000);
    let stats = throttle.stats();
    assert_eq!((stats.keys, stats.timers, engine.len()), (0, 0, 0));
    assert_eq!(stage.clock.timers(), 0);
}
