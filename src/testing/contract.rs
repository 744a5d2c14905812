//! What every store must do, as one suite that any can be put through.
//!
//! It judges a store by the stamps of its own answers, so it is exact on a clock that stands still and fair on one that
//! does not: whatever time passes between two asks, the second must be answered as of when the store says it was.

mod notices;
mod pauses;
mod rates;
mod slots;
mod threads;

use crate::clock::{Clock, duration};
use crate::error::{Executed, StoreError};
use crate::rule::{Rule, RuleSet, RuleState, Verdict};
use crate::store::{Answer, Ask, Counts, Deadline, Refusal, Store};
use std::collections::HashMap;
use std::fmt::Display;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Puts a store through the contract that valves rely on; it panics at the first breach, saying which.
///
/// `store` is asked for an empty store, many times, and `wait` to let that much time pass on the store's clock. On a clock
/// that a test turns the suite is exact to the tick and takes no time; on a real one it waits some seconds in all, and
/// finds the same breaches but those of a single tick. Notices are a courtesy: a store that tells nothing passes.
///
/// # Panics
///
/// If the store breaks a rule of [`Store`] or [`Counts`], or fails.
///
/// # Examples
///
/// ```
/// use valve::MemoryStore;
/// use valve::testing::{ManualClock, store_contract};
///
/// let clock = ManualClock::new();
/// let wait = |length| {
///     clock.advance(length);
/// };
/// store_contract(|| MemoryStore::builder().clock(&clock).build(), wait);
/// ```
pub fn store_contract<S: Store>(store: impl Fn() -> S, wait: impl Fn(Duration)) {
    let store = || -> Arc<dyn Store> { Arc::new(store()) };
    let wait = |length| wait(length);
    for (rule, check) in RULES
        .iter()
        .chain(rates::RULES)
        .chain(pauses::RULES)
        .chain(slots::RULES)
        .chain(notices::RULES)
        .chain(threads::RULES)
    {
        check(&Bench { rule, store: &store, wait: &wait });
    }
}

/// A rule of the contract and how it is put to the test.
type Clause = (&'static str, fn(&Bench<'_>));

const RULES: &[Clause] = &[
    ("two opens of one id share their counts", one_id_is_shared),
    ("different ids share nothing", ids_are_apart),
    ("an answer is overwritten whole", answers_are_overwritten),
    ("stamps go with the store's clock, and never back", stamps_go_with_the_clock),
    ("an ask whose deadline has passed is answered, or changes nothing and says so", late_asks_are_honest),
];

/// A store on trial.
struct Bench<'a> {
    /// The rule that is put to the test.
    rule: &'static str,
    store: &'a dyn Fn() -> Arc<dyn Store>,
    wait: &'a dyn Fn(Duration),
}

impl Bench<'_> {
    #[track_caller]
    fn ensure(&self, holds: bool, seen: impl FnOnce() -> String) {
        assert!(holds, "the store breaks its contract: {}: {}", self.rule, seen());
    }

    #[track_caller]
    fn equal<T: PartialEq + std::fmt::Debug>(&self, seen: &T, expected: &T, of: impl Display) {
        self.ensure(seen == expected, || format!("{of}: {seen:?}, not {expected:?}"));
    }

    /// What a healthy store never refuses.
    #[track_caller]
    fn done<T>(&self, result: Result<T, StoreError>) -> T {
        result.unwrap_or_else(|error| {
            panic!("the store failed while its contract was checked: {}: {error}", self.rule)
        })
    }

    fn wait(&self, length: Duration) {
        (self.wait)(length);
    }

    fn store(&self) -> Arc<dyn Store> {
        (self.store)()
    }

    #[track_caller]
    fn open(&self, store: &Arc<dyn Store>, id: &str) -> Arc<dyn Counts> {
        self.done(store.open(id))
    }

    /// The counts of one id of an empty store.
    fn fresh(&self) -> Arc<dyn Counts> {
        self.open(&self.store(), "contract")
    }

    fn rules<const N: usize>(&self, rules: [Rule; N]) -> RuleSet {
        RuleSet::new(rules.to_vec()).unwrap_or_else(|error| panic!("the contract's own rules: {error}"))
    }

    /// Asks, lending an answer that is full of an earlier one.
    #[track_caller]
    fn ask(&self, counts: &Arc<dyn Counts>, ask: &Ask<'_>) -> Answer {
        let rate = Some((15, Duration::from_secs(77)));
        let refusal = Some(Refusal { rate, pause: Some(Duration::from_secs(99)), slots: true });
        let mut answer = Answer { granted: 42, at: 1, fence: NonZeroU64::new(7), refusal };
        self.done(counts.admit(ask, &mut answer));
        self.ensure(answer.granted <= ask.costs.len(), || {
            format!("{} of {} granted", answer.granted, ask.costs.len())
        });
        let all = answer.granted == ask.costs.len();
        self.ensure(all == answer.refusal.is_none(), || {
            format!("{} of {} granted with {answer:?}", answer.granted, ask.costs.len())
        });
        if let Some(refusal) = answer.refusal {
            self.ensure(refusal != Refusal::default(), || "a refusal without a reason".to_owned());
        }
        answer
    }

    /// Asks without slots for jobs of these costs, while no pause holds; the answer must be what the rules alone say.
    #[track_caller]
    fn rated(
        &self,
        reference: &mut Reference,
        counts: &Arc<dyn Counts>,
        rules: &RuleSet,
        costs: &[u32],
    ) -> Answer {
        let answer = self.ask(counts, &Ask::new(rules, costs));
        let verdict = reference.admit(rules, answer.at, costs);
        let rate = verdict.refusal.map(|refusal| (refusal.rule, duration(refusal.not_before - answer.at)));
        let refusal = rate.map(|rate| Refusal { rate: Some(rate), ..Refusal::default() });
        let expected = Answer { granted: verdict.granted, at: answer.at, fence: None, refusal };
        let limits: Vec<_> =
            (0..rules.len()).map(|rule| (rules.key(rule), rules.limit(rule), rules.burst(rule))).collect();
        self.equal(&answer, &expected, format_args!("costs {costs:?} under (rule, limit, burst) {limits:?}"));
        answer
    }
}

