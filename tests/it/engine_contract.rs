//! The contract suite for engines: `MemoryEngine` keeps it, and each engine that breaks a rule is caught at that rule.

mod broken;

use broken::{Broken, Fault};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use valve::MemoryEngine;
use valve::testing::{ManualClock, engine_contract};

#[test]
fn the_memory_engine_keeps_the_contract() {
    let clock = ManualClock::new();
    engine_contract(|| on(&clock), |length| advance(&clock, length));
}

#[test]
fn the_memory_engine_keeps_the_contract_on_the_systems_clock() {
    engine_contract(MemoryEngine::new, sleep);
}

#[test]
fn the_memory_engine_keeps_the_contract_while_it_sweeps_all_the_time() {
    let interval = Duration::from_millis(1);
    engine_contract(|| MemoryEngine::builder().sweep_interval(interval).build().unwrap(), sleep);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the engine's clock is the system's here, and only that makes it go on"
)]
fn sleep(length: Duration) {
    std::thread::sleep(length);
}

fn on(clock: &ManualClock) -> MemoryEngine {
    MemoryEngine::builder().clock(clock).build().unwrap()
}

fn advance(clock: &ManualClock, length: Duration) {
    clock.advance(length);
}

/// The message of the panic with which the suite ends on such an engine.
fn breach(fault: Fault) -> Option<String> {
    let clock = ManualClock::new();
    let suite = || engine_contract(|| Broken::new(on(&clock), fault), |length| advance(&clock, length));
    let panic = catch_unwind(AssertUnwindSafe(suite)).err()?;
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}

#[test]
fn a_wrapper_that_breaks_nothing_passes() {
    assert_eq!(breach(Fault::None), None);
}

#[test]
fn an_engine_that_never_clears_passes() {
    assert_eq!(breach(Fault::NeverClears), None);
}

#[test]
fn each_broken_engine_is_caught_at_the_rule_it_breaks() {
    let expected = [
        (Fault::MissingIsEmpty, "a missing key reads as none"),
        (Fault::ForgetsAll, "what is set is read back, whatever it is"),
        (Fault::ValuesAreTrimmed, "what is set is read back, whatever it is"),
        (Fault::ValuesAreCut, "what is set is read back, whatever it is"),
        (Fault::KeysAreOne, "what is set is read back, whatever it is"),
        (Fault::KeysAreFolded, "different keys share nothing"),
        (Fault::KeysAreCut, "different keys share nothing"),
        (Fault::DelTakesPatterns, "different keys share nothing"),
        (Fault::ReadingRemoves, "different keys share nothing"),
        (Fault::ReadingProlongs, "reading changes nothing"),
        (Fault::SetLeaves, "a plain set always overwrites and says so"),
        (Fault::SetSaysFalse, "what is set is read back, whatever it is"),
        (Fault::SetSaysWhetherNew, "a plain set always overwrites and says so"),
        (Fault::ClaimsNeverWin, "what is set is read back, whatever it is"),
        (Fault::ClaimsAlwaysWin, "a set if absent leaves what is there"),
        (Fault::ClaimsWinUnwritten, "what is set is read back, whatever it is"),
        (Fault::LostClaimsWrite, "a set if absent leaves what is there"),
        (Fault::LostClaimsProlong, "a refused set if absent leaves the expiry"),
        (Fault::DelLeaves, "different keys share nothing"),
        (Fault::DelOnlyExpires, "different keys share nothing"),
        (Fault::DelOfMissingFails, "removing a missing key is fine"),
        (Fault::ClearsHalf, "clear removes all keys of the engine or none, and it goes on working"),
        (Fault::DeadAfterClear, "clear removes all keys of the engine or none, and it goes on working"),
        (Fault::LivesForEver, "reading changes nothing"),
        (Fault::EndsEarly, "a key lives until its expiry and not beyond"),
        (Fault::EndsLate, "reading changes nothing"),
        (Fault::SecondsOnly, "reading changes nothing"),
        (Fault::ExpiredStayClaimed, "a key lives until its expiry and not beyond"),
        (Fault::KeepsExpiry, "a plain set replaces the expiry, shorter or longer"),
        (Fault::NeverShortens, "a plain set replaces the expiry, shorter or longer"),
        (Fault::SecondClaimLoses, "different keys share nothing"),
        (Fault::ExpiryIsCut, "the longest expiry is not cut"),
        (Fault::Races, "of threads that claim a key at once exactly one wins, and its value stays"),
        (Fault::AnswersAreMixed, "threads on different keys do not disturb each other"),
    ];
    let mut wrong = Vec::new();
    for (fault, rule) in expected {
        let breach = breach(fault);
        if !breach.as_deref().is_some_and(|message| message.contains(rule)) {
            wrong.push(format!("{fault:?} should be caught at {rule:?}: {breach:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let tried: Vec<Fault> = expected.iter().map(|(fault, _)| *fault).collect();
    let untried: Vec<_> = Fault::ALL.iter().filter(|fault| !tried.contains(fault)).collect();
    assert_eq!(untried, [&Fault::NeverClears], "{untried:?}");
}
