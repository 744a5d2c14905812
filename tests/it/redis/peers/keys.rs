//! Keys in the wrong place or without an end.

use std::thread;

use valve::{Rule, Store, Valve};

use crate::redis::nap;
use crate::redis::server::Server;
use crate::redis::world::{Counter, store, valve};
use crate::support::{Random, ms, secs};

/// On a cluster a script's keys must fall into one slot, whatever the id.
#[test]
fn all_keys_of_an_id_fall_into_one_slot() {
    let server = Server::start();
    let cluster = Server::with(&["--cluster-enabled", "yes"]);
    let store = store(&server.url());
    let long = "x".repeat(10_000);
    let ids = ["a", "a{b}c", "{", "}", "}{", "{}", "%", "%7B", "", " ", "grün 🦀", "a\nb", "\u{0}", &long];
    let mut slots = std::collections::HashSet::new();
    for id in ids {
        server.cli(&["FLUSHALL"]);
        let counter =
            Counter::of(id, &store, [Rule::gcra(1, secs(1)).into(), Rule::fixed_window(1, secs(1)).into()]);
        assert_eq!(counter.take(1, secs(60), &[1]).unwrap().granted, 1, "{id:?}");
        counter.pause(secs(60)).unwrap();
        let mut keys = server.keys();
        keys.retain(|key| key.starts_with(b"valve:"));
        assert_eq!(keys.len(), 2, "{id:?}: {keys:?}");
        let own: Vec<_> = keys.iter().map(|key| cluster.ask(&[b"CLUSTER", b"KEYSLOT", key]).int()).collect();
        assert_eq!(own[0], own[1], "{id:?}: {keys:?}");
        slots.insert(own[0]);
    }
    assert!(slots.len() > 5, "different ids are spread: {slots:?}");
}

#[test]
fn ids_that_look_alike_share_nothing() {
    let server = Server::start();
    let store = store(&server.url());
    for id in ["a", "a:l", "{a}", "a}", "%7Ba%7D", "A", "a "] {
        let counter = Counter::of(id, &store, [Rule::fixed_window(1, secs(3_600)).into()]);
        assert!(counter.admits(), "{id:?} shares another's count");
        assert!(!counter.admits(), "{id:?}");
    }
    assert!(store.open(&"x".repeat(20_000)).is_err(), "an id without bounds");
}

/// A companion key was left for ever when its main key had gone.
#[test]
fn every_key_has_an_end_at_every_sample() {
    let server = Server::start();
    let store = store(&server.url());
    let build = |id: &str, number: u32| {
        let rule = Rule::gcra(50 + number, secs(1)).burst(5);
        Valve::builder(id).store(store.clone()).rule(rule).global_concurrency(3, ms(300)).build().unwrap()
    };
    let valves = [
        build("one", 0),
        build("two", 1),
        valve(&store).rule(Rule::fixed_window(20, ms(250))).build().unwrap(),
    ];
    thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|number: usize| {
                let valve = &valves[number % 3];
                scope.spawn(move || {
                    let mut random = Random::new(number as u64);
                    for _ in 0..40 {
                        match random.below(10) {
                            0 => valve.pause(ms(random.below(50))).unwrap(),
                            1 => valve.resume().unwrap(),
                            _ => drop(valve.job().max_wait(ms(100)).run(|_| nap(random.below(30)))),
                        }
                    }
                })
            })
            .collect();
        let mut samples = 0;
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            for key in server.keys().iter().filter(|key| key.starts_with(b"valve:")) {
                let left = server.ask(&[b"PTTL", key]).int();
                assert!(left >= 0 || left == -2, "{} has no end: {left}", String::from_utf8_lossy(key));
                samples += 1;
            }
        }
        assert!(samples > 50, "{samples} samples");
    });
}
