//! What the tables of promises are told with: jobs as participants, the log of their starts, and a store that a test scripts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{
    Answer, Ask, CancelToken, Counts, Deadline, Error, Executed, Lease, MemoryStore, Refusal, Remote, Rule,
    Store, StoreError, StoreErrorKind, Token, Valve, Wake,
};

/// In microseconds, like every stamp here.
pub(crate) const MILLISECOND: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000_000;

pub(crate) fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

pub(crate) fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) fn micros(length: Duration) -> u64 {
    length.as_micros().try_into().unwrap()
}

pub(crate) fn stamp(at: SystemTime) -> u64 {
    micros(at.duration_since(UNIX_EPOCH).unwrap())
}

/// A valve of this rule alone, whose calls need no lock, and one with a second rule that never holds, whose calls do.
pub(crate) fn with_and_without_lock(rule: impl Into<Rule>) -> [(ManualClock, Valve); 2] {
    let rule = rule.into();
    let never_holds = Rule::fixed_window(u32::MAX, Duration::from_secs(3_600));
    [vec![rule.clone()], vec![rule, never_holds.into()]].map(|rules| {
        let clock = ManualClock::new();
        let builder = rules.into_iter().fold(Valve::builder("id").clock(&clock), valve::ValveBuilder::rule);
        (clock, builder.build().unwrap())
    })
}

/// Starts jobs of this cost one after the other, each as soon as it may, until the clock shows `until`; stamps and costs.
pub(crate) fn saturate(clock: &ManualClock, valve: &Valve, cost: u32, until: u64) -> Vec<(u64, u32)> {
    let mut starts = Vec::new();
    while micros(clock.now()) < until {
        match valve.job().cost(cost).try_acquire() {
            Ok(permit) => starts.push((stamp(permit.admitted_at()), cost)),
            Err(refused) => {
                clock.advance(wait_of(&refused));
            }
        }
    }
    starts
}

/// Runs a job that may start now; its stamp.
#[track_caller]
pub(crate) fn start_now(valve: &Valve, cost: u32) -> u64 {
    stamp(valve.job().cost(cost).try_acquire().unwrap().admitted_at())
}

/// How long a refused call was told to wait.
#[track_caller]
pub(crate) fn wait_of(refused: &Error) -> Duration {
    match refused {
        Error::WouldWait { retry_after: Some(wait), .. } => *wait,
        other => panic!("not a refusal with a hint: {other:?}"),
    }
}

/// The units in the half-open window `[from, to)`.
pub(crate) fn units_in(starts: &[(u64, u32)], from: u64, to: u64) -> u64 {
    starts.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, cost)| u64::from(*cost)).sum()
}

/// The most units in any half-open window of this length; only one that begins with a start can have the most.
pub(crate) fn most_in_any(starts: &[(u64, u32)], interval: u64) -> u64 {
    assert!(starts.is_sorted_by_key(|(at, _)| *at), "not in the order of their stamps: {starts:?}");
    let (mut most, mut held, mut end) = (0, 0, 0);
    for (first, (from, cost)) in starts.iter().enumerate() {
        while end < starts.len() && starts[end].0 < from + interval {
            held += u64::from(starts[end].1);
            end += 1;
        }
        debug_assert!(end > first, "a window holds its own first start");
        most = most.max(held);
        held -= u64::from(*cost);
    }
    most
}

/// The least time between two starts.
pub(crate) fn closest(starts: &[(u64, u32)]) -> u64 {
    starts.windows(2).map(|pair| pair[1].0 - pair[0].0).min().unwrap_or(u64::MAX)
}

/// A generator of the same numbers for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Below `bound`. Steele, Lea and Flood's SplitMix; its last bits are as good as its first.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn cost(&mut self, most: u32) -> u32 {
        self.below(u64::from(most)) as u32 + 1
    }
}

/// What one job is to be like.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) priority: i32,
    pub(crate) cost: u32,
    pub(crate) lasts: Duration,
    pub(crate) max_wait: Duration,
    pub(crate) token: CancelToken,
    pub(crate) cancellable: bool,
}

