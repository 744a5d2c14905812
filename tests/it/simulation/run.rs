//! Runs one schedule on virtual time and has the model look at each act.

use super::plan::{Act, By, Call, Plan, RulePlan, Step};
use super::world::World;
use parking_lot::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use valve::testing::ManualClock;
use valve::{CancelToken, Error, Job, MemoryStore, Permit, Retry, Running, Stats, Step as Tries, Valve};

/// What came of a schedule.
pub(super) struct Course {
    pub(super) trace: Vec<String>,
    pub(super) started: usize,
}

/// Runs the schedule; `Err` says what was not as it must be, and how it came to that.
pub(super) fn run(plan: &Plan) -> Result<Course, String> {
    let stage = Stage::new(plan);
    let threads: Vec<_> = plan
        .participants
        .iter()
        .enumerate()
        .map(|(number, acts)| {
            let (stage, acts) = (stage.clone(), acts.clone());
            stage
                .clock
                .clone()
                .spawn(&format!("{number}"), move || acts.iter().for_each(|act| stage.perform(act)))
        })
        .collect();
    let mut kept = Vec::new();
    for step in &plan.steps {
        stage.take(step, &mut kept);
        stage.look()?;
    }
    stage.take(&Step::LetGo, &mut kept);
    while stage.clock.advance_to_next().is_some() {
        stage.look()?;
    }
    stage.finish()?;
    for thread in threads {
        thread.join().map_err(|_| stage.story("a participant panicked"))?;
    }
    let mut world = stage.world.lock();
    let starts = world.starts();
    for rule in &plan.rules {
        keeps(rule, &starts).map_err(|broken| stage.story_of(&world, &broken))?;
    }
    Ok(Course { trace: std::mem::take(&mut world.trace), started: starts.len() })
}

/// The promise of one rule, over all that was started: no window holds more than it may.
fn keeps(rule: &RulePlan, starts: &[(u64, u32)]) -> Result<(), String> {
    let (interval, most) = match *rule {
        RulePlan::Gcra { limit, interval, burst } => (interval, limit + burst - 1),
        RulePlan::Window { limit, interval } => (interval, limit),
    };
    for (first, &(begin, _)) in starts.iter().enumerate() {
        let end = match rule {
            RulePlan::Gcra { .. } => begin + interval,
            RulePlan::Window { .. } => (begin / interval + 1) * interval,
        };
        let within = starts[first..].iter().take_while(|(at, _)| *at < end);
        let sum: u32 = within.map(|(_, cost)| cost).sum();
        if sum > most {
            return Err(format!("{rule:?}: {sum} units from {begin} to before {end}"));
        }
    }
    if let RulePlan::Gcra { limit, interval, burst: 1 } = *rule {
        for pair in starts.windows(2) {
            if (pair[1].0 - pair[0].0) * u64::from(limit) < interval {
                return Err(format!("{rule:?}: starts at {} and {}", pair[0].0, pair[1].0));
            }
        }
    }
    Ok(())
}

/// How a retried call can fail.
enum Tried {
    Refused(Error),
    Failed,
}

impl From<Error> for Tried {
    fn from(error: Error) -> Tried {
        Tried::Refused(error)
    }
}

/// All that acts share.
#[derive(Clone)]
struct Stage {
    clock: ManualClock,
    valves: Vec<Valve>,
    tokens: Vec<CancelToken>,
    world: Arc<Mutex<World>>,
}

impl Stage {
    fn new(plan: &Plan) -> Stage {
        let clock = ManualClock::new();
        clock.advance(Duration::from_micros(plan.begin));
        let store = MemoryStore::builder().clock(&clock).build();
        let valves = plan.valves.iter().map(|valve| {
            let mut builder = Valve::builder("simulated").store(store.clone()).clock(&clock);
            for rule in &plan.rules {
                builder = builder.rule(rule.rule());
            }
            if let Some(limit) = valve.concurrency {
                builder = builder.concurrency(limit);
            }
            if let Some(limit) = valve.max_queue {
                builder = builder.max_queue(limit);
            }
            builder.build().unwrap()
        });
        let valves = valves.collect();
        let tokens = (0..plan.tokens).map(|_| CancelToken::new()).collect();
        Stage { clock, valves, tokens, world: Arc::new(Mutex::new(World::new(plan))) }
    }

    /// The model, up to date with what can be seen of the valves.
    fn world(&self, told: Option<usize>) -> MutexGuard<'_, World> {
        let stats: Vec<Stats> = self.valves.iter().map(Valve::stats).collect();
        let mut world = self.world.lock();
        world.observe(self.now(), &stats, told);
        world
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    /// One step of the test's own thread.
    fn take<'a>(&'a self, step: &Step, kept: &mut Vec<(usize, Permit<'a>)>) {
        match step {
            Step::Advance(ticks) => {
                self.clock.advance(Duration::from_micros(*ticks));
            }
            Step::Next => {
                self.clock.advance_to_next();
            }
            Step::Act(Act::Call(call)) => {
                let number = self.world(None).call(self.now(), call);
                match self.valves[call.valve].job().priority(call.priority).cost(call.cost).try_acquire() {
                    Ok(permit) => {
                        self.started(number, permit.admitted_at());
                        kept.push((number, permit));
                    }
                    Err(error) => self.failed(number, &error),
                }
            }
            Step::Act(act) => self.perform(act),
            Step::LetGo => {
                for (number, permit) in kept.drain(..) {
                    self.world(None).ends(self.now(), number);
                    drop(permit);
                }
            }
        }
        self.clock.settle();
    }

