//! The word and the lock: whoever decides, the decisions are those of the rules alone. And ids, notices and threads.

#![allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use super::*;
use crate::rule::Rule;
use crate::store::{Noticed, Slots};
use crate::testing::ManualClock;
use std::sync::Weak;

const MS: u64 = 1_000;

fn rules(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
    RuleSet::new(rules.into_iter().collect()).unwrap()
}

/// `limit` per second.
fn per_second(limit: u32, burst: u32) -> RuleSet {
    rules([Rule::gcra(limit, Duration::from_secs(1)).burst(burst).into()])
}

fn store() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new();
    // The store does not begin when the clock does.
    clock.advance(Duration::from_micros(12_345));
    let store = MemoryStore::builder().clock(&clock).build();
    (clock, store)
}

fn admit(counts: &dyn Counts, rules: &RuleSet, costs: &[u32]) -> Answer {
    let mut answer = Answer::default();
    counts.admit(&Ask::new(rules, costs), &mut answer).unwrap();
    answer
}

fn able(counts: &dyn Counts, rules: &RuleSet) -> bool {
    counts.quick(rules.number(), 1) != Quick::Unable
}

#[test]
fn the_word_is_given_once_the_shape_is_known() {
    let (_clock, store) = store();
    let (counts, rules) = (store.open("a").unwrap(), per_second(10, 3));
    assert!(!able(&*counts, &rules), "nothing is known of the rules yet");
    admit(&*counts, &rules, &[1]);
    assert_eq!(counts.quick(rules.number(), 1), Quick::Granted(12_345));
    assert_eq!(counts.quick(rules.number(), 1), Quick::Granted(12_345));
    assert_eq!(counts.quick(rules.number(), 1), Quick::Refused(100 * MS), "what admit spent counts");
    let refusal = admit(&*counts, &rules, &[1]).refusal.unwrap();
    assert_eq!(refusal.rate, Some((0, Duration::from_millis(100))), "what quick spent counts");
}

/// A quick call that began before finds another word and one after it none, until somebody has had the lock.
#[test]
fn quick_calls_are_parted_by_taking_the_word() {
    let (_clock, store) = store();
    let (counts, rules) = (store.open("a").unwrap(), per_second(10, 4));
    admit(&*counts, &rules, &[1]);
    assert!(able(&*counts, &rules));
    assert!(counts.part_quick());
    assert!(!able(&*counts, &rules));
    assert_eq!(admit(&*counts, &rules, &[1, 1, 1]).granted, 2, "what was spent before stays spent");
    assert_eq!(counts.quick(rules.number(), 1), Quick::Refused(100 * MS));
}

#[test]
fn only_rules_that_fit_the_word_are_quick() {
    #[track_caller]
    fn check(rules: &RuleSet, expected: bool) {
        let (_clock, store) = store();
        let counts = store.open("a").unwrap();
        admit(&*counts, rules, &[1]);
        assert_eq!(able(&*counts, rules), expected);
    }
    let second = Duration::from_secs(1);
    check(&RuleSet::default(), false);
    check(&rules([]), true);
    check(&per_second(10, 1), true);
    check(&rules([Rule::fixed_window(10, second).into()]), false);
    check(&rules([Rule::gcra(1, second).into(), Rule::gcra(1, second * 9).into()]), false);
    // Its fractions are of 1/3,600 us, the finest that the word holds, or finer.
    check(&rules([Rule::gcra(3_600, Duration::from_micros(7)).into()]), true);
    check(&rules([Rule::gcra(3_601, Duration::from_micros(7)).into()]), false);
}

