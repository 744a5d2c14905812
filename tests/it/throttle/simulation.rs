//! Whole throttles on virtual time, by seed: random calls of several instances on one engine, calm, slow or failing, and a judge
//! that knows only what happened.
//!
//! `VALVE_SEED=<seed>` runs that one first.

mod judge;

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Phase, Ran, ThrottleError};

use super::scripted::{AT_ONCE, Asked, Reply, Scripted, What};
use super::stage::{Stage, Throttle};
use crate::support::{Random, micros, ms};

/// How many schedules a run of the tests goes through.
const SCHEDULES: u64 = 150;

/// What the engine is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// None that others may see: every instance is alone.
    Private,
    Calm,
    /// Answers take up to 30 ms.
    Slow,
    /// One call in five fails, and answers take up to half a second.
    Failing,
}

/// How the calls of an instance end before their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    Flush(u64),
    Destroy(u64),
    Drop(u64),
}

#[derive(Debug, Clone)]
struct Plan {
    window: u64,
    instances: u32,
    mood: Mood,
    /// What befalls the first instance.
    ending: Ending,
    calls: Vec<Call>,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    number: u32,
    instance: u32,
    key: u32,
    at: u64,
    waits: Waits,
    takes: u64,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    No,
    ForEver,
    For(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Good,
    Fails,
    Panics,
}

/// One thing that happened, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    at: u64,
    instance: u32,
    key: u32,
    /// The call's number, or that of the call whose closure it is.
    call: u32,
    what: Happened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Called,
    Began { leading: bool, covered: usize },
    Ended,
    Given(Given),
    Destroyed,
}

/// What a call gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Now,
    Later,
    /// The value of that closure.
    Value(u32),
    /// Its error.
    Error(u32),
    /// Its own closure's panic.
    Unwound,
    Panicked,
    Timeout,
    Dropped,
    Destroyed,
}

/// What happened, and what is left.
struct Course {
    events: Vec<Event>,
    /// Calls that were given up after ten lost races.
    dropped: u64,
    /// Calls that `destroy` ended, or refused.
    destroyed: u64,
    /// Active, pending and held keys and timers, of all instances.
    left: usize,
    timers: usize,
}

impl Plan {
    fn draw(seed: u64) -> Plan {
        let mut random = Random::new(seed);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let window = one_of(&[20, 50, 100, 300]);
        let instances = one_of(&[1, 2, 3]) as u32;
        let mood = [Mood::Private, Mood::Calm, Mood::Slow, Mood::Failing][one_of(&[0, 1, 2, 3]) as usize];
        let keys = one_of(&[1, 2, 4]) as u32;
        let horizon = window * 20;
        let middle = horizon / 2;
        let endings = [
            Ending::None,
            Ending::None,
            Ending::Flush(middle),
            Ending::Destroy(middle),
            Ending::Drop(middle),
        ];
        let ending = endings[one_of(&[0, 1, 2, 3, 4]) as usize];
        let calls = (0..120)
            .map(|number| Call {
                number,
                instance: random.below(u64::from(instances)) as u32,
                key: random.below(u64::from(keys)) as u32,
                at: random.below(horizon),
                waits: match random.below(10) {
                    0..6 => Waits::No,
                    6..8 => Waits::ForEver,
                    _ => Waits::For(1 + random.below(3 * window)),
                },
                takes: match random.below(4) {
                    0 => 0,
                    1 => 2 * window,
                    _ => random.below(window),
                },
                end: match random.below(10) {
                    0 => End::Fails,
                    1 => End::Panics,
                    _ => End::Good,
                },
            })
            .collect();
        Plan { window, instances, mood, ending, calls }
    }
}

/// Where a plan is played.
#[derive(Clone)]
struct Play {
    clock: ManualClock,
    events: Arc<Mutex<Vec<Event>>>,
}

fn play(plan: &Plan, seed: u64) -> Course {
    let stage = Stage::new();
    let play = Play { clock: stage.clock.clone(), events: Arc::default() };
    let engine = Scripted::new(&stage);
    let mood = plan.mood;
    engine.answers(move |asked| reply(mood, seed, asked));
    let throttle = |_| match mood {
        Mood::Private => stage.private(plan.window),
        _ => stage.on(&engine, plan.window),
    };
    let throttles: Vec<Throttle> = (0..plan.instances).map(throttle).collect();
    for call in plan.calls.clone() {
        let (play, throttle) = (play.clone(), throttles[call.instance as usize].clone());
        stage.at(call.at, move || play.call(&throttle, call));
    }
    let (first, ends) = (throttles[0].clone(), play.clone());
    match plan.ending {
        Ending::None => {}
        Ending::Flush(at) => stage.at(at, move || {
            first.flush();
        }),
        Ending::Destroy(at) => stage.at(at, move || {
            ends.happened(Call { number: u32::MAX, ..NOBODY }, Happened::Destroyed);
            first.destroy();
        }),
        Ending::Drop(at) => stage.at(at, move || drop(first)),
    }
    stage.until(plan.window * 20 + 1_000_000);
    let stats: Vec<_> = throttles.iter().map(Throttle::stats).collect();
    let left = stats.iter().map(|stats| stats.active + stats.pending + stats.keys + stats.timers).sum();
    let dropped = stats.iter().map(|stats| stats.dropped).sum();
    let events = play.events.lock().clone();
    let refused = events.iter().skip_while(|event| event.what != Happened::Destroyed);
    let refused =
        refused.filter(|event| event.what == Happened::Called && event.instance == 0).count() as u64;
    let destroyed = refused + stats.iter().map(|stats| stats.destroyed).sum::<u64>();
    Course { events, dropped, destroyed, left, timers: stage.clock.timers() }
}

