//! Several rules together, and costs.

use crate::error::Error;

use super::*;

/// V11.
#[test]
fn every_rule_holds_by_itself() {
    let expected = [(0, 10), (100 * MS, 1), (200 * MS, 1), (60 * SECOND, 1)];
    check_starts([gcra(10, 1_000, 10), window(12, 60_000)], &[(0, 1, 13)], &expected);
}

/// V12.
#[test]
fn a_job_that_one_rule_refuses_spends_nothing_under_the_others() {
    let (fast, slow) = (gcra(7, 1_000, 7), window(2, 60_000));
    for (rules, refusing) in [([fast.clone(), slow.clone()], 1), ([slow, fast], 0)] {
        let set = set(rules);
        let mut states = fresh(&set);
        assert_eq!(set.admit(&mut states, 5, [1, 1]).granted, 2);
        let before = states.clone();
        let verdict = set.admit(&mut states, 9, [1, 1]);
        assert_eq!(verdict.granted, 0);
        assert_eq!(verdict.refusal, Some(RateRefusal { rule: refusing, not_before: 60 * SECOND }));
        assert_eq!(states, before);
    }
}

#[test]
fn the_refusal_names_the_rule_that_holds_longest_and_the_first_of_equals() {
    let set = set([window(1, 1_000), gcra(1, 3_000, 1), window(1, 3_000)]);
    let mut states = fresh(&set);
    let verdict = set.admit(&mut states, 0, [1, 1]);
    assert_eq!(verdict.refusal, Some(RateRefusal { rule: 1, not_before: 3 * SECOND }));
}

#[test]
fn a_batch_starts_its_longest_prefix_and_no_cheaper_job_behind_it() {
    let set = set([gcra(10, 1_000, 5)]);
    let mut states = fresh(&set);
    let verdict = set.admit(&mut states, 0, [2, 2, 2, 1]);
    assert_eq!(verdict.granted, 2);
    assert_eq!(verdict.refusal, Some(RateRefusal { rule: 0, not_before: 100 * MS }));
}

#[test]
fn without_rules_everything_starts() {
    let set = RuleSet::default();
    let verdict = set.admit(&mut [], u64::MAX, [1, u32::MAX]);
    assert_eq!((verdict.granted, verdict.refusal), (2, None));
    assert_eq!(set.largest_cost(), None);
    assert!(set.check_cost(u32::MAX).is_ok());
}

#[test]
#[should_panic(expected = "one state for each of its rules")]
fn a_missing_state_is_not_taken_for_a_missing_rule() {
    let _ = set([gcra(1, 1_000, 1), window(1, 1_000)]).admit(&mut [RuleState::default()], 0, [1]);
}

/// O25, O26 and O27: what can never start is told so and spends nothing.
#[test]
fn a_cost_above_every_capacity_is_an_error_and_spends_nothing() {
    check_too_large([window(3, 2_000)], 4, (3, "window/2s"), &[(0, 1, Starts); 3]);
    check_too_large(
        [window(10, 60_000)],
        100,
        (10, "window/1min"),
        &[(0, 5, Starts), (0, 5, Starts), (0, 1, Waits(60 * SECOND))],
    );
    check_too_large([gcra(10, 1_000, 10), window(3, 1_000)], 5, (3, "window/1s"), &[(0, 1, Starts); 3]);
    check_too_large([gcra(10, 1_000, 4)], 5, (4, "gcra/1s"), &[(0, 4, Starts)]);
    check_too_large([gcra(10, 1_000, 4), window(4, 1_000)], 5, (4, "gcra/1s"), &[(0, 4, Starts)]);
}

#[track_caller]
fn check_too_large<const N: usize>(
    rules: [Rule; N],
    cost: u32,
    (expected_max, expected_rule): (u32, &str),
    then: &[(u64, u32, Answer)],
) {
    let set = set(rules.clone());
    let Err(Error::CostTooLarge { cost: named, max, rule, .. }) = set.check_cost(cost) else {
        panic!("cost {cost} passes")
    };
    assert_eq!((named, max, &*rule), (cost, expected_max, expected_rule));
    assert!(set.check_cost(max).is_ok());
    let mut asks = vec![(0, cost, Waits(u64::MAX))];
    asks.extend(then);
    check_asks(rules, &asks);
}

#[test]
fn a_cost_of_zero_is_an_error() {
    for set in [RuleSet::default(), set([gcra(1, 1_000, 1)])] {
        let Err(Error::Invalid { field, .. }) = set.check_cost(0) else { panic!("cost 0 passes") };
        assert_eq!(field, "cost");
    }
}

#[test]
fn costs_count_in_full() {
    check_starts([gcra(10, 1_000, 5)], &[(0, 5, 1), (0, 3, 2)], &[(0, 1), (300 * MS, 1), (600 * MS, 1)]);
}
