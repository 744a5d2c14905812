//! The model's store and the memory store, put through the same calls.

use super::rules::{NAMES, TTL};
use super::store::{PROCESSES, Store as Model};
use std::sync::Arc;
use std::time::Duration;
use valve::testing::ManualClock;
use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, RuleSet, Slots, Store, Token};

const TICK: Duration = Duration::from_millis(100);
const STEPS: usize = 100_000;

struct Both {
    clock: ManualClock,
    counts: Arc<dyn Counts>,
    model: Model,
    random: u64,
}

#[test]
fn the_models_store_answers_as_the_memory_store_does() {
    let clock = ManualClock::new();
    let counts = MemoryStore::builder().clock(&clock).build().open("walk").unwrap();
    let mut both = Both { clock, counts, model: Model::default(), random: 1 };
    let mut met = [0; 6];
    for step in 0..STEPS {
        let (what, came) = both.step();
        assert_eq!(came.0, came.1, "step {step}: {what}: the memory store's answer, and the model's");
        met[usize::from(came.0.good) + 2 * came.0.kind] += 1;
    }
    assert!(met[..5].iter().all(|&count| count > STEPS / 100), "too little was met: {met:?}");
}

/// What a call came to, in both stores.
#[derive(Debug, PartialEq, Eq)]
struct Came {
    kind: usize,
    good: bool,
    fence: Option<u64>,
}

impl Both {
    fn step(&mut self) -> (String, (Came, Came)) {
        let (process, name) = (self.random(PROCESSES), self.random(NAMES));
        match self.random(8) {
            0 | 1 => self.pass(),
            2 | 3 => self.renew(process, name),
            4 => self.release(process, name),
            _ => self.ask(process, name),
        }
    }

    fn pass(&mut self) -> (String, (Came, Came)) {
        self.clock.advance(TICK);
        self.model.pass(None);
        ("a tick".to_owned(), done())
    }

    /// An ask whose name may be held already: the doubled ask of the model.
    fn ask(&mut self, process: usize, name: usize) -> (String, (Came, Came)) {
        let (slots, ride) = (1 + self.random(2), self.random(2) == 0);
        let floor = if self.random(4) == 0 { self.model.fence + self.random(3) as u64 } else { 0 };
        let before = (self.random(PROCESSES), self.random(NAMES));
        let (rules, tokens, releases) =
            (RuleSet::default(), [token(process, name)], [token(before.0, before.1)]);
        let mut ask = Ask::new(&rules, &[1]);
        let mut wanted = Slots::new(slots as u32, TICK * u32::from(TTL), &tokens);
        wanted.floor = floor;
        ask.slots = Some(wanted);
        if ride {
            ask.releases = &releases;
            self.model.end(before.0, before.1, None);
        }
        let mut answer = Answer::default();
        self.counts.admit(&ask, &mut answer).unwrap();
        let fence = answer.fence.map(u64::from);
        assert_eq!(answer.refusal.is_some_and(|refusal| refusal.slots), answer.granted == 0);
        let now = self.clock.now().as_micros() as u64;
        let expected = self.model.take(process, name, slots, floor, now, None);
        let real = Came { kind: 1, good: answer.granted == 1, fence };
        let modelled = Came { kind: 1, good: expected.is_some(), fence: expected };
        let rides = if ride { format!(", {before:?} released on it") } else { String::new() };
        (format!("process {process} asks under name {name} for one of {slots}{rides}"), (real, modelled))
    }

    fn renew(&mut self, process: usize, name: usize) -> (String, (Came, Came)) {
        let mut held = Vec::new();
        let lease = Lease { token: token(process, name), ttl: TICK * u32::from(TTL) };
        self.counts.renew(&[lease], Deadline::never(), &mut held).unwrap();
        let expected = self.model.renew(process, name, None);
        let came = |good| Came { kind: 0, good, fence: None };
        (format!("process {process} renews name {name}"), (came(held[0]), came(expected)))
    }

    fn release(&mut self, process: usize, name: usize) -> (String, (Came, Came)) {
        self.counts.release(&[token(process, name)]).unwrap();
        self.model.end(process, name, None);
        (format!("process {process} releases name {name}"), done())
    }

    fn random(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }
}

/// Nothing is answered; what was done shows in later answers.
fn done() -> (Came, Came) {
    let came = || Came { kind: 2, good: false, fence: None };
    (came(), came())
}

fn token(process: usize, name: usize) -> Token {
    Token((process * NAMES + name) as u128)
}
