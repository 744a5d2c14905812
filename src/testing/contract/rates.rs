//! Rates: the decisions are those of the rules alone, batch by batch.

use super::{Bench, Clause, Reference, every_20_ms};
use crate::clock::duration;
use crate::rule::{Rule, RuleSet};
use crate::store::{Counts, Quick};
use std::sync::Arc;
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("without rules everything starts", nothing_binds),
    ("the longest prefix of a batch starts", prefixes_start),
    ("nobody in a batch overtakes", nobody_overtakes),
    ("costs count", costs_count),
    ("a refusal spends nothing", refusals_are_free),
    ("all rules or none are spent", all_or_nothing),
    ("waiting exactly the hint grants, one tick less does not", hints_are_exact),
    ("windows are aligned to multiples of their interval", windows_are_aligned),
    ("a window is known by its interval as well as its name", windows_are_known_by_interval),
    ("limits are the asker's own", limits_are_the_askers),
    ("random asks are answered as the rules say", random_asks),
];

fn nothing_binds(bench: &Bench<'_>) {
    let (counts, no_rules) = (bench.fresh(), bench.rules([]));
    for many in [1, 5, 64] {
        bench.rated(&mut Reference::default(), &counts, &no_rules, &vec![1_000_000; many]);
    }
}

fn prefixes_start(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(5)]), Reference::default());
    bench.rated(&mut reference, &counts, &rules, &[1, 1]);
    bench.rated(&mut reference, &counts, &rules, &[1; 64]);
    bench.rated(&mut reference, &counts, &rules, &[1; 64]);
    bench.wait(Duration::from_millis(40));
    bench.rated(&mut reference, &counts, &rules, &[1; 64]);
}

fn nobody_overtakes(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(5)]), Reference::default());
    bench.rated(&mut reference, &counts, &rules, &[2, 4, 1, 1]);
    bench.rated(&mut reference, &counts, &rules, &[5, 1]);
}

fn costs_count(bench: &Bench<'_>) {
    let window = Rule::fixed_window(6, Duration::from_secs(3_600)).into();
    let (counts, rules, mut reference) =
        (bench.fresh(), bench.rules([every_20_ms(5), window]), Reference::default());
    for cost in [3, 2, 2, 1, 5] {
        bench.rated(&mut reference, &counts, &rules, &[cost]);
        bench.wait(Duration::from_millis(20));
    }
}

fn refusals_are_free(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(3)]), Reference::default());
    bench.rated(&mut reference, &counts, &rules, &[2]);
    for _ in 0..5 {
        bench.rated(&mut reference, &counts, &rules, &[3, 1]);
    }
    bench.rated(&mut reference, &counts, &rules, &[1]);
}

fn all_or_nothing(bench: &Bench<'_>) {
    let (counts, mut reference) = (bench.fresh(), Reference::default());
    let (rate, window): (Rule, Rule) =
        (every_20_ms(9), Rule::fixed_window(2, Duration::from_secs(3_600)).into());
    let both = [bench.rules([rate.clone(), window.clone()]), bench.rules([window.clone(), rate.clone()])];
    for rules in &both {
        for _ in 0..3 {
            bench.rated(&mut reference, &counts, rules, &[1]);
        }
    }
    // What each has spent by itself.
    bench.rated(&mut reference, &counts, &bench.rules([rate]), &[1; 9]);
    bench.rated(&mut reference, &counts, &bench.rules([window]), &[1]);
}

fn hints_are_exact(bench: &Bench<'_>) {
    let tick = duration(1);
    for rule in [
        every_20_ms(2),
        Rule::gcra(3, Duration::from_millis(70)).into(),
        Rule::fixed_window(2, Duration::from_millis(50)).into(),
    ] {
        let (counts, rules, mut reference) = (bench.fresh(), bench.rules([rule]), Reference::default());
        for _ in 0..4 {
            let answer = bench.rated(&mut reference, &counts, &rules, &[1; 3]);
            let Some((_, hint)) = answer.refusal.and_then(|refusal| refusal.rate) else { continue };
            bench.wait(hint.saturating_sub(tick));
            let early = bench.rated(&mut reference, &counts, &rules, &[1]).granted;
            bench.wait(tick);
            let answer = bench.rated(&mut reference, &counts, &rules, &[1]);
            bench.ensure(early + answer.granted > 0, || {
                format!("{:?} after a wait of {hint:?}", answer.refusal)
            });
        }
    }
}

fn windows_are_aligned(bench: &Bench<'_>) {
    for interval in [7_000, 50_000, 3_600_000_000] {
        let rules = bench.rules([Rule::fixed_window(1, duration(interval)).into()]);
        let (counts, mut reference) = (bench.fresh(), Reference::default());
        bench.wait(duration(1_234));
        bench.rated(&mut reference, &counts, &rules, &[1]);
        let answer = bench.rated(&mut reference, &counts, &rules, &[1, 1]);
        let Some((_, hint)) = answer.refusal.and_then(|refusal| refusal.rate) else { continue };
        let next = answer.at + u64::try_from(hint.as_micros()).unwrap_or(u64::MAX);
        bench
            .ensure(next % interval == 0, || format!("the next window of {interval} us begins at {next} us"));
    }
}