    fn look(&self) -> Result<(), String> {
        let stats: Vec<Stats> = self.valves.iter().map(Valve::stats).collect();
        let mut world = self.world(None);
        world.settled(self.now(), &stats);
        match world.broken.take() {
            None => Ok(()),
            Some(broken) => Err(self.story_of(&world, &broken)),
        }
    }

    /// Nothing is due any more: all must have ended and nothing may be left behind.
    fn finish(&self) -> Result<(), String> {
        self.look()?;
        if !self.world.lock().is_over() {
            return Err(self.story("somebody waits, and nothing will ever happen"));
        }
        for (valve, handle) in self.valves.iter().enumerate() {
            self.world(None).close(self.now(), valve);
            handle.close();
            let stats = handle.stats();
            if (stats.running, stats.queued, stats.backing_off) != (0, 0, 0) {
                return Err(self.story(&format!("in the end, {stats:?}")));
            }
        }
        let timers = self.clock.timers();
        if timers > 0 { Err(self.story(&format!("{timers} timers are left"))) } else { Ok(()) }
    }

    fn perform(&self, act: &Act) {
        match act {
            Act::Sleep(ticks) => self.clock.sleep(Duration::from_micros(*ticks)),
            Act::Call(call) => self.call(call),
            Act::Cancel(token) => {
                self.world(None).cancel(self.now(), *token);
                self.tokens[*token].cancel();
            }
            Act::Pause { valve, length } => {
                self.world(None).pause(self.now(), *length);
                self.valves[*valve].pause(Duration::from_micros(*length)).unwrap();
            }
            Act::Resume { valve } => {
                self.world(None).resume(self.now());
                self.valves[*valve].resume().unwrap();
            }
            Act::Close { valve } => {
                self.world(None).close(self.now(), *valve);
                self.valves[*valve].close();
            }
            Act::Drain { valve, timeout } => {
                let since = self.now();
                self.world(None).drain(since, *valve);
                let result = self.valves[*valve].drain(Duration::from_micros(*timeout));
                self.world(None).drained(self.now(), *valve, since, *timeout, &result);
            }
        }
    }

    /// A participant's call: made, held for as long as it takes, and given back.
    fn call(&self, call: &Call) {
        let number = self.world(None).call(self.now(), call);
        let mut job = self.valves[call.valve].job().priority(call.priority).cost(call.cost);
        if let Some(wait) = call.max_wait {
            job = job.max_wait(Duration::from_micros(wait));
        }
        if let Some(token) = call.token {
            job = job.cancel(&self.tokens[token]);
        }
        let work = |running: &Running<'_>| self.hold(number, call, running.admitted_at());
        let result: Result<(), Error> = match call.by {
            By::Acquire => job.acquire().and_then(|permit| {
                self.hold(number, call, permit.admitted_at());
                permit.finish()
            }),
            By::AcquireOwned => {
                job.acquire_owned().map(|permit| self.hold(number, call, permit.admitted_at()))
            }
            By::Try => job.try_acquire().map(|permit| self.hold(number, call, permit.admitted_at())),
            By::Run => job.run(work),
            By::Panic => {
                let unwinds = |running: &Running<'_>| {
                    work(running);
                    resume_unwind(Box::new("the job's own panic"));
                };
                catch_unwind(AssertUnwindSafe(|| job.run(unwinds))).unwrap_or(Ok(()))
            }
            By::Retry { failures, times, wait } => {
                match self.try_again(number, call, job, (failures, times, wait)) {
                    Err(Tried::Refused(error)) => Err(error),
                    Err(Tried::Failed) => return self.gave_up(number),
                    Ok(()) => Ok(()),
                }
            }
        };
        if let Err(error) = result {
            self.failed(number, &error);
        }
    }

    fn try_again(
        &self,
        number: usize,
        call: &Call,
        job: Job<'_>,
        (failures, times, wait): (u32, u32, u64),
    ) -> Result<(), Tried> {
        job.retry(Retry::times(times)).run(|running, attempt| {
            self.started(number, running.admitted_at());
            self.clock.sleep(Duration::from_micros(call.takes));
            if attempt <= failures.min(times) {
                self.world(None).backs_off(self.now(), number, wait);
            } else {
                self.world(None).ends(self.now(), number);
            }
            let failed = attempt <= failures;
            if failed { Tries::After(Duration::from_micros(wait), Tried::Failed) } else { Tries::Done(()) }
        })
    }

    /// A retried call ended with its own error: it was tried often enough, or it was too late for more.
    fn gave_up(&self, number: usize) {
        let late = self.world.lock().waits(number).then_some(number);
        self.world(late).gave_up(self.now(), number);
    }

    fn failed(&self, number: usize, error: &Error) {
        let told = matches!(error, Error::Timeout { .. }).then_some(number);
        self.world(told).failed(self.now(), number, error);
    }

    fn hold(&self, number: usize, call: &Call, admitted_at: std::time::SystemTime) {
        self.started(number, admitted_at);
        self.clock.sleep(Duration::from_micros(call.takes));
        self.world(None).ends(self.now(), number);
    }

    fn started(&self, number: usize, admitted_at: std::time::SystemTime) {
        let at = admitted_at.duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        self.world(None).started(self.now(), number, at);
    }

    fn story(&self, broken: &str) -> String {
        self.story_of(&self.world.lock(), broken)
    }

    fn story_of(&self, world: &World, broken: &str) -> String {
        format!("{}\n{broken}\nat {}", world.trace.join("\n"), self.now())
    }
}
