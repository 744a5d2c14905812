//! Scenes about the slots of one valve: who gets one when it becomes free.

use super::stage::{FAR, Left, SOON, Stage};
use crate::error::Error;
use crate::rule::Rule;
use crate::valve::CancelToken;

/// Three calls share one slot.
pub(super) fn handed_on() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    for _ in 0..3 {
        stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    }
    stage.end(Left::Open);
}

/// The slot was taken the quick way, so its release sees only the word; one call joins just then, and a quick one comes by.
pub(super) fn release_meets_join() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    player.run(player.valve.acquire()).unwrap();
    let held = player.start(player.valve.acquire_owned()).unwrap();
    stage.go(move || held.end());
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.plays(&player, |player| match player.run(player.valve.try_acquire()) {
        Ok(()) | Err(Error::WouldWait { .. }) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.end(Left::Open);
}

/// Whoever loses the race for the first in line, the slot goes on to the second.
pub(super) fn cancel_meets_grant() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    let token = CancelToken::new();
    stage.go(move || held.end());
    let its_token = token.clone();
    stage.plays(&player, move |player| match player.run(player.valve.job().cancel(&its_token).acquire()) {
        Ok(()) | Err(Error::Cancelled) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.go(move || token.cancel());
    stage.end(Left::Open);
}

pub(super) fn deadline_meets_grant() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    stage.go(move || held.end());
    stage.plays(&player, |player| match player.run(player.valve.job().max_wait(SOON).acquire()) {
        Ok(()) | Err(Error::Timeout { .. }) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.job().max_wait(FAR).acquire()).unwrap());
    stage.end(Left::Open);
}

/// One of higher priority joins to take the next answer, while others ask; it must not stay behind.
pub(super) fn try_meets_turn() {
    let mut stage = Stage::new();
    let player = stage.valve(2, |valve| valve);
    for _ in 0..2 {
        stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    }
    for priority in [0, 5] {
        stage.plays(&player, move |player| {
            match player.run(player.valve.job().priority(priority).try_acquire()) {
                Ok(()) | Err(Error::WouldWait { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        });
    }
    stage.end(Left::Open);
}

/// A quick call holds the slot while the store refuses it; the one that finds the slot taken meanwhile must hear of it, or
/// nobody sets a timer for its start.
pub(super) fn quick_refusal_meets_join() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.rule(Rule::gcra(1, SOON)));
    player.run(player.valve.acquire()).unwrap();
    stage.plays(&player, |player| match player.run(player.valve.try_acquire()) {
        Ok(()) | Err(Error::WouldWait { .. }) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.end(Left::Open);
}
