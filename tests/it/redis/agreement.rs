//! Memory and the scripts, call by call: whatever is asked, both answer the same to the microsecond.
//!
//! The test turns the clock of both. `VALVE_STEPS` sets how many steps it takes, `VALVE_SEED` the first seed.

mod draw;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use valve::testing::ManualClock;
use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Redis, RedisStore, Slots, Store};

use super::scripts::turn_to;
use super::server::Server;
use crate::support::{Random, micros, us};
use draw::{Act, Asked, Course, View};

/// How many steps a run of the tests takes.
const STEPS: u64 = 60_000;

/// How many steps one id sees.
const ROUND: u64 = 100;

#[test]
fn memory_and_the_scripts_agree_call_by_call() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let steps = number("VALVE_STEPS").unwrap_or(STEPS);
    let base = number("VALVE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 16);
    let server = Server::start();
    let redis = Redis::builder(&server.url()).manual_time().build().unwrap();
    let mut met = Met::default();
    for seed in base..base + steps.div_ceil(ROUND) {
        server.cli(&["FLUSHALL"]);
        Pair::new(seed, &server, &redis, &mut met).run();
    }
    #[expect(clippy::print_stdout, reason = "the figures and the seed are what a reader wants to know")]
    {
        println!("agreement: {steps} steps from seed {base}: {met:?}");
    }
    met.suffices(steps);
}

/// What was met, so that a run that says little is seen.
#[derive(Debug, Default)]
struct Met {
    granted: u64,
    cut: u64,
    by_rate: u64,
    by_slots: u64,
    by_pause: u64,
    never: u64,
    renewed: u64,
    lost: u64,
}

impl Met {
    fn count(&mut self, answer: &Answer, asked: usize) {
        self.granted += answer.granted as u64;
        self.cut += u64::from((1..asked).contains(&answer.granted));
        let Some(refusal) = answer.refusal else { return };
        self.by_rate += u64::from(refusal.rate.is_some());
        self.by_slots += u64::from(refusal.slots);
        self.by_pause += u64::from(refusal.pause.is_some());
        self.never += u64::from(refusal.rate.is_some_and(|(_, wait)| micros(wait) > u64::MAX / 2));
    }

    #[track_caller]
    fn suffices(&self, steps: u64) {
        let often =
            [self.granted, self.cut, self.by_rate, self.by_slots, self.by_pause, self.renewed, self.lost];
        assert!(often.iter().all(|&count| count > steps / 100), "too little was met: {self:?}");
        assert!(self.never > steps / 10_000, "too few costs that can never start: {self:?}");
    }
}

/// One id in both stores.
struct Pair<'a> {
    seed: u64,
    random: Random,
    server: &'a Server,
    met: &'a mut Met,
    clock: ManualClock,
    memory: Arc<dyn Counts>,
    scripts: Arc<dyn Counts>,
    course: Course,
    views: Vec<View>,
}

impl<'a> Pair<'a> {
    fn new(seed: u64, server: &'a Server, redis: &Redis, met: &'a mut Met) -> Pair<'a> {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        // The sums that matter are as large as today's time, and larger.
        clock.advance(us([0, 1_800_000_000_000_000, 3_600_000_000_000_000][random.below(3) as usize]));
        let memory = MemoryStore::builder().clock(&clock).build().open("id").unwrap();
        let scripts = RedisStore::new(redis).open("id").unwrap();
        let views = View::draw_several(&mut random);
        let mut pair =
            Pair { seed, random, server, met, clock, memory, scripts, course: Course::default(), views };
        pair.turn(0);
        pair
    }

    fn run(&mut self) {
        for step in 0..ROUND {
            let now = micros(self.clock.now());
            let act = self.course.draw(&mut self.random, &self.views, now);
            let context = format!("step {step} at {now} us: {act:?}");
            match act {
                Act::Ask(asked) => self.ask(&asked, &context),
                Act::Renew(leases) => self.renew(&leases, &context),
                Act::Release(tokens) => {
                    self.memory.release(&tokens).unwrap();
                    self.scripts.release(&tokens).unwrap();
                }
                Act::Pause(length) => {
                    let memory = self.memory.pause(length, Deadline::never()).unwrap();
                    let scripts = self.scripts.pause(length, Deadline::never()).unwrap();
                    self.agree(&memory, &scripts, &context);
                }
                Act::Resume => {
                    self.memory.resume(Deadline::never()).unwrap();
                    self.scripts.resume(Deadline::never()).unwrap();
                }
            }
            let length = self.course.moves(&mut self.random, now);
            self.turn(length);
        }
    }

    fn ask(&mut self, asked: &Asked, context: &str) {
        let view = &self.views[asked.view];
        let mut ask = Ask::new(&view.rules, &asked.costs);
        (ask.releases, ask.waits) = (&asked.releases, asked.waits);
        if let Some((limit, ttl)) = asked.slots {
            let mut slots = Slots::new(limit, ttl, &asked.tokens);
            slots.floor = asked.floor;
            ask.slots = Some(slots);
        }
        let (mut memory, mut scripts) = (Answer::default(), Answer::default());
        self.memory.admit(&ask, &mut memory).unwrap();
        self.scripts.admit(&ask, &mut scripts).unwrap();
        self.agree(&memory, &scripts, context);
        self.met.count(&memory, asked.costs.len());
        self.course.learn(asked, &memory);
    }

    fn renew(&mut self, leases: &[Lease], context: &str) {
        let (mut memory, mut scripts) = (Vec::new(), Vec::new());
        self.memory.renew(leases, Deadline::never(), &mut memory).unwrap();
        self.scripts.renew(leases, Deadline::never(), &mut scripts).unwrap();
        self.agree(&memory, &scripts, context);
        let held = memory.iter().filter(|&&held| held).count() as u64;
        (self.met.renewed, self.met.lost) =
            (self.met.renewed + held, self.met.lost + memory.len() as u64 - held);
    }

    #[track_caller]
    fn agree<T: PartialEq + std::fmt::Debug>(&self, memory: &T, scripts: &T, context: &str) {
        assert_eq!(
            memory, scripts,
            "memory, then the scripts: {context}; {:#?}; seed {}: run it again with VALVE_SEED={}",
            self.views, self.seed, self.seed
        );
    }

    /// Moves both clocks on.
    fn turn(&mut self, length: u64) {
        self.clock.advance(us(length));
        turn_to(self.server, micros(self.clock.now()));
    }
}