/// What the rules alone say, at the stamps that the store gave.
#[derive(Default)]
struct Reference {
    states: HashMap<String, RuleState>,
}

impl Reference {
    fn admit(&mut self, rules: &RuleSet, at: u64, costs: &[u32]) -> Verdict {
        let keys = || (0..rules.len()).map(|rule| rules.key(rule));
        let mut states: Vec<_> =
            keys().map(|key| self.states.get(key).copied().unwrap_or_default()).collect();
        let verdict = rules.admit(&mut states, at, costs.iter().copied());
        self.states.extend(keys().map(str::to_owned).zip(states));
        verdict
    }
}

/// A rule under which a unit takes 20 ms, and `burst` of them may start at once.
fn every_20_ms(burst: u32) -> Rule {
    Rule::gcra(5, Duration::from_millis(100)).burst(burst).into()
}

fn one_id_is_shared(bench: &Bench<'_>) {
    let (store, rules, mut reference) = (bench.store(), bench.rules([every_20_ms(4)]), Reference::default());
    let (one, two) = (bench.open(&store, "shared"), bench.open(&store, "shared"));
    for counts in [&one, &two, &two, &one, &two] {
        bench.rated(&mut reference, counts, &rules, &[1]);
    }
    drop((one, two));
    // Also by whoever opens it when nobody else has it open.
    bench.rated(&mut reference, &bench.open(&store, "shared"), &rules, &[1]);
}

fn ids_are_apart(bench: &Bench<'_>) {
    let (store, rules) = (bench.store(), bench.rules([every_20_ms(1)]));
    let long = "x".repeat(10_240);
    let ids = [
        "a",
        "A",
        "a ",
        "{a}",
        "a}:l",
        "a%7D",
        "%",
        "a:b",
        "a\0",
        "\u{fffd}",
        "a*",
        "ä",
        "日本",
        &long,
        &long[1..],
    ];
    for id in ids {
        let counts = bench.open(&store, id);
        bench.rated(&mut Reference::default(), &counts, &rules, &[1]);
        bench.done(counts.pause(Duration::from_secs(60), Deadline::never()));
    }
}

fn answers_are_overwritten(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(2)]), Reference::default());
    for _ in 0..4 {
        bench.rated(&mut reference, &counts, &rules, &[1]);
    }
}

fn stamps_go_with_the_clock(bench: &Bench<'_>) {
    let (store, no_rules) = (bench.store(), bench.rules([]));
    let opened = [bench.open(&store, "a"), bench.open(&store, "b"), bench.open(&store, "a")];
    let mut last = 0;
    for length in [0, 1, 0, 2_500, 10_000] {
        let length = duration(length);
        bench.wait(length);
        for counts in &opened {
            let at = bench.ask(counts, &Ask::new(&no_rules, &[1])).at;
            bench.ensure(at >= last, || format!("{at} us after {last} us"));
            last = at;
        }
        let begin = last;
        bench.wait(length);
        let at = bench.ask(&opened[0], &Ask::new(&no_rules, &[1])).at;
        // The clock of a server may run a little slower than that of whoever waits.
        bench.ensure(duration(at - begin) >= length * 99 / 100, || {
            format!("{begin} us, {length:?} later {at} us")
        });
        last = at;
    }
}

fn late_asks_are_honest(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(3)]), Reference::default());
    let mut ask = Ask::new(&rules, &[1]);
    ask.deadline = Deadline::after(&Clock::System, Duration::ZERO);
    let mut answer = Answer::default();
    match counts.admit(&ask, &mut answer) {
        Ok(()) => {
            let verdict = reference.admit(&rules, answer.at, &[1]);
            bench.equal(&answer.granted, &verdict.granted, "granted");
        }
        Err(error) => bench.equal(&error.executed(), &Executed::No, "whether it was executed"),
    }
    for _ in 0..3 {
        bench.rated(&mut reference, &counts, &rules, &[1]);
    }
}