#[test]
fn a_pause_takes_the_word_and_its_end_gives_it_back() {
    let (clock, store) = store();
    let (counts, rules) = (store.open("a").unwrap(), per_second(10, 9));
    admit(&*counts, &rules, &[1]);
    assert!(able(&*counts, &rules));

    counts.pause(Duration::from_secs(1), Deadline::never()).unwrap();
    assert!(!able(&*counts, &rules));
    assert_eq!(admit(&*counts, &rules, &[1]).granted, 0);
    assert!(!able(&*counts, &rules), "a refusal does not give it back");
    clock.advance(Duration::from_secs(1));
    assert!(!able(&*counts, &rules), "nobody has looked yet");
    assert_eq!(admit(&*counts, &rules, &[1]).granted, 1);
    assert!(able(&*counts, &rules));
}

#[test]
fn another_rule_set_takes_the_word_for_good() {
    #[track_caller]
    fn check(other: &RuleSet, expected: bool) {
        let (clock, store) = store();
        let rules = per_second(10, 3);
        let (one, two) = (store.open("a").unwrap(), store.open("a").unwrap());
        admit(&*one, &rules, &[1]);
        admit(&*two, other, &[1]);
        for _ in 0..3 {
            admit(&*one, &rules, &[1]);
            assert_eq!(able(&*one, &rules), expected);
            clock.advance(Duration::from_secs(3_600));
        }
    }
    check(&per_second(10, 3), true);
    // Of the same key and denominator: the word means the same to both.
    check(&per_second(5, 1), true);
    check(&per_second(3, 3), false);
    check(&rules([]), false);
    check(&rules([Rule::gcra(10, Duration::from_secs(2)).into()]), false);
    check(&rules([Rule::gcra(10, Duration::from_secs(1)).named("other").into()]), false);
    check(
        &rules([
            Rule::gcra(10, Duration::from_secs(1)).into(),
            Rule::fixed_window(9, Duration::from_secs(1)).into(),
        ]),
        false,
    );
}

#[test]
fn two_valves_of_one_rule_share_what_is_quick() {
    let (_clock, store) = store();
    let rules = [per_second(10, 4), per_second(10, 4)];
    let counts = [store.open("a").unwrap(), store.open("a").unwrap()];
    for (counts, rules) in counts.iter().zip(&rules) {
        assert_eq!(admit(&**counts, rules, &[1]).granted, 1);
    }
    assert!(matches!(counts[0].quick(rules[0].number(), 1), Quick::Granted(_)));
    assert!(matches!(counts[1].quick(rules[1].number(), 1), Quick::Granted(_)));
    assert!(matches!(counts[0].quick(rules[0].number(), 1), Quick::Refused(_)));
    assert!(matches!(counts[1].quick(rules[1].number(), 1), Quick::Refused(_)));
}

#[test]
fn held_slots_keep_the_word_away() {
    let (_clock, store) = store();
    let (counts, rules) = (store.open("a").unwrap(), per_second(1_000, 1_000));
    admit(&*counts, &rules, &[1]);
    let token = Token(1);
    let mut ask = Ask::new(&rules, &[1]);
    ask.slots = Some(Slots::new(1, Duration::from_secs(1), std::slice::from_ref(&token)));
    counts.admit(&ask, &mut Answer::default()).unwrap();
    assert!(!able(&*counts, &rules));
    counts.release(&[token]).unwrap();
    admit(&*counts, &rules, &[1]);
    assert!(able(&*counts, &rules));
}

/// The rules of an id and nothing else: what every way of asking must agree with.
struct Reference {
    states: HashMap<String, RuleState>,
    paused_until: u64,
}

impl Reference {
    fn admit(&mut self, rules: &RuleSet, now: u64, costs: &[u32]) -> (usize, Option<Refusal>) {
        if now < self.paused_until {
            let pause = Some(duration(self.paused_until - now));
            return (0, Some(Refusal { pause, ..Refusal::default() }));
        }
        let keys: Vec<String> = (0..rules.len()).map(|rule| rules.key(rule).to_owned()).collect();
        let mut states: Vec<_> =
            keys.iter().map(|key| self.states.get(key).copied().unwrap_or_default()).collect();
        let verdict = rules.admit(&mut states, now, costs.iter().copied());
        self.states.extend(keys.into_iter().zip(states));
        let rate = verdict.refusal.map(|refusal| (refusal.rule, duration(refusal.not_before - now)));
        (verdict.granted, rate.map(|rate| Refusal { rate: Some(rate), ..Refusal::default() }))
    }
}

