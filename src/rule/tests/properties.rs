//! Random rules, costs and arrivals over virtual hours.

use proptest::collection::vec;
use proptest::prelude::*;

use super::reference::{Numbers, Reference};
use super::*;
use crate::rule::Verdict;

fn settings() -> ProptestConfig {
    ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() }
}

/// When the next ask comes.
#[derive(Debug, Clone, Copy)]
enum Next {
    AtOnce,
    AtTheHint,
    OneTickBeforeTheHint,
    After(u64),
    /// The clock steps back.
    Before(u64),
}

/// The costs asked for, to be brought into range by [`cost`], and when to ask again.
type Step = (Vec<u32>, Next);

fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 1..=20_u32, 2 => 1..=100_000_u32, 1 => 1..=u32::MAX]
}

fn interval_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => (1..=600_u64).prop_map(|tenths| tenths * 100 * MS),
        2 => 1..=20 * SECOND,
        1 => 1..=1_000_u64,
        1 => 1..=36_000 * SECOND
    ]
}

fn burst() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(1_u32), 3 => 1..=30_u32, 1 => 1..=1_000_000_u32]
}

fn gcra_numbers() -> impl Strategy<Value = Numbers> {
    let numbers = (limit(), interval_us(), burst());
    let numbers =
        numbers.prop_map(|(limit, interval_us, burst)| Numbers { burst: Some(burst), limit, interval_us });
    numbers.prop_filter("not a valid rule", |numbers| RuleSet::new(vec![numbers.rule()]).is_ok())
}

fn window_numbers() -> impl Strategy<Value = Numbers> {
    (limit(), interval_us()).prop_map(|(limit, interval_us)| Numbers { burst: None, limit, interval_us })
}

fn rules() -> impl Strategy<Value = Vec<Numbers>> {
    vec(prop_oneof![2 => gcra_numbers(), 1 => window_numbers()], 1..=4)
}

fn onward() -> impl Strategy<Value = Next> {
    prop_oneof![
        1 => Just(Next::AtOnce),
        4 => Just(Next::AtTheHint),
        1 => Just(Next::OneTickBeforeTheHint),
        2 => (1..=3 * SECOND).prop_map(Next::After),
        1 => (1..=7_200 * SECOND).prop_map(Next::After)
    ]
}

fn steps(next: impl Strategy<Value = Next>) -> impl Strategy<Value = Vec<Step>> {
    let costs = vec(prop_oneof![2 => 0..3_u32, 1 => any::<u32>()], 1..=6);
    vec((costs, next), 1..=150)
}

/// One valve's rules, and what has started under them.
struct Run {
    set: RuleSet,
    states: Vec<RuleState>,
    now: u64,
    starts: Vec<(u64, u32)>,
}

impl Run {
    fn new(rules: &[Numbers]) -> Run {
        let set = set(rules.iter().map(Numbers::rule));
        Run { states: fresh(&set), set, now: 1_000_003, starts: Vec::new() }
    }

    /// Brings a random cost into what the rules allow, so that small ones stay small.
    fn cost(&self, random: u32) -> u32 {
        let (largest, _) = self.set.largest_cost().unwrap();
        1 + random % largest
    }

    fn ask(&mut self, costs: &[u32]) -> Verdict {
        let verdict = self.set.admit(&mut self.states, self.now, costs.iter().copied());
        self.starts.extend(costs[..verdict.granted].iter().map(|&cost| (self.now, cost)));
        verdict
    }

    fn advance(&mut self, next: Next, refusal: Option<RateRefusal>) {
        let hint = refusal.map_or(self.now, |refusal| refusal.not_before);
        self.now = match next {
            Next::AtOnce => self.now,
            Next::AtTheHint => hint,
            Next::OneTickBeforeTheHint => self.now.max(hint.saturating_sub(1)),
            Next::After(ticks) => self.now + ticks,
            Next::Before(ticks) => self.now.saturating_sub(ticks),
        };
    }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn decisions_agree_with_exact_fractions((rules, steps) in (rules(), steps(onward()))) {
        let mut run = Run::new(&rules);
        let mut references: Vec<Reference> = rules.into_iter().map(Reference::new).collect();
        for (costs, next) in steps {
            let costs: Vec<u32> = costs.into_iter().map(|random| run.cost(random)).collect();
            let mut expected = (0, None);
            for &cost in &costs {
                let earliest: Vec<u64> = references.iter().map(|rule| rule.earliest(run.now, cost)).collect();
                let latest = *earliest.iter().max().unwrap();
                if latest > run.now {
                    let rule = earliest.iter().position(|&tick| tick == latest).unwrap();
                    expected.1 = Some(RateRefusal { rule, not_before: latest });
                    break;
                }
                references.iter_mut().for_each(|rule| rule.start(run.now, cost));
                expected.0 += 1;
            }
            let verdict = run.ask(&costs);
            prop_assert_eq!((verdict.granted, verdict.refusal), expected);
            run.advance(next, verdict.refusal);
        }
    }

