//! Threads that claim at once: one wins.

use super::{Bench, Clause, MINUTE};
use crate::throttle::SetOptions;
use std::sync::{Arc, Barrier};

pub(super) const RULES: &[Clause] = &[
    ("of threads that claim a key at once exactly one wins, and its value stays", one_claim_wins),
    ("threads on different keys do not disturb each other", threads_are_apart),
];

const THREADS: usize = 64;
const ROUNDS: usize = 5;

/// Has every thread do something at the same moment; gives what each got.
fn at_once<T: Send>(bench: &Bench<'_>, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (barrier, act) = (Barrier::new(THREADS), &act);
    std::thread::scope(|scope| {
        let barrier = &barrier;
        let spawn = |number| {
            scope.spawn(move || {
                barrier.wait();
                act(number)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results
            .map(|result| {
                result.unwrap_or_else(|_| {
                    panic!("the engine panicked while its contract was checked: {}", bench.rule)
                })
            })
            .collect()
    })
}

fn one_claim_wins(bench: &Bench<'_>) {
    let trial = bench.trial();
    let engine = &Arc::clone(&trial.engine);
    for round in 0..ROUNDS {
        let key = &format!("key {round}");
        let claims = at_once(bench, |number| {
            engine.set(key, &number.to_string(), SetOptions::new(MINUTE).if_absent())
        });
        let claims: Vec<bool> = claims.into_iter().map(|claim| bench.done(claim)).collect();
        let winners: Vec<usize> = (0..THREADS).filter(|&number| claims[number]).collect();
        bench.ensure(winners.len() == 1, || format!("{winners:?} won"));
        trial.reads(key, Some(&winners[0].to_string()));
    }
}

fn threads_are_apart(bench: &Bench<'_>) {
    let trial = bench.trial();
    let engine = &Arc::clone(&trial.engine);
    let answers = at_once(bench, |number| {
        let key = format!("key {number}");
        let options = SetOptions::new(MINUTE);
        (0..10)
            .map(|value| (engine.set(&key, &value.to_string(), options), engine.get(&key)))
            .collect::<Vec<_>>()
    });
    for answers in answers {
        for (value, (set, get)) in answers.into_iter().enumerate() {
            bench.equal(&bench.done(set), &true, "a plain set says whether it wrote");
            bench.equal(&bench.done(get), &Some(value.to_string()), "what its own thread reads next");
        }
    }
}