pub(crate) fn call(name: impl Into<String>) -> Call {
    Call {
        name: name.into(),
        priority: 0,
        cost: 1,
        lasts: Duration::ZERO,
        max_wait: Duration::MAX,
        token: CancelToken::new(),
        cancellable: false,
    }
}

/// A job that started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) cost: u32,
    /// The store's stamp.
    pub(crate) at: u64,
    /// What the clock showed inside the closure.
    pub(crate) seen: u64,
}

/// Jobs as participants of one clock, and what became of them in the order in which it did.
#[derive(Clone)]
pub(crate) struct Jobs {
    clock: ManualClock,
    starts: Arc<Mutex<Vec<Start>>>,
    ends: Arc<Mutex<Vec<End>>>,
}

/// A job's name and what its call gave.
pub(crate) type End = (String, Result<(), Error>);

impl Jobs {
    pub(crate) fn new(clock: &ManualClock) -> Jobs {
        Jobs { clock: clock.clone(), starts: Arc::default(), ends: Arc::default() }
    }

    /// Calls from a thread of its own, which is not waited for: a job that never starts fails the test and does not hang it.
    pub(crate) fn spawn(&self, valve: &Valve, call: Call) {
        let (jobs, valve) = (self.clone(), valve.clone());
        self.clock.spawn(&call.name.clone(), move || jobs.run(&valve, call));
    }

    /// Calls from the calling participant.
    pub(crate) fn run(&self, valve: &Valve, call: Call) {
        let mut job = valve.job().priority(call.priority).cost(call.cost).max_wait(call.max_wait);
        if call.cancellable {
            job = job.cancel(&call.token);
        }
        let name = call.name.clone();
        let end = job.run(|running| {
            let (at, seen) = (stamp(running.admitted_at()), micros(self.clock.now()));
            self.starts.lock().push(Start { name, cost: call.cost, at, seen });
            self.clock.sleep(call.lasts);
        });
        self.ends.lock().push((call.name, end));
    }

    /// Lets so many threads call as fast as they may until the clock shows `until`.
    pub(crate) fn crowd(&self, valve: &Valve, threads: usize, cost: u32, until: u64) {
        for thread in 0..threads {
            let (jobs, valve, name) = (self.clone(), valve.clone(), format!("crowd-{thread}"));
            self.clock.spawn(&name.clone(), move || {
                while micros(jobs.clock.now()) < until {
                    jobs.run(&valve, Call { cost, ..call(name.clone()) });
                }
            });
        }
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        self.starts.lock().clone()
    }

    /// The names in the order of their starts.
    pub(crate) fn order(&self) -> Vec<String> {
        self.starts().into_iter().map(|start| start.name).collect()
    }

    pub(crate) fn stamps(&self) -> Vec<u64> {
        self.starts().into_iter().map(|start| start.at).collect()
    }

    /// Stamps and costs in the order of the stamps.
    pub(crate) fn units(&self) -> Vec<(u64, u32)> {
        let mut units: Vec<_> = self.starts().into_iter().map(|start| (start.at, start.cost)).collect();
        units.sort_unstable();
        units
    }

    pub(crate) fn ends(&self) -> Vec<End> {
        self.ends.lock().clone()
    }
}

/// What a [`Scripted`] store says to an ask.
#[derive(Clone, Copy)]
pub(crate) enum Reply {
    /// What the memory store inside decides.
    Decided,
    /// "Not for so long", from the first rule.
    Refused(Duration),
    /// Nothing: it cannot be reached.
    Unreachable,
}

/// One answer of a [`Scripted`] store: how long until it is decided, what it is, and how long until it arrives.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) before: Duration,
    pub(crate) reply: Reply,
    pub(crate) after: Duration,
}

impl Step {
    pub(crate) const AT_ONCE: Step =
        Step { before: Duration::ZERO, reply: Reply::Decided, after: Duration::ZERO };
}

/// An ask that a [`Scripted`] store was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// When it was sent.
    pub(crate) sent: u64,
    /// When it was decided.
    pub(crate) at: u64,
    /// The costs of the jobs it granted.
    pub(crate) granted: Vec<u32>,
}