/// Numbers from a seed: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    fn rules(&mut self) -> RuleSet {
        let interval = Duration::from_micros([1, 7, 1_000, 100_000, 1_000_000][self.below(5) as usize]);
        let limit = [1, 3, 10, 1_000, 9_973][self.below(5) as usize];
        let single = Rule::gcra(limit, interval).burst(1 + self.below(6) as u32).named("single").into();
        match self.below(12) {
            0 => rules([]),
            1 => rules([single, Rule::fixed_window(7, Duration::from_millis(3)).into()]),
            2 => rules([Rule::fixed_window(7, Duration::from_millis(3)).into()]),
            _ => rules([single]),
        }
    }
}

/// A valve's view of an id.
struct View {
    counts: Arc<dyn Counts>,
    rules: RuleSet,
}

impl View {
    fn cost(&self, random: &mut Random) -> u32 {
        let most = self.rules.largest_cost().map_or(4, |(cost, _)| cost);
        1 + random.below(most.into()) as u32
    }
}

/// How often each way of asking decided.
#[derive(Default)]
struct Decided {
    quick: [usize; 2],
    admit: [usize; 2],
}

fn random_episode(seed: u64, steps: usize, decided: &mut Decided) {
    let random = &mut Random(seed);
    let (clock, store) = store();
    let mut reference = Reference { states: HashMap::new(), paused_until: 0 };
    let mut views = Vec::new();
    let first = random.rules();
    for _ in 0..=random.below(3) {
        let rules = if random.below(4) == 0 { random.rules() } else { first.clone() };
        views.push(View { counts: store.open("a").unwrap(), rules });
    }
    for step in 0..steps {
        let now = clock.now().as_micros() as u64;
        let view = &views[random.below(views.len() as u64) as usize];
        let at = format!("seed {seed}, step {step}");
        match random.below(40) {
            0 => {
                let left = random.below(2_000);
                view.counts.pause(duration(left), Deadline::never()).unwrap();
                reference.paused_until = reference.paused_until.max(now + left);
            }
            1 => {
                view.counts.resume(Deadline::never()).unwrap();
                reference.paused_until = 0;
            }
            2..=15 => {
                clock.advance(duration([0, 1, 20, 1_000, 300_000][random.below(5) as usize]));
            }
            16..=19 => {
                let costs: Vec<u32> = (0..=random.below(4)).map(|_| view.cost(random)).collect();
                let answer = admit(&*view.counts, &view.rules, &costs);
                let expected = reference.admit(&view.rules, now, &costs);
                assert_eq!(
                    (answer.granted, answer.refusal, answer.at),
                    (expected.0, expected.1, now),
                    "{at}"
                );
                decided.admit[usize::from(answer.refusal.is_some())] += 1;
            }
            _ => {
                let cost = view.cost(random);
                match view.counts.quick(view.rules.number(), cost) {
                    Quick::Granted(when) => {
                        assert_eq!((reference.admit(&view.rules, now, &[cost]).0, when), (1, now), "{at}");
                        decided.quick[0] += 1;
                    }
                    Quick::Refused(wait) => {
                        let refusal = reference.admit(&view.rules, now, &[cost]).1.unwrap();
                        assert_eq!(refusal.rate, Some((0, duration(wait))), "{at}");
                        decided.quick[1] += 1;
                    }
                    Quick::Unable => {}
                }
            }
        }
    }
}

#[test]
fn the_quick_way_and_the_thorough_one_decide_by_the_rules_alone() {
    let mut decided = Decided::default();
    for seed in 0..200 {
        random_episode(seed, 500, &mut decided);
    }
    let all = [decided.quick, decided.admit].concat();
    assert!(all.iter().all(|count| *count > 1_000), "not all was tried: {all:?}");
}

