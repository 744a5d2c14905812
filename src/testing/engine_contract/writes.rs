//! Writing, claiming, removing.

use super::{Bench, Clause, MINUTE};

pub(super) const RULES: &[Clause] = &[
    ("a plain set always overwrites and says so", plain_sets_overwrite),
    ("a set if absent claims what is missing", missing_keys_are_claimed),
    ("a set if absent leaves what is there", living_keys_are_left),
    ("a removed key is missing", removed_keys_are_missing),
    ("removing a missing key is fine", missing_keys_are_removed),
    ("clear removes all keys of the engine or none, and it goes on working", clearing),
];

fn plain_sets_overwrite(bench: &Bench<'_>) {
    let trial = bench.trial();
    for value in ["1", "2", "2", "10", "3"] {
        trial.set("key", value, MINUTE);
        trial.reads("key", Some(value));
    }
    trial.claim("claimed", "1", MINUTE);
    trial.set("claimed", "2", MINUTE);
    trial.reads("claimed", Some("2"));
}

fn missing_keys_are_claimed(bench: &Bench<'_>) {
    let trial = bench.trial();
    for key in ["a", "b", "c"] {
        bench.equal(&trial.claim(key, "1", MINUTE), &true, "the first claim of a key");
        trial.reads(key, Some("1"));
    }
}

fn living_keys_are_left(bench: &Bench<'_>) {
    let trial = bench.trial();
    trial.set("set", "1", MINUTE);
    trial.claim("claimed", "1", MINUTE);
    for key in ["set", "claimed"] {
        for value in ["2", "1", ""] {
            bench.equal(&trial.claim(key, value, MINUTE), &false, "a claim of a key that is there");
            trial.reads(key, Some("1"));
        }
    }
}

fn removed_keys_are_missing(bench: &Bench<'_>) {
    let trial = bench.trial();
    for _ in 0..3 {
        trial.set("other", "1", MINUTE);
        trial.set("key", "1", MINUTE);
        trial.del("key");
        trial.reads("key", None);
        trial.reads("other", Some("1"));
        bench.equal(&trial.claim("key", "2", MINUTE), &true, "a claim of a removed key");
        trial.reads("key", Some("2"));
        trial.del("key");
    }
}

fn missing_keys_are_removed(bench: &Bench<'_>) {
    let trial = bench.trial();
    trial.set("other", "1", MINUTE);
    for key in ["missing", "missing", "", "othe", "other "] {
        trial.del(key);
        trial.reads(key, None);
    }
    trial.reads("other", Some("1"));
}

fn clearing(bench: &Bench<'_>) {
    let trial = bench.trial();
    bench.done(trial.engine.clear());
    let keys: Vec<String> = (0..100).map(|number| format!("key {number}")).collect();
    for key in &keys {
        trial.set(key, "1", MINUTE);
    }
    bench.done(trial.engine.clear());
    let left = keys.iter().filter(|key| trial.get(key).is_some()).count();
    bench.ensure(left == 0 || left == keys.len(), || format!("{left} of {} keys are left", keys.len()));
    for key in &keys {
        let claimed = trial.claim(key, "2", MINUTE);
        bench.equal(&claimed, &(left == 0), "a claim after clear");
        trial.reads(key, Some(if left == 0 { "2" } else { "1" }));
        trial.set(key, "3", MINUTE);
        trial.reads(key, Some("3"));
    }
}