/// A memory store that counts what it is asked, and answers late, or not at all, as a test says. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Scripted {
    clock: ManualClock,
    inner: MemoryStore,
    remote: Option<Remote>,
    script: Arc<Mutex<Script>>,
}

struct Script {
    next: VecDeque<Step>,
    then: Step,
    asked: Vec<Asked>,
    /// How a pause or resume goes.
    writes: Step,
}

impl Scripted {
    /// A store that may be asked on any thread.
    pub(crate) fn local(clock: &ManualClock) -> Scripted {
        let script =
            Script { next: VecDeque::new(), then: Step::AT_ONCE, asked: Vec::new(), writes: Step::AT_ONCE };
        Scripted {
            clock: clock.clone(),
            inner: MemoryStore::builder().clock(clock).build(),
            remote: None,
            script: Arc::new(Mutex::new(script)),
        }
    }

    /// A store that takes time: one worker asks for those who wait.
    pub(crate) fn remote(clock: &ManualClock) -> Scripted {
        Scripted { remote: Some(Remote::new(1, ms(500)).unwrap()), ..Scripted::local(clock) }
    }

    /// The answers to the next asks.
    pub(crate) fn next(&self, steps: impl IntoIterator<Item = Step>) {
        self.script.lock().next.extend(steps);
    }

    /// The answer to every ask after those.
    pub(crate) fn then(&self, step: Step) {
        self.script.lock().then = step;
    }

    /// How every pause and resume goes from now on.
    pub(crate) fn writes(&self, step: Step) {
        self.script.lock().writes = step;
    }

    /// What decides, for those that it answers at once.
    pub(crate) fn memory(&self) -> MemoryStore {
        self.inner.clone()
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.script.lock().asked.clone()
    }

    /// When it was asked.
    pub(crate) fn sent(&self) -> Vec<u64> {
        self.asked().iter().map(|asked| asked.sent).collect()
    }

    /// Everything it granted: stamps and costs.
    pub(crate) fn granted(&self) -> Vec<(u64, u32)> {
        let asked = self.asked();
        let mut units: Vec<_> =
            asked.iter().flat_map(|asked| asked.granted.iter().map(|cost| (asked.at, *cost))).collect();
        units.sort_unstable();
        units
    }
}

impl Store for Scripted {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { store: self.clone(), inner: self.inner.open(id)? }))
    }

    fn remote(&self) -> Option<Remote> {
        self.remote.clone()
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.inner.watch(wake)
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

struct Opened {
    store: Scripted,
    inner: Arc<dyn Counts>,
}

impl Opened {
    fn write<T>(&self, write: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let step = self.store.script.lock().writes;
        self.store.clock.sleep(step.before);
        let result = match step.reply {
            Reply::Decided => write(),
            Reply::Refused(_) | Reply::Unreachable => Err(unreachable()),
        };
        self.store.clock.sleep(step.after);
        result
    }
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        let clock = &self.store.clock;
        let sent = micros(clock.now());
        let step = {
            let mut script = self.store.script.lock();
            let then = script.then;
            script.next.pop_front().unwrap_or(then)
        };
        clock.sleep(step.before);
        let result = match step.reply {
            Reply::Decided => self.inner.admit(ask, answer),
            Reply::Refused(wait) => {
                *answer = Answer::default();
                answer.refusal = Some(Refusal { rate: Some((0, wait)), ..Refusal::default() });
                Ok(())
            }
            Reply::Unreachable => Err(unreachable()),
        };
        let granted = if result.is_ok() { ask.costs[..answer.granted].to_vec() } else { Vec::new() };
        self.store.script.lock().asked.push(Asked { sent, at: micros(clock.now()), granted });
        clock.sleep(step.after);
        result
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.inner.renew(leases, deadline, held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.inner.release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.write(|| self.inner.pause(length, deadline))
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.write(|| self.inner.resume(deadline))
    }
}

fn unreachable() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, Executed::No, "nobody listens there")
}
