//! What happens in one schedule, drawn from its seed.

use std::time::Duration;
use valve::Rule;

/// One schedule: two valves at most, on one store and id; participants that act one thing after the other; and what the
/// test itself does in between.
#[derive(Debug)]
pub(super) struct Plan {
    /// What the clock shows when it begins.
    pub(super) begin: u64,
    pub(super) rules: Vec<RulePlan>,
    pub(super) valves: Vec<ValvePlan>,
    /// How many there are; each is for the calls of one valve, its number modulo the number of valves.
    pub(super) tokens: usize,
    pub(super) participants: Vec<Vec<Act>>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(super) enum RulePlan {
    Gcra { limit: u32, interval: u64, burst: u32 },
    Window { limit: u32, interval: u64 },
}

#[derive(Debug)]
pub(super) struct ValvePlan {
    pub(super) concurrency: Option<u32>,
    pub(super) max_queue: Option<usize>,
}

/// What a participant does, or the test's own thread. Times are in ticks.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Sleep(u64),
    Call(Call),
    Cancel(usize),
    Pause { valve: usize, length: u64 },
    Resume { valve: usize },
    Close { valve: usize },
    Drain { valve: usize, timeout: u64 },
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) valve: usize,
    pub(super) priority: i32,
    pub(super) cost: u32,
    pub(super) max_wait: Option<u64>,
    pub(super) token: Option<usize>,
    pub(super) by: By,
    /// How long the job takes.
    pub(super) takes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Acquire,
    AcquireOwned,
    Try,
    Run,
    /// `run` of a job that panics in the end.
    Panic,
    /// A job that fails so many attempts and is tried again at most `times`, `wait` after each.
    Retry {
        failures: u32,
        times: u32,
        wait: u64,
    },
}

#[derive(Debug)]
pub(super) enum Step {
    Advance(u64),
    /// To the next instant at which something is due.
    Next,
    Act(Act),
    /// Gives back what `Try` got on this thread.
    LetGo,
}

/// Numbers from a seed: splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    /// One time in `times`.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A time on a coarse grid, so that several things fall on one tick, or anywhere.
    fn time(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => 1 + self.below(400_000),
            _ => self.below(8) * 50_000,
        }
    }
}

impl Plan {
    pub(super) fn draw(seed: u64) -> Plan {
        let random = &mut Random(seed);
        let begin = random.of(&[0, 0, 59_300_000, 3_599_900_000, 77_777_777]);
        let rules: Vec<_> = (0..random.of(&[0, 1, 1, 1, 2, 3])).map(|_| RulePlan::draw(random)).collect();
        let valves: Vec<_> = (0..random.of(&[1, 1, 1, 2])).map(|_| ValvePlan::draw(random)).collect();
        let capacity = rules.iter().map(RulePlan::capacity).min().unwrap_or(3);
        let mut draw = Draw { random, valves: valves.len(), capacity, tokens: 2 * valves.len() };
        let participants = (0..3 + draw.random.below(6)).map(|_| draw.participant()).collect();
        let steps = (0..6 + draw.random.below(12)).map(|_| draw.step()).collect();
        Plan { begin, rules, valves, tokens: draw.tokens, participants, steps }
    }

    /// The same, but for some calls that are tried again.
    pub(super) fn with_retries(mut self, seed: u64) -> Plan {
        let random = &mut Random(!seed);
        for act in self.participants.iter_mut().flatten() {
            if let Act::Call(call) = act {
                if call.by == By::Run || random.one_in(4) {
                    let (failures, times) = (random.below(4) as u32, random.below(4) as u32);
                    call.by = By::Retry { failures, times, wait: random.time() };
                }
            }
        }
        self
    }

    pub(super) fn calls(&self) -> usize {
        self.participants.iter().flatten().filter(|act| matches!(act, Act::Call(_))).count()
    }
}

impl RulePlan {
    fn draw(random: &mut Random) -> RulePlan {
        let interval = random.of(&[50_000, 100_000, 100_000, 400_000, 333_331, 7]);
        let limit = 1 + random.below(6) as u32;
        if random.one_in(3) {
            return RulePlan::Window { limit, interval };
        }
        RulePlan::Gcra { limit, interval, burst: random.of(&[1, 1, 2, 3, 5]) }
    }

    pub(super) fn capacity(&self) -> u32 {
        match *self {
            RulePlan::Gcra { burst, .. } => burst,
            RulePlan::Window { limit, .. } => limit,
        }
    }

    pub(super) fn rule(&self) -> Rule {
        match *self {
            RulePlan::Gcra { limit, interval, burst } => {
                let rule = Rule::gcra(limit, Duration::from_micros(interval));
                if burst == 1 { rule.into() } else { rule.burst(burst).into() }
            }
            RulePlan::Window { limit, interval } => {
                Rule::fixed_window(limit, Duration::from_micros(interval)).into()
            }
        }
    }
}

impl ValvePlan {
    fn draw(random: &mut Random) -> ValvePlan {
        let concurrency = random.of(&[None, Some(1), Some(2), Some(4)]);
        ValvePlan { concurrency, max_queue: random.of(&[None, None, None, Some(1), Some(3)]) }
    }
}

/// What acts are drawn from.
struct Draw<'a> {
    random: &'a mut Random,
    valves: usize,
    capacity: u32,
    tokens: usize,
}

impl Draw<'_> {
    fn participant(&mut self) -> Vec<Act> {
        let mut acts = vec![Act::Sleep(self.random.time())];
        for _ in 0..=self.random.below(4) {
            acts.push(Act::Call(self.call()));
            match self.random.below(10) {
                0..=3 => acts.push(Act::Sleep(self.random.time())),
                4 => acts.push(self.other()),
                _ => {}
            }
        }
        acts
    }

    fn call(&mut self) -> Call {
        let random = &mut *self.random;
        let too_much = u32::from(random.one_in(30));
        let valve = random.below(self.valves as u64) as usize;
        let tokens = (self.tokens / self.valves) as u64;
        Call {
            valve,
            priority: random.of(&[0, 0, 0, 1, -1, i32::MAX]),
            cost: 1 + random.below(self.capacity.min(3).into()) as u32 + too_much * self.capacity,
            max_wait: random.one_in(3).then(|| random.time()),
            token: random.one_in(3).then(|| random.below(tokens) as usize * self.valves + valve),
            by: random.of(&[
                By::Acquire,
                By::Acquire,
                By::AcquireOwned,
                By::Try,
                By::Run,
                By::Run,
                By::Panic,
            ]),
            takes: random.time(),
        }
    }

    /// Anything but a call; what ends a valve is rare.
    fn other(&mut self) -> Act {
        let valve = self.random.below(self.valves as u64) as usize;
        match self.random.below(16) {
            0 => Act::Close { valve },
            1 => Act::Drain { valve, timeout: self.random.time() },
            2..=8 => Act::Cancel(self.random.below(self.tokens as u64) as usize),
            9..=12 => Act::Pause { valve, length: self.random.time() },
            _ => Act::Resume { valve },
        }
    }

    fn step(&mut self) -> Step {
        match self.random.below(10) {
            0..=4 => Step::Advance(self.random.time()),
            5 => Step::Next,
            6 => Step::LetGo,
            7 => Step::Act(Act::Call(Call { by: By::Try, token: None, ..self.call() })),
            // Draining waits, which the test's own thread must not.
            _ => match self.other() {
                Act::Drain { valve, .. } => Step::Act(Act::Resume { valve }),
                act => Step::Act(act),
            },
        }
    }
}
