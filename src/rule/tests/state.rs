//! What is kept between decisions: other denominators, damaged values, the lock-free unit.

use super::*;

#[test]
fn a_fraction_of_another_denominator_is_rounded_up_and_carried() {
    check_over(100, 1, 3, 3, (100, 1));
    check_over(100, 1, 3, 6, (100, 2));
    check_over(100, 1, 3, 2, (100, 1));
    check_over(100, 2, 3, 4, (100, 3));
    check_over(100, 2, 3, 1, (101, 0));
    check_over(100, 6, 7, 2, (101, 0));
    check_over(100, 0, 7, 3, (100, 0));
}

#[test]
fn a_damaged_fraction_is_carried_and_never_panics() {
    check_over(100, 7, 3, 3, (102, 1));
    check_over(100, 5, 0, 2, (105, 0));
    check_over(u64::MAX, u32::MAX, 0, u32::MAX, (u64::MAX, 0));
}

#[track_caller]
fn check_over(tat: u64, numerator: u32, denominator: u32, other: u32, expected: (u64, u32)) {
    let state = RuleState::Gcra { tat, numerator, denominator };
    assert_eq!(state.tat_over(other), Some(expected));
}

#[test]
fn a_state_of_the_other_kind_counts_as_fresh() {
    let busy_window = RuleState::Window { start: 0, count: u32::MAX };
    let busy_gcra = RuleState::Gcra { tat: u64::MAX, numerator: 0, denominator: 1 };
    for (rule, state) in [(gcra(1, 1_000, 1), busy_window), (window(1, 1_000), busy_gcra)] {
        let set = set([rule]);
        let mut states = [state];
        assert_eq!(set.admit(&mut states, 7, [1, 1]).granted, 1);
        assert_eq!(set.admit(&mut states, 8, [1]).granted, 0);
    }
}

#[test]
fn damaged_states_refuse_and_never_panic() {
    let far = RuleState::Gcra { tat: u64::MAX, numerator: 9, denominator: 3 };
    let full = RuleState::Window { start: u64::MAX, count: u32::MAX };
    let unaligned = RuleState::Window { start: 2, count: 3 };
    for (rule, state) in [(gcra(3, 1_000, 2), far), (window(3, 1_000), full), (window(3, 1_000), unaligned)] {
        let set = set([rule]);
        let verdict = set.admit(&mut [state], 5, [1]);
        assert_eq!(verdict.granted, 0);
        assert!(verdict.refusal.is_some_and(|refusal| refusal.not_before > 5));
    }
}

#[test]
fn a_single_gcra_rule_is_offered_to_lock_free_stores() {
    let single = set([gcra(300, 1_000, 4)]);
    let compiled = single.quick().unwrap();
    assert_eq!((compiled.number, compiled.n, compiled.d), (single.number(), 10_000, 3));
    assert_eq!(compiled.tolerance, 40_000);
    assert_eq!(set([]).quick().map(|none| none.d), Some(0), "no rule can be kept without a lock too");
    assert!(set([window(1, 1_000)]).quick().is_none());
    assert!(set([gcra(1, 1_000, 1), gcra(2, 1_000, 1)]).quick().is_none());
    assert!(RuleSet::default().quick().is_none());
}

#[test]
fn units_since_a_base_tick_hold_the_exact_tat() {
    let state = RuleState::Gcra { tat: 1_010, numerator: 2, denominator: 3 };
    assert_eq!(state.to_units(1_000, 3), Some(32));
    assert_eq!(RuleState::from_units(32, 1_000, 3), state);
    assert_eq!(state.to_units(1_000, 2), Some(22), "rounded up to another denominator");
    assert_eq!(state.to_units(2_000, 3), Some(0), "before the base is long ago");
    assert_eq!(RuleState::Fresh.to_units(1_000, 3), Some(0));
    let far = RuleState::Gcra { tat: u64::MAX / 2, numerator: 0, denominator: 3 };
    assert_eq!(far.to_units(0, 3), None);
}

#[test]
fn a_state_is_fresh_once_it_changes_no_decision() {
    let interval = SECOND;
    let fraction = RuleState::Gcra { tat: 1_010, numerator: 1, denominator: 3 };
    assert_eq!([1_010, 1_011].map(|now| fraction.is_fresh(now, interval)), [false, true]);
    let whole = RuleState::Gcra { tat: 1_010, numerator: 0, denominator: 3 };
    assert_eq!([1_009, 1_010].map(|now| whole.is_fresh(now, interval)), [false, true]);
    let window = RuleState::Window { start: SECOND, count: 1 };
    assert_eq!([2 * SECOND - 1, 2 * SECOND].map(|now| window.is_fresh(now, interval)), [false, true]);
    assert!(RuleState::Fresh.is_fresh(0, interval));
}

#[test]
fn a_set_shares_its_number_with_its_clones_only() {
    let (one, other) = (set([gcra(1, 1_000, 1)]), set([gcra(1, 1_000, 1)]));
    assert_eq!(one.number(), one.clone().number());
    assert_ne!(one.number(), other.number());
    assert_ne!(one.number(), RuleSet::default().number());
}