#[test]
fn ids_that_say_nothing_more_are_forgotten() {
    let (clock, store) = store();
    let rules = per_second(1, 1);
    let open = |store: &MemoryStore| store.shared.ids.lock().open.len();
    let held = store.open("held").unwrap();
    let paused = store.open("paused").unwrap();
    paused.pause(Duration::from_secs(3_600), Deadline::never()).unwrap();
    drop(paused);
    for number in 0..SWEEP_FROM - 2 {
        admit(&*store.open(&format!("{number}")).unwrap(), &rules, &[1]);
    }
    assert_eq!(open(&store), SWEEP_FROM);

    // All are still spent: none can go, and the next look comes when there are twice as many.
    clock.advance(Duration::from_micros(999_999));
    drop(store.open("one more"));
    assert_eq!(open(&store), SWEEP_FROM + 1);
    for number in 0..SWEEP_FROM - 1 {
        admit(&*store.open(&format!("more {number}")).unwrap(), &rules, &[1]);
    }
    clock.advance(Duration::from_micros(1));
    assert_eq!(open(&store), 2 * SWEEP_FROM);
    drop(store.open("the next"));
    assert_eq!(open(&store), SWEEP_FROM + 2, "the first are not spent any more");

    clock.advance(Duration::from_secs(1));
    for number in 0..=SWEEP_FROM {
        drop(store.open(&format!("yet more {number}")));
    }
    for name in ["held", "paused"] {
        assert!(store.shared.ids.lock().open.contains_key(name), "{name} was forgotten");
    }
    assert_eq!(open(&store), 3, "the one in use, the paused one and the new one");
    assert_eq!(admit(&*store.open("paused").unwrap(), &rules, &[1]).granted, 0);
    drop(held);
}

#[test]
fn ids_used_one_after_the_other_take_no_room() {
    let (clock, store) = store();
    let rules = per_second(1_000, 1);
    for number in 0..20_000 {
        admit(&*store.open(&format!("{number}")).unwrap(), &rules, &[1]);
        clock.advance(Duration::from_micros(100));
    }
    let left = store.shared.ids.lock().open.len();
    assert!(left <= 2 * SWEEP_FROM, "{left} ids are left");
}

#[test]
fn two_stores_know_nothing_of_each_other() {
    let rules = per_second(1, 1);
    let (one, two) = (MemoryStore::new(), MemoryStore::new());
    assert_eq!(admit(&*one.open("a").unwrap(), &rules, &[1]).granted, 1);
    assert_eq!(admit(&*two.open("a").unwrap(), &rules, &[1]).granted, 1);
    assert_eq!(admit(&*one.clone().open("a").unwrap(), &rules, &[1]).granted, 0);
    assert_eq!(admit(&*one.open("b").unwrap(), &rules, &[1]).granted, 1);
}

/// Notes what it is told, and asks the store at once: nothing may be locked then.
struct Watcher {
    counts: Arc<dyn Counts>,
    heard: Mutex<Vec<Notice>>,
}

impl Noticed for Watcher {
    fn noticed(self: Arc<Self>, notice: Notice) {
        admit(&*self.counts, &RuleSet::default(), &[1]);
        self.heard.lock().push(notice);
    }
}

fn watch(store: &MemoryStore, id: &str) -> Arc<Watcher> {
    let watcher = Arc::new(Watcher { counts: store.open(id).unwrap(), heard: Mutex::new(Vec::new()) });
    let weak = Arc::downgrade(&watcher);
    let target: Weak<dyn Noticed> = weak;
    store.watch(Wake::new(id.into(), target)).unwrap();
    watcher
}

