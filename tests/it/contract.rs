//! The contract suite for stores: `MemoryStore` keeps it, and each store that breaks a rule is caught at that rule.

mod broken;

use broken::{Broken, Fault};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use valve::MemoryStore;
use valve::testing::{ManualClock, store_contract};

#[test]
fn the_memory_store_keeps_the_contract() {
    let clock = ManualClock::new();
    store_contract(
        || MemoryStore::builder().clock(&clock).build(),
        |length| {
            clock.advance(length);
        },
    );
}

#[test]
fn the_memory_store_keeps_the_contract_from_any_time_on() {
    let clock = ManualClock::new();
    clock.advance(Duration::from_micros(1_764_529_329_876_543));
    store_contract(
        || MemoryStore::builder().clock(&clock).build(),
        |length| {
            clock.advance(length);
        },
    );
}

#[test]
fn the_memory_store_keeps_the_contract_on_the_systems_clock() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the store's clock is the system's here, and only that makes it go on"
    )]
    store_contract(MemoryStore::new, std::thread::sleep);
}

/// The message of the panic with which the suite ends on such a store.
fn breach(fault: Fault) -> Option<String> {
    let clock = ManualClock::new();
    let store = || Broken::new(MemoryStore::builder().clock(&clock).build(), fault);
    let suite = || {
        store_contract(store, |length| {
            clock.advance(length);
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(suite)).err()?;
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}

#[test]
fn a_wrapper_that_breaks_nothing_passes() {
    assert_eq!(breach(Fault::None), None);
}

#[test]
fn each_broken_store_is_caught_at_the_rule_it_breaks() {
    let expected = [
        (Fault::OpensAreApart, "two opens of one id share their counts"),
        (Fault::IdsAreOne, "different ids share nothing"),
        (Fault::IdsAreCut, "different ids share nothing"),
        (Fault::AnswersAreMixed, "two opens of one id share their counts"),
        (Fault::RefusalsLinger, "stamps go with the store's clock, and never back"),
        (Fault::StampsGoBack, "stamps go with the store's clock, and never back"),
        (Fault::StampsStand, "stamps go with the store's clock, and never back"),
        (Fault::FailsLate, "an ask whose deadline has passed is answered, or changes nothing and says so"),
        (Fault::OneAtATime, "without rules everything starts"),
        (Fault::SkipsTheRefused, "nobody in a batch overtakes"),
        (Fault::CostsAreOne, "nobody in a batch overtakes"),
        (Fault::RefusalsCost, "nobody in a batch overtakes"),
        (Fault::FirstRuleIsSpent, "all rules or none are spent"),
        (Fault::HintsAreShort, "two opens of one id share their counts"),
        (Fault::HintsAreMilliseconds, "costs count"),
        (Fault::LimitsOfTheFirst, "a window is known by its interval as well as its name"),
        (Fault::PausesLeakNoRules, "nothing starts while a pause holds, whatever its rules"),
        (Fault::PausesEndEarly, "nothing starts while a pause holds, whatever its rules"),
        (Fault::PausesCost, "a pause spends nothing"),
        (Fault::PausesReplace, "a pause only makes a longer one"),
        (Fault::PausesAdd, "a pause only makes a longer one"),
        (Fault::ResumeOfTheFirstOnly, "resume ends any pause"),
        (Fault::ResumeShortens, "resume ends any pause"),
        (Fault::PausesAreLocal, "a pause holds for its id, whoever opened it, and for no other"),
        (Fault::SlotsAreForOne, "slots are taken with the ask, as many as are free"),
        (Fault::SlotsAreLeftOut, "slots are taken with the ask, as many as are free"),
        (Fault::RefusedHold, "slots are taken with the ask, as many as are free"),
        (Fault::SlotLimitOfTheFirst, "the limit on slots is the asker's own"),
        (Fault::ReleasesAll, "slots are taken with the ask, as many as are free"),
        (Fault::ReleasesLater, "releases in an ask are applied before it is decided"),
        (Fault::ReleasesIfGranted, "releases in an ask are applied even if it is refused"),
        (Fault::SlotlessSpend, "a job without a slot spends nothing, one without budget takes no slot"),
        (Fault::LeasesStay, "a lease ends by itself, at its end and not before"),
        (Fault::LeasesEndEarly, "a lease ends by itself, at its end and not before"),
        (Fault::RenewsNothing, "renewing makes a lease last its full length from then"),
        (Fault::RenewsAnything, "release ends what it names and nothing else"),
        (Fault::Revives, "renewing never revives"),
        (Fault::HeldIsMixed, "release ends what it names and nothing else"),
        (Fault::PausesStopRenewals, "releases in an ask are applied even if it is refused"),
        (Fault::FencesRepeat, "fencing tokens grow strictly, also above the asker's floor"),
        (Fault::FencesIgnoreTheFloor, "fencing tokens grow strictly, also above the asker's floor"),
        (Fault::NoticesGoAround, "notices are of the id that is watched"),
        (Fault::NoticesLie, "notices are of the id that is watched"),
        (Fault::Races, "threads that ask at once keep the rates together"),
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
    assert!(untried.is_empty(), "{untried:?}");
}
