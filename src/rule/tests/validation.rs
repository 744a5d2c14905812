//! What a rule set refuses, and what its rules are called.

use std::time::Duration;

use crate::error::Error;

use super::*;

const TEN_YEARS: Duration = Duration::from_secs(3_650 * 24 * 3_600);
const S: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_micros(1);

#[test]
fn numbers_out_of_range_are_refused_with_field_and_fix() {
    let too_long = TEN_YEARS + TICK;
    let sub_tick = Duration::from_nanos(1_500);
    check_invalid([Rule::gcra(0, S).into()], "rule 1 (gcra/1s): limit", "at least 1");
    check_invalid([Rule::fixed_window(0, S).into()], "rule 1 (window/1s): limit", "at least 1");
    check_invalid([Rule::gcra(1, S).burst(0).into()], "rule 1 (gcra/1s): burst", "at least 1");
    check_invalid([Rule::gcra(1, Duration::ZERO).into()], "rule 1 (gcra): interval", "at least 1us");
    check_invalid(
        [Rule::fixed_window(1, Duration::ZERO).into()],
        "rule 1 (window): interval",
        "at least 1us",
    );
    check_invalid(
        [Rule::gcra(1, sub_tick).into()],
        "rule 1 (gcra): interval",
        "whole number of microseconds",
    );
    check_invalid([Rule::gcra(1, too_long).into()], "rule 1 (gcra): interval", "at most 3650 days");
    check_invalid([Rule::fixed_window(1, Duration::MAX).into()], "rule 1 (window): interval", "3650 days");
}

#[test]
fn bursts_that_cannot_be_computed_exactly_are_refused_with_the_largest_that_can() {
    // d = 4,294,967,291, a prime: (2_097_152 + 1) * d > 2^53 >= 2_097_152 * d.
    let prime = |burst| [Rule::gcra(4_294_967_291, S).burst(burst).into()];
    check_invalid(prime(2_097_152), "rule 1 (gcra/1s): burst", "use at most 2097151");
    check_valid(prime(2_097_151));
    let yearly = |burst| [Rule::gcra(1, TEN_YEARS / 10).burst(burst).into()];
    check_invalid(yearly(11), "rule 1 (gcra/8760h): burst", "use at most 10");
    check_valid(yearly(10));
}

#[test]
fn the_largest_numbers_are_accepted() {
    check_valid([Rule::gcra(1, TEN_YEARS).into()]);
    check_valid([Rule::fixed_window(u32::MAX, TEN_YEARS).into()]);
    check_valid([Rule::gcra(u32::MAX, TICK).into()]);
    check_valid([Rule::gcra(1, TICK).burst(u32::MAX).into()]);
}

#[test]
fn names_are_refused_with_field_and_fix() {
    let named = |name: &str| [Rule::gcra(1, S).named(name).into()];
    check_invalid(named(""), "rule 1 (gcra/1s): name", "1 to 64 bytes");
    check_invalid(named(&"n".repeat(65)), "rule 1 (gcra/1s): name", "at most 64");
    check_invalid(named(&"\u{e9}".repeat(33)), "rule 1 (gcra/1s): name", "66 bytes");
    check_invalid(named("a\nb"), "rule 1 (gcra/1s): name", "control character");
    check_invalid([Rule::fixed_window(1, S).named("a\0").into()], "rule 1 (window/1s): name", "control");
    check_valid(named(&"n".repeat(64)));
    check_valid(named("\u{e9} #2:/"));
}

#[test]
fn a_field_is_named_by_the_rule_it_belongs_to() {
    let good = Rule::gcra(1, S);
    check_invalid([good.clone().into(), good.clone().burst(0).into()], "rule 2 (gcra/1s): burst", "0 would");
    check_invalid([good.into(), Rule::gcra(0, S).named("api").into()], "rule 2 (api): limit", "0 would");
}