    #[test]
    fn waiting_exactly_the_hint_grants_and_one_tick_less_does_not(
        (rules, steps) in (rules(), steps(prop_oneof![9 => onward(), 1 => (1..=60 * SECOND).prop_map(Next::Before)])),
    ) {
        let mut run = Run::new(&rules);
        for (costs, next) in steps {
            let costs: Vec<u32> = costs.into_iter().map(|random| run.cost(random)).collect();
            let verdict = run.ask(&costs);
            if let Some(RateRefusal { not_before, .. }) = verdict.refusal {
                let alone = [costs[verdict.granted]];
                prop_assert_eq!(run.set.admit(&mut run.states.clone(), not_before - 1, alone).granted, 0);
                prop_assert_eq!(run.set.admit(&mut run.states.clone(), not_before, alone).granted, 1);
            }
            run.advance(next, verdict.refusal);
        }
    }

    #[test]
    fn a_batch_is_its_granted_jobs_one_by_one_and_nothing_of_the_refused((rules, steps) in (rules(), steps(onward()))) {
        let mut run = Run::new(&rules);
        for (costs, next) in steps {
            let costs: Vec<u32> = costs.into_iter().map(|random| run.cost(random)).collect();
            let mut singly = run.states.clone();
            let verdict = run.ask(&costs);
            for &cost in &costs[..verdict.granted] {
                prop_assert_eq!(run.set.admit(&mut singly, run.now, [cost]).granted, 1);
            }
            prop_assert_eq!(&singly, &run.states);
            run.advance(next, verdict.refusal);
        }
    }

    #[test]
    fn no_window_holds_more_than_its_bound((rules, steps) in (rules(), steps(onward()))) {
        let mut run = Run::new(&rules);
        for (costs, next) in steps {
            let costs: Vec<u32> = costs.into_iter().map(|random| run.cost(random)).collect();
            let verdict = run.ask(&costs);
            run.advance(next, verdict.refusal);
        }
        for rule in rules {
            let interval = rule.interval_us;
            match rule.burst {
                Some(burst) => {
                    let bound = u64::from(rule.limit) + u64::from(burst) - 1;
                    prop_assert!(most_in_any_window(&run.starts, interval) <= bound);
                }
                None => {
                    for window in run.starts.chunk_by(|one, other| one.0 / interval == other.0 / interval) {
                        let sum: u64 = window.iter().map(|&(_, cost)| u64::from(cost)).sum();
                        prop_assert!(sum <= rule.limit.into());
                    }
                }
            }
            if rule.burst == Some(1) {
                for pair in run.starts.windows(2) {
                    let spacing = u128::from(pair[1].0 - pair[0].0);
                    prop_assert!(spacing * u128::from(rule.limit) >= interval.into());
                }
            }
        }
    }

    #[test]
    fn a_changed_limit_grants_nothing_early_and_loses_a_tick_per_change_at_most(
        (rules, steps) in ([gcra_numbers(), gcra_numbers()], vec((any::<u32>(), 0..4_u8, any::<bool>()), 1..=150)),
    ) {
        let sets = rules.map(|numbers| set([numbers.rule()]));
        let mut reference = Reference::switchable(rules[0], rules[1].limit);
        let mut states = [RuleState::default()];
        let (mut now, mut current, mut changes) = (1_000_003, 0, 0);
        for (random, wait, change) in steps {
            if change {
                current = 1 - current;
                changes += 1;
                reference.switch(rules[current]);
            }
            let cost = 1 + random % rules[current].burst.unwrap().min(5);
            let exact = reference.earliest(now, cost);
            match sets[current].admit(&mut states, now, [cost]).refusal {
                None => {
                    prop_assert_eq!(exact, now);
                    reference.start(now, cost);
                }
                Some(RateRefusal { not_before, .. }) => {
                    prop_assert!((exact..=exact + changes).contains(&not_before), "{} {}", exact, not_before);
                    now = if wait == 0 { now + u64::from(random % 1_000) } else { not_before };
                }
            }
        }
    }

    /// With burst 1 each start rounds up to a tick, so start k is at exactly k * ceil(T), below k*T + k ticks.
    /// A burst worth a tick or more absorbs the rounding: nothing is lost at all.
    #[test]
    fn a_saturated_rule_loses_nothing_but_ticks(numbers in gcra_numbers(), begin in 0..SECOND) {
        let (limit, interval) = (u128::from(numbers.limit), u128::from(numbers.interval_us));
        let saved = u128::from(numbers.burst.unwrap() - 1);
        prop_assume!(saved == 0 || saved * interval >= limit);
        let (set, mut states, mut now) = (set([numbers.rule()]), [RuleState::default()], begin);
        let mut started: u128 = 0;
        while started < 300 + saved.min(3_000) {
            let verdict = set.admit(&mut states, now, [1; 100]);
            for start in started..started + verdict.granted as u128 {
                let exact = if saved == 0 {
                    start * interval.div_ceil(limit)
                } else {
                    (start.saturating_sub(saved) * interval).div_ceil(limit)
                };
                prop_assert_eq!(u128::from(now - begin), exact, "start {}", start);
                prop_assert!(exact <= (start * interval).div_ceil(limit) + start);
            }
            started += verdict.granted as u128;
            now = verdict.refusal.map_or(now, |refusal| refusal.not_before);
        }
    }
}
