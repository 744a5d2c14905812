//! Expiry: not before its time, then wholly.

use super::{Bench, Clause, MINUTE};
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("a key lives until its expiry and not beyond", keys_expire),
    ("an expired key is claimed like a missing one", expired_keys_are_claimed),
    ("a plain set revives an expired key", expired_keys_are_revived),
    ("a plain set replaces the expiry, shorter or longer", expiries_are_replaced),
    ("a refused set if absent leaves the expiry", refused_claims_leave_the_expiry),
    ("keys expire each by itself", keys_expire_by_themselves),
    ("the longest expiry is not cut", long_expiries_are_kept),
];

const MS: Duration = Duration::from_millis(1);

fn keys_expire(bench: &Bench<'_>) {
    let trial = bench.trial();
    for (key, expiry) in [("a", MS), ("b", MS * 50), ("c", MS * 120), ("d", MS * 1_050)] {
        for claimed in ["claimed", "set", "claimed"] {
            let begin = bench.now();
            if claimed == "set" {
                trial.set(key, claimed, expiry);
            } else {
                let won = trial.claim(key, claimed, expiry);
                bench.equal(&won, &true, "a claim of a key that is missing or expired");
            }
            trial.lives(key, claimed, begin, expiry);
            bench.wait(expiry / 2);
            trial.lives(key, claimed, begin, expiry);
            bench.wait((expiry - expiry / 2).saturating_sub(MS));
            trial.lives(key, claimed, begin, expiry);
            trial.expires(key, MS.min(expiry - expiry / 2));
        }
    }
}

fn expired_keys_are_claimed(bench: &Bench<'_>) {
    let trial = bench.trial();
    let expiry = MS * 30;
    trial.set("key", "0", expiry);
    for value in ["1", "2", "3"] {
        // Not read in between: some engines remove only what is read.
        bench.wait(expiry + trial.slack(expiry));
        bench.equal(&trial.claim("key", value, expiry), &true, "a claim of an expired key");
    }
    bench.wait(expiry + trial.slack(expiry));
    bench.equal(&trial.claim("key", "4", MINUTE), &true, "a claim of an expired key");
    trial.reads("key", Some("4"));
    bench.equal(&trial.claim("key", "5", MINUTE), &false, "a second claim");
}

fn expired_keys_are_revived(bench: &Bench<'_>) {
    let trial = bench.trial();
    let expiry = MS * 30;
    trial.set("key", "1", expiry);
    bench.wait(expiry + trial.slack(expiry));
    trial.set("key", "2", MINUTE);
    trial.reads("key", Some("2"));
    bench.wait(expiry);
    trial.reads("key", Some("2"));
    bench.equal(&trial.claim("key", "3", MINUTE), &false, "a claim of a revived key");
}

fn expiries_are_replaced(bench: &Bench<'_>) {
    let trial = bench.trial();
    let (short, long) = (MS * 40, MS * 400);
    trial.set("shorter", "1", long);
    trial.set("shorter", "2", short);
    trial.expires("shorter", short);
    let begin = bench.now();
    trial.set("longer", "1", short);
    trial.set("longer", "2", long);
    bench.wait(short + trial.slack(short));
    trial.lives("longer", "2", begin, long);
    trial.expires("longer", long);
    // Also with the same value, as a lease is extended.
    let mut begin = bench.now();
    trial.set("extended", "1", long);
    for _ in 0..3 {
        bench.wait(long * 2 / 3);
        begin = bench.now();
        trial.set("extended", "1", long);
    }
    bench.wait(long * 2 / 3);
    trial.lives("extended", "1", begin, long);
    trial.expires("extended", long / 3 + MS);
}

fn refused_claims_leave_the_expiry(bench: &Bench<'_>) {
    let trial = bench.trial();
    let expiry = MS * 200;
    let begin = bench.now();
    trial.set("key", "1", expiry);
    for other in [MS, MINUTE] {
        if trial.claim("key", "2", other) {
            return bench.ensure(bench.since(begin) >= expiry, || "a claim of a living key won".to_owned());
        }
    }
    bench.wait(expiry / 2);
    trial.lives("key", "1", begin, expiry);
    trial.expires("key", expiry / 2);
}

fn keys_expire_by_themselves(bench: &Bench<'_>) {
    let trial = bench.trial();
    let keys: Vec<String> = (0..10).map(|number| format!("key {number}")).collect();
    let expiry = |number: usize| MS * if number % 2 == 0 { 30 } else { 60_000 };
    for (number, key) in keys.iter().enumerate() {
        trial.set(key, "1", expiry(number));
    }
    bench.wait(MS * 30 + trial.slack(MS * 30));
    for (number, key) in keys.iter().enumerate() {
        trial.reads(key, (number % 2 == 1).then_some("1"));
    }
}

fn long_expiries_are_kept(bench: &Bench<'_>) {
    let trial = bench.trial();
    let longest = MS * 2_147_483_647;
    trial.set("key", "1", longest);
    trial.reads("key", Some("1"));
    if trial.is_exact() {
        bench.wait(longest - MS);
        trial.reads("key", Some("1"));
        trial.expires("key", MS);
    }
}