fn windows_are_known_by_interval(bench: &Bench<'_>) {
    let (counts, mut reference) = (bench.fresh(), Reference::default());
    let window = |limit, secs| Rule::fixed_window(limit, Duration::from_secs(secs)).named("quota").into();
    for rules in
        [bench.rules([window(2, 3_600)]), bench.rules([window(2, 7_200)]), bench.rules([window(1, 3_600)])]
    {
        bench.rated(&mut reference, &counts, &rules, &[1]);
    }
}

fn limits_are_the_askers(bench: &Bench<'_>) {
    let (store, mut reference) = (bench.store(), Reference::default());
    let second = Duration::from_secs(1);
    let window = |limit| Rule::fixed_window(limit, Duration::from_secs(3_600)).into();
    let sets = [
        bench.rules([Rule::gcra(50, second).burst(6).into(), window(9)]),
        // Other fractions of a tick, and another burst.
        bench.rules([Rule::gcra(37, second).burst(2).into()]),
        bench.rules([Rule::gcra(50, second).burst(6).named("apart").into(), window(4)]),
        bench.rules([Rule::gcra(3_701, second).burst(40).into()]),
    ];
    let opened: Vec<_> = sets.iter().map(|_| bench.open(&store, "shared")).collect();
    for _ in 0..3 {
        for (rules, counts) in sets.iter().zip(&opened) {
            bench.rated(&mut reference, counts, rules, &[1, 1]);
        }
        bench.wait(Duration::from_millis(15));
    }
}

/// Numbers that look random and are the same each time: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap_or(0)
    }

    fn of<T: Copy>(&mut self, choices: [T; 4]) -> T {
        choices[self.below(4)]
    }

    fn cost(&mut self, rules: &RuleSet) -> u32 {
        let most = rules.largest_cost().map_or(3, |(cost, _)| cost);
        (0..most).find(|_| self.below(3) == 0).map_or(most, |cost| cost + 1)
    }
}

fn random_asks(bench: &Bench<'_>) {
    let random = &mut Random(4);
    for round in 0..8 {
        let (store, mut reference) = (bench.store(), Reference::default());
        let mut rule = || -> Rule {
            let interval = duration(random.of([997, 5_000, 10_000, 33_333]));
            let limit = random.of([1, 3, 7, 2_999]);
            let burst = random.of([1, 2, 5, 9]);
            if random.below(3) == 0 {
                Rule::fixed_window(limit, interval).into()
            } else {
                Rule::gcra(limit, interval).burst(burst).into()
            }
        };
        let single = bench.rules([rule()]);
        let several = if round % 2 == 0 { single.clone() } else { bench.rules([rule(), rule(), rule()]) };
        let views = [single.clone(), single, several].map(|rules| (bench.open(&store, "random"), rules));
        let mut last = bench.rated(&mut reference, &views[0].0, &views[0].1, &[1]).at;
        for _ in 0..40 {
            let (counts, rules) = &views[random.below(3)];
            let costs: Vec<u32> = (0..=random.below(4)).map(|_| random.cost(rules)).collect();
            if random.below(2) == 0 {
                last = quickly(bench, &mut reference, (counts, rules), costs[0], last);
            } else {
                let answer = bench.rated(&mut reference, counts, rules, &costs);
                last = answer.at;
                let hint =
                    answer.refusal.and_then(|refusal| refusal.rate).map_or(Duration::ZERO, |(_, hint)| hint);
                bench.wait(random.of([Duration::ZERO, duration(1), hint.saturating_sub(duration(1)), hint]));
            }
        }
    }
}

/// Asks without locks, if the store can: the answer must be that of a thorough ask. Takes and gives the last stamp seen.
fn quickly(
    bench: &Bench<'_>,
    reference: &mut Reference,
    view: (&Arc<dyn Counts>, &RuleSet),
    cost: u32,
    last: u64,
) -> u64 {
    let (counts, rules) = view;
    match counts.quick(rules.number(), cost) {
        Quick::Unable => last,
        Quick::Granted(at) => {
            let verdict = reference.admit(rules, at, &[cost]);
            bench.ensure(verdict.granted == 1, || {
                format!("cost {cost} granted at {at} us: {:?}", verdict.refusal)
            });
            at
        }
        Quick::Refused(wait) => {
            let answer = bench.rated(reference, counts, rules, &[cost]);
            let hint =
                answer.refusal.and_then(|refusal| refusal.rate).map_or(Duration::ZERO, |(_, hint)| hint);
            // It was refused as of some instant since the last stamp.
            let right = (hint..=hint + duration(answer.at - last)).contains(&duration(wait));
            bench.ensure(right, || format!("refused for {wait} us, then for {hint:?}"));
            answer.at
        }
    }
}
