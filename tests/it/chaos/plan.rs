//! What happens in one schedule, drawn from its seed. Times are in ticks.

/// How many processes share the store.
pub(super) const PROCESSES: usize = 3;
const MILLISECOND: u64 = 1_000;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Calls take a little time; nothing else.
    Calm,
    /// Calls are refused, lost, late, slow and doubled, notices are lost, and stores are down for a while.
    Network,
    /// Processes freeze and crash, and the store loses its state.
    Processes,
    /// All of it; some stores also execute what comes after its deadline.
    Everything,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) weather: Weather,
    pub(super) limit: u32,
    pub(super) rule: Option<RulePlan>,
    pub(super) processes: Vec<ProcessPlan>,
    pub(super) tokens: usize,
    pub(super) jobs: Vec<JobPlan>,
    pub(super) script: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RulePlan {
    pub(super) limit: u32,
    pub(super) interval: u64,
    pub(super) burst: u32,
}

/// A valve and its store.
#[derive(Debug)]
pub(super) struct ProcessPlan {
    pub(super) seed: u64,
    pub(super) ttl: u64,
    pub(super) local: Option<u32>,
    pub(super) fails: bool,
    pub(super) workers: usize,
    pub(super) timeout: u64,
    pub(super) delay: u64,
    pub(super) errors: u32,
    pub(super) lost_replies: u32,
    pub(super) late: u32,
    pub(super) not_after: bool,
    pub(super) doubled_releases: u32,
    pub(super) lost_notices: u32,
}

/// A thread of a process, and the calls it makes one after the other.
#[derive(Debug, Clone)]
pub(super) struct JobPlan {
    pub(super) process: usize,
    pub(super) calls: Vec<Call>,
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    /// How long the thread sleeps first.
    pub(super) after: u64,
    pub(super) by: By,
    pub(super) cost: u32,
    pub(super) priority: i32,
    pub(super) max_wait: Option<u64>,
    pub(super) token: Option<usize>,
    pub(super) takes: u64,
    /// How often the job asks meanwhile whether it should stop.
    pub(super) looks: u64,
    /// It stops when it should.
    pub(super) obeys: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Run,
    Acquire,
    AcquireOwned,
    /// `acquire` whose permit is dropped.
    Drop,
    Try,
}

/// What the test itself does, and how much time passes before.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) after: u64,
    pub(super) act: Act,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Cancel(usize),
    Down { process: usize, down: bool },
    Freeze { process: usize, length: u64 },
    Crash { process: usize },
    Flush,
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

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A time on a coarse grid, so that several things fall on one tick, or anywhere.
    fn time(&mut self, longest: u64) -> u64 {
        if self.one_in(3) { self.below(longest) } else { self.below(9) * longest / 8 }
    }

    fn process(&mut self) -> usize {
        self.below(PROCESSES as u64) as usize
    }
}

impl Plan {
    pub(super) fn draw(seed: u64, weather: Weather) -> Plan {
        let random = &mut Random(seed);
        let ttl = random.of(&[300, 300, 400, 700]) * MILLISECOND;
        let rule = random.one_in(3).then(|| RulePlan {
            limit: 1 + random.below(5) as u32,
            interval: random.of(&[50, 100, 333, 400]) * MILLISECOND + random.below(2),
            burst: random.of(&[1, 1, 2, 3]),
        });
        let processes = (0..PROCESSES).map(|_| ProcessPlan::draw(random, weather, ttl)).collect();
        let most = rule.map_or(3, |rule| rule.burst.min(3));
        let jobs = (0..3 + random.below(4)).map(|_| JobPlan::draw(random, ttl, most)).collect();
        let script = (0..2 + random.below(5)).map(|_| Step::draw(random, weather, ttl)).collect();
        Plan { weather, limit: 1 + random.below(3) as u32, rule, processes, tokens: TOKENS, jobs, script }
    }
}

const TOKENS: usize = 2;

impl ProcessPlan {
    fn draw(random: &mut Random, weather: Weather, ttl: u64) -> ProcessPlan {
        let timeout = random.of(&[20, 50, 50, 100]) * MILLISECOND;
        let bad = matches!(weather, Weather::Network | Weather::Everything);
        let mut chance = |choices: &[u32]| if bad { random.of(choices) } else { 0 };
        let errors = chance(&[0, 0, 50, 200]);
        let lost_replies = chance(&[0, 50, 150, 400]);
        let late = chance(&[0, 50, 150, 400]);
        let doubled_releases = chance(&[0, 300, 1_000]);
        let lost_notices = chance(&[0, 0, 300, 1_000]);
        let delays = if bad { [0, timeout / 8, timeout / 2, timeout] } else { [0, 0, 1_000, timeout / 8] };
        ProcessPlan {
            seed: random.below(u64::MAX),
            // Processes are not always configured alike.
            ttl: if random.one_in(6) { ttl + 100 * MILLISECOND } else { ttl },
            local: random.of(&[None, None, None, Some(1), Some(2)]),
            fails: random.one_in(5),
            workers: random.of(&[1, 1, 2]),
            timeout,
            delay: random.of(&delays),
            errors,
            lost_replies,
            late,
            not_after: weather != Weather::Everything || random.one_in(3),
            doubled_releases,
            lost_notices,
        }
    }
}

impl JobPlan {
    fn draw(random: &mut Random, ttl: u64, most: u32) -> JobPlan {
        let calls = (0..1 + random.below(3)).map(|_| Call::draw(random, ttl, most)).collect();
        JobPlan { process: random.process(), calls }
    }
}

impl Call {
    fn draw(random: &mut Random, ttl: u64, most: u32) -> Call {
        let by = random.of(&[By::Run, By::Run, By::Run, By::Acquire, By::AcquireOwned, By::Drop, By::Try]);
        Call {
            after: random.time(ttl),
            by,
            cost: if random.one_in(3) { 1 + random.below(most.into()) as u32 } else { 1 },
            priority: random.of(&[0, 0, 0, 1, -1]),
            max_wait: (by != By::Try && random.one_in(3)).then(|| random.time(2 * ttl)),
            token: random.one_in(4).then(|| random.below(TOKENS as u64) as usize),
            takes: random.of(&[0, ttl / 30, ttl / 3, ttl, 2 * ttl, 2 * ttl]) + random.time(ttl / 2),
            looks: 1 + random.below(6),
            obeys: random.one_in(3),
        }
    }
}

impl Step {
    fn draw(random: &mut Random, weather: Weather, ttl: u64) -> Step {
        let cancel = Act::Cancel(random.below(TOKENS as u64) as usize);
        let process = random.process();
        let network = match random.below(4) {
            0 => cancel,
            1 => Act::Down { process, down: false },
            _ => Act::Down { process, down: true },
        };
        let processes = match random.below(8) {
            0 => cancel,
            1 => Act::Flush,
            2 => Act::Crash { process },
            _ => Act::Freeze { process, length: ttl / 4 + random.time(2 * ttl) },
        };
        let act = match weather {
            Weather::Calm => cancel,
            Weather::Network => network,
            Weather::Processes => processes,
            Weather::Everything => random.of(&[network, processes]),
        };
        Step { after: random.time(ttl), act }
    }
}