#[test]
fn watchers_of_an_id_hear_of_its_pauses_and_releases() {
    let (_clock, store) = store();
    let watchers = [watch(&store, "a"), watch(&store, "a"), watch(&store, "other")];
    let counts = store.open("a").unwrap();
    let no_rules = RuleSet::default();
    let take = |token: Token, waits: bool| {
        let tokens = [token];
        let mut ask = Ask::new(&no_rules, &[1]);
        ask.slots = Some(Slots::new(1, Duration::from_secs(60), &tokens));
        ask.waits = waits;
        let mut answer = Answer::default();
        counts.admit(&ask, &mut answer).unwrap();
        answer.granted == 1
    };
    counts.pause(Duration::from_secs(1), Deadline::never()).unwrap();
    counts.resume(Deadline::never()).unwrap();
    assert!(take(Token(1), true));
    counts.release(&[Token(1)]).unwrap();
    assert!(take(Token(2), true));
    assert!(!take(Token(3), false));
    counts.release(&[Token(2)]).unwrap();
    let so_far = [Notice::Paused, Notice::Resumed];
    assert_eq!(*watchers[0].heard.lock(), so_far, "nobody waited for those slots");

    assert!(take(Token(4), true));
    assert!(!take(Token(5), true));
    counts.release(&[Token(9)]).unwrap();
    counts.release(&[Token(4)]).unwrap();
    counts.release(&[Token(4)]).unwrap();
    let all = [Notice::Paused, Notice::Resumed, Notice::Released];
    assert_eq!(*watchers[0].heard.lock(), all);
    assert_eq!(*watchers[1].heard.lock(), all);
    assert_eq!(*watchers[2].heard.lock(), []);
}

#[test]
fn watchers_that_are_gone_are_forgotten() {
    let (_clock, store) = store();
    for _ in 0..100 {
        drop(watch(&store, "a"));
    }
    let last = watch(&store, "a");
    assert_eq!(store.id("a").state.lock().wakes.len(), 1);
    store.open("a").unwrap().pause(Duration::from_secs(1), Deadline::never()).unwrap();
    assert_eq!(*last.heard.lock(), [Notice::Paused]);
}

/// Asks by one way until it has been answered so often; gives the stamps and costs of what was granted.
fn hammer(counts: &dyn Counts, rules: &RuleSet, mut random: Random, asks: usize) -> Vec<(u64, u32)> {
    let mut granted = Vec::new();
    for _ in 0..asks {
        let cost = 1 + random.below(3) as u32;
        if random.below(2_000) == 0 {
            counts.pause(Duration::from_micros(random.below(50)), Deadline::never()).unwrap();
        }
        match counts.quick(rules.number(), cost) {
            Quick::Granted(at) => granted.push((at, cost)),
            Quick::Unable => {
                let answer = admit(counts, rules, &[cost, 1]);
                granted.extend([(answer.at, cost), (answer.at, 1)].into_iter().take(answer.granted));
            }
            Quick::Refused(_) if random.below(50) == 0 => {
                let answer = admit(counts, rules, &[cost]);
                granted.extend((answer.granted == 1).then_some((answer.at, cost)));
            }
            Quick::Refused(_) => {}
        }
    }
    granted
}

#[test]
fn threads_that_ask_both_ways_keep_the_bound_together() {
    let store = MemoryStore::new();
    let rules = rules([Rule::gcra(300, Duration::from_millis(1)).burst(5).into()]);
    let mut granted: Vec<(u64, u32)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|seed| {
                let (counts, rules) = (store.open("a").unwrap(), rules.clone());
                scope.spawn(move || hammer(&*counts, &rules, Random(seed), 300_000))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    granted.sort_unstable();
    assert!(granted.len() > 500, "only {} were granted", granted.len());
    // What conforms is admitted again, one by one, by the rules alone.
    let mut states = [RuleState::default()];
    for (at, cost) in granted {
        let verdict = rules.admit(&mut states, at, [cost]);
        assert_eq!(verdict.granted, 1, "at {at}: {:?}", verdict.refusal);
    }
}