const NOBODY: Call =
    Call { number: 0, instance: 0, key: 0, at: 0, waits: Waits::No, takes: 0, end: End::Good };

fn reply(mood: Mood, seed: u64, asked: &Asked) -> Reply {
    let operation = asked.operation as u64;
    let mut random = Random::new(seed ^ (operation << 40) ^ ((asked.nth as u64) << 8) ^ asked.at);
    match mood {
        Mood::Private | Mood::Calm => AT_ONCE,
        Mood::Slow => Reply { after: random.below(31), what: What::Decided },
        Mood::Failing => Reply {
            after: if random.below(3) == 0 { random.below(501) } else { 0 },
            what: if random.below(5) == 0 { What::Fails } else { What::Decided },
        },
    }
}

impl Play {
    fn happened(&self, call: Call, what: Happened) {
        let at = micros(self.clock.now());
        let Call { number, instance, key, .. } = call;
        self.events.lock().push(Event { at, instance, key, call: number, what });
    }

    fn call(&self, throttle: &Throttle, call: Call) {
        let play = self.clone();
        let key = format!("key {}", call.key);
        let job = throttle.job(&key, move |run| {
            let leading = run.phase == Phase::Leading;
            play.happened(call, Happened::Began { leading, covered: run.covered });
            play.clock.sleep(ms(call.takes));
            play.happened(call, Happened::Ended);
            match call.end {
                End::Good => Ok(call.number),
                End::Fails => Err(call.number.to_string()),
                End::Panics => panic!("closure {} panics, as it should", call.number),
            }
        });
        self.happened(call, Happened::Called);
        let given = catch_unwind(AssertUnwindSafe(|| match call.waits {
            Waits::No => job.exec().map(|ran| if ran == Ran::Now { Given::Now } else { Given::Later }),
            Waits::ForEver => job.wait_finish().exec().map(Given::Value),
            Waits::For(timeout) => job.wait_finish().timeout(ms(timeout)).exec().map(Given::Value),
        }));
        let given = match given {
            Err(_) => Given::Unwound,
            Ok(Ok(given)) => given,
            Ok(Err(ThrottleError::Run(error))) => Given::Error(error.parse().unwrap()),
            Ok(Err(ThrottleError::Timeout { .. })) => Given::Timeout,
            Ok(Err(ThrottleError::Dropped { .. })) => Given::Dropped,
            Ok(Err(ThrottleError::Destroyed { .. })) => Given::Destroyed,
            Ok(Err(ThrottleError::Panicked { .. })) => Given::Panicked,
            Ok(Err(other)) => panic!("{other:?}"),
        };
        self.happened(call, Happened::Given(given));
    }
}

#[track_caller]
fn check(seed: u64) -> Course {
    let plan = Plan::draw(seed);
    let course = play(&plan, seed);
    let wrong = judge::judge(&plan, &course);
    if !wrong.is_empty() {
        let events: Vec<_> = course.events.iter().map(|event| format!("{event:?}\n")).collect();
        let Plan { window, instances, mood, ending, .. } = plan;
        panic!(
            "{}\n{window} ms, {instances} instances, {mood:?}, {ending:?}\n{wrong:#?}\nseed {seed}: VALVE_SEED={seed}",
            events.concat()
        );
    }
    course
}

/// The environment's seed, or one that nobody knows.
fn base() -> u64 {
    let chosen = std::env::var("VALVE_SEED").ok().and_then(|seed| seed.parse().ok());
    chosen.unwrap_or_else(|| RandomState::new().hash_one(0) >> 16)
}

/// The panics of closures are part of the plan, and no news.
fn without_their_panics(test: impl FnOnce()) {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload().downcast_ref::<String>();
        if !text.is_some_and(|text| text.starts_with("closure ")) {
            let mut out = std::io::stderr().lock();
            let _ = std::io::Write::write_fmt(&mut out, format_args!("{panic}\n"));
        }
    }));
    test();
}

#[test]
fn random_calls_keep_every_promise() {
    without_their_panics(|| {
        let base = base();
        let (mut runs, mut calls) = (0, 0);
        for seed in base..base + SCHEDULES {
            let course = check(seed);
            let count =
                |what: fn(&Happened) -> bool| course.events.iter().filter(|event| what(&event.what)).count();
            runs += count(|what| matches!(what, Happened::Began { .. }));
            calls += count(|what| matches!(what, Happened::Called));
        }
        #[expect(clippy::print_stdout, reason = "the figures and the seed are what a reader wants to know")]
        {
            println!("simulation: {SCHEDULES} schedules, {calls} calls, {runs} runs, seed base {base}");
        }
        assert!(runs > calls / 10, "only {runs} runs of {calls} calls: the schedules say little");
    });
}

#[test]
fn random_calls_take_the_same_course_for_the_same_seed() {
    without_their_panics(|| {
        let base = base();
        for seed in base..base + 10 {
            let (one, other) = (check(seed), check(seed));
            assert_eq!(one.events, other.events, "seed {seed}");
        }
    });
}