#[test]
fn the_same_name_twice_is_refused_unless_the_kind_differs_or_the_windows_interval() {
    let hour = Duration::from_secs(3_600);
    let gcra = |interval| -> Rule { Rule::gcra(1, interval).named("api").into() };
    let window = |interval| -> Rule { Rule::fixed_window(1, interval).named("api").into() };
    check_invalid([gcra(S), gcra(S)], "rule 2 (api): name", "earlier rule of this kind");
    check_invalid([gcra(S), gcra(hour)], "rule 2 (api): name", "earlier rule of this kind");
    check_invalid([window(S), gcra(S), window(S)], "rule 3 (api): name", "earlier rule of this kind");
    check_valid([gcra(S), window(S), window(hour)]);
}

#[test]
fn at_most_sixteen_rules_fit() {
    let rules = |count| -> Vec<Rule> { (0..count).map(|_| Rule::gcra(1, S).into()).collect() };
    check_valid(rules(16));
    check_invalid(rules(17), "rules", "at most 16");
}

#[track_caller]
fn check_valid(rules: impl IntoIterator<Item = Rule>) {
    set(rules);
}

#[track_caller]
fn check_invalid(rules: impl IntoIterator<Item = Rule>, expected_field: &str, fix: &str) {
    let Err(Error::Invalid { field, reason, .. }) = RuleSet::new(rules.into_iter().collect()) else {
        panic!("accepted")
    };
    assert_eq!(field, expected_field);
    assert!(reason.contains(fix), "{reason}");
}

#[test]
fn an_unnamed_rule_is_known_by_kind_and_interval() {
    let gcra = |us| Rule::gcra(1, Duration::from_micros(us)).into();
    check_identity(gcra(1_000_000), "gcra/1s", "gcra/1s");
    check_identity(gcra(3_600_000_000), "gcra/1h", "gcra/1h");
    check_identity(gcra(86_400_000_000), "gcra/24h", "gcra/24h");
    check_identity(gcra(60_000_000), "gcra/1min", "gcra/1min");
    check_identity(gcra(90_000_000), "gcra/90s", "gcra/90s");
    check_identity(gcra(1_500_000), "gcra/1500ms", "gcra/1500ms");
    check_identity(gcra(1_500), "gcra/1500us", "gcra/1500us");
    check_identity(Rule::fixed_window(9, Duration::from_secs(3_600)).into(), "window/1h", "window/1h");
}

#[test]
fn a_named_rule_is_known_by_kind_and_name_and_a_window_by_its_interval_too() {
    check_identity(Rule::gcra(1, S).named("api").into(), "api", "gcra:api");
    check_identity(Rule::fixed_window(1, S).named("api").into(), "api", "window/1s:api");
    check_identity(Rule::gcra(1, S).named("gcra/1s").into(), "gcra/1s", "gcra:gcra/1s");
}

#[track_caller]
fn check_identity(rule: Rule, name: &str, key: &str) {
    let set = set([rule]);
    assert_eq!((&**set.name(0), set.key(0)), (name, key));
}

#[test]
fn unnamed_rules_are_told_apart_by_order_among_their_equals_only() {
    let rules: [Rule; 5] = [
        Rule::gcra(1, S).into(),
        Rule::fixed_window(1, S).into(),
        Rule::gcra(2, S).into(),
        Rule::gcra(2, S * 2).into(),
        Rule::gcra(3, S * 1).into(),
    ];
    let set = set(rules);
    let keys: Vec<&str> = (0..set.len()).map(|rule| set.key(rule)).collect();
    assert_eq!(keys, ["gcra/1s", "window/1s", "gcra/1s#2", "gcra/2s", "gcra/1s#3"]);
    assert_eq!(&**set.name(2), "gcra/1s#2");
}

#[test]
fn a_set_tells_what_its_rules_were_given() {
    let set = set([gcra(10, 1_000, 4), window(7, 60_000)]);
    assert_eq!((set.len(), set.is_empty(), RuleSet::default().is_empty()), (2, false, true));
    assert_eq!((set.limit(0), set.interval(0), set.burst(0)), (10, S, Some(4)));
    assert_eq!((set.limit(1), set.interval(1), set.burst(1)), (7, S * 60, None));
    assert_eq!(set.largest_cost(), Some((4, 0)));
}
