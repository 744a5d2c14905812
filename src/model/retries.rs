//! Scenes about jobs that are tried again: their place, their back-off, and who waits for them.

use super::stage::{FAR, Left, Player, SOON, Stage};
use crate::error::Error;
use crate::valve::{CancelToken, Retry, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Tries a job twice, `wait` apart; `attempt` runs within each attempt.
fn twice(
    player: &Player,
    token: &CancelToken,
    wait: Duration,
    mut attempt: impl FnMut(u32),
) -> Result<u32, Error> {
    player.valve.job().cancel(token).retry(Retry::times(1)).run(|_, number| {
        let running = player.start(Ok(())).unwrap();
        super::stage::step();
        attempt(number);
        running.end();
        if number == 1 { Step::After(wait, Error::WouldDeadlock) } else { Step::Done(number) }
    })
}

/// The slot comes free with the retry in line: whoever waited by then called later, and starts later.
pub(super) fn at_once_keeps_its_place() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let started = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&started);
    stage.plays(&player, move |player| {
        let mut waited = false;
        let tried = twice(player, &CancelToken::new(), Duration::ZERO, |number| match number {
            1 => waited = player.valve.stats().queued > 0,
            _ => assert!(!(waited && seen.load(Relaxed)), "one that called later came first"),
        });
        assert_eq!(tried.unwrap(), 2);
    });
    stage.plays(&player, move |player| {
        let running = player.start(player.valve.acquire()).unwrap();
        started.store(true, Relaxed);
        running.end();
    });
    stage.end(Left::Open);
}

/// The back-off ends, another call comes and goes, and the job is cancelled, in any order.
pub(super) fn cancel_meets_back_off() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let token = CancelToken::new();
    let its_token = token.clone();
    stage.plays(&player, move |player| match twice(player, &its_token, SOON, |_| {}) {
        Ok(2) => {}
        Err(Error::Cancelled) => player.ended(&Error::Cancelled),
        other => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.go(move || token.cancel());
    stage.end(Left::Open);
}

/// It would never end: closing must reach it, wherever it is.
pub(super) fn close_meets_back_off() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    stage.plays(&player, |player| match twice(player, &CancelToken::new(), FAR, |_| {}) {
        Err(Error::Closed) => {}
        other => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.valve.close());
    stage.end(Left::Closed);
}

/// A drain waits for what backs off. It lets no first attempt begin.
pub(super) fn drain_meets_back_off() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let owed = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&owed);
    stage.plays(&player, move |player| {
        let mut tried = twice(player, &CancelToken::new(), SOON, |number| done.store(number == 1, Relaxed));
        if matches!(tried, Err(Error::Closed)) && !done.load(Relaxed) {
            tried = Ok(2);
        }
        assert_eq!(tried.unwrap(), 2);
    });
    stage.plays(&player, move |player| {
        player.valve.drain(Duration::MAX).unwrap();
        assert!(!owed.load(Relaxed), "drained, and yet somebody is to be tried again");
    });
    stage.end(Left::Closed);
}
