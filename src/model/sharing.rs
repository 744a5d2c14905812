//! Scenes with two valves of one id on one store.

use super::stage::{FAR, Left, Player, Stage};
use crate::error::Error;
use crate::rule::Rule;
use crate::store::MemoryStore;
use crate::valve::CancelToken;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn two(stage: &mut Stage, rule: Option<Rule>) -> [Player; 2] {
    let store = MemoryStore::new();
    [(); 2].map(|()| {
        let (store, rule) = (store.clone(), rule.clone());
        stage.valve(2, move |valve| {
            let valve = valve.store(store);
            match rule {
                Some(rule) => valve.rule(rule),
                None => valve,
            }
        })
    })
}

/// One valve pauses the id and ends the pause; calls on the other, which learned of the pause from a refusal, go on.
pub(super) fn resume_reaches_the_other() {
    let mut stage = Stage::new();
    let [one, two] = two(&mut stage, None);
    stage.plays(&one, |one| {
        one.valve.pause(FAR).unwrap();
        one.valve.resume().unwrap();
    });
    for _ in 0..2 {
        stage.plays(&two, |two| two.run(two.valve.acquire()).unwrap());
    }
    stage.end(Left::Open);
}

/// Both valves have found the quick way. Then three calls come for the two that the rule still admits, some the quick way
/// and some by the lock: at most two start.
pub(super) fn one_budget() {
    let mut stage = Stage::new();
    let [one, two] = two(&mut stage, Some(Rule::gcra(1, FAR).burst(4).into()));
    one.run(one.valve.acquire()).unwrap();
    two.run(two.valve.acquire()).unwrap();
    let started = Arc::new(AtomicU64::new(0));
    for (player, quick) in [(&one, true), (&two, true), (&two, false)] {
        let started = Arc::clone(&started);
        stage.plays(player, move |player| {
            let token = CancelToken::new();
            let call = if quick { player.valve.job() } else { player.valve.job().cancel(&token) };
            match player.run(call.try_acquire()) {
                Ok(()) => started.fetch_add(1, Relaxed),
                Err(Error::WouldWait { .. }) => 0,
                Err(other) => panic!("{other:?}"),
            };
        });
    }
    stage.end(Left::Open);
    let started = started.load(Relaxed);
    assert!(started <= 2, "{started} started on what was left for 2");
}
