//! Scenes about rules and pauses: what a refusal says, how long it holds, and who is woken when it does not.

use super::stage::{FAR, Left, SOON, Stage};
use crate::error::Error;
use crate::rule::Rule;
use crate::valve::CancelToken;
use parking_lot::Mutex;
use std::sync::Arc;

/// The head costs what no rule will have in time; behind it waits one that could start. The head is cancelled, and the slot
/// both need is released, in any order.
pub(super) fn cancelled_head_makes_way() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.rule(Rule::gcra(1, FAR).burst(2)));
    let held = player.start(player.valve.acquire_owned()).unwrap();
    let token = CancelToken::new();
    stage.go(move || held.end());
    let its_token = token.clone();
    stage.plays(&player, move |player| {
        let ended = player.run(player.valve.job().cost(2).cancel(&its_token).acquire());
        assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    });
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.go(move || token.cancel());
    stage.end(Left::Open);
}

/// Each starts when its turn and its hint have come, and not before.
pub(super) fn each_waits_for_its_rate() {
    let mut stage = Stage::new();
    let player = stage.valve(2, |valve| valve.rule(Rule::gcra(1, SOON)));
    let starts = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..3 {
        let starts = Arc::clone(&starts);
        stage.plays(&player, move |player| {
            let running = player.start(player.valve.acquire()).unwrap();
            starts.lock().push(running.permit().admitted_at());
            running.end();
        });
    }
    stage.end(Left::Open);
    let mut starts = starts.lock();
    starts.sort();
    for pair in starts.windows(2) {
        assert!(pair[1].duration_since(pair[0]).unwrap() >= SOON, "{pair:?}");
    }
}

/// The third cannot start before its deadline, and perhaps not the second; nobody starts after it.
pub(super) fn deadline_meets_rate() {
    let mut stage = Stage::new();
    let player = stage.valve(3, |valve| valve.rule(Rule::gcra(1, SOON)));
    for _ in 0..3 {
        stage.plays(&player, |player| {
            match player.run(player.valve.job().max_wait(SOON * 3 / 2).acquire()) {
                Ok(()) | Err(Error::Timeout { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        });
    }
    stage.end(Left::Open);
}

/// Asks that were under way while the pause held come back when it does not: their answer must not keep anybody waiting.
pub(super) fn resume_meets_ask() {
    let mut stage = Stage::new();
    let player = stage.valve(2, |valve| valve);
    stage.plays(&player, |player| {
        player.valve.pause(FAR).unwrap();
        player.valve.resume().unwrap();
    });
    for _ in 0..2 {
        stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    }
    stage.end(Left::Open);
}
