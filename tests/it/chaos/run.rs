//! Runs a plan: three valves over one store, their threads, and what is done to them.

use std::sync::Arc;
use std::time::Duration;

use valve::testing::ChaosStore;
use valve::{CancelToken, OnStoreError, Remote, Rule, Valve};

use super::job::Job;
use super::plan::{Act, Plan, ProcessPlan};
use super::witness::{Backing, ID, Witness};
use super::world::{Seen, World};

/// What is left of a schedule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Course {
    pub(super) seen: Seen,
    pub(super) trace: Vec<String>,
}

/// After this long, once all is well again, every call must have ended: each may wait for all the others, for leases that
/// nobody releases, and for lost notices.
const PATIENCE: u64 = 120;

/// Longer than any lease lasts, and anything is on its way.
const LONG: Duration = Duration::from_secs(3);

pub(super) fn run(plan: &Plan) -> Result<Course, String> {
    let backing = Backing::new(World::new(plan));
    let stores: Vec<_> =
        plan.processes.iter().enumerate().map(|(number, plan)| store(&backing, number, plan)).collect();
    let valves: Vec<_> =
        plan.processes.iter().zip(&stores).map(|(process, store)| valve(plan, process, store)).collect();
    let tokens: Vec<_> = (0..plan.tokens).map(|_| CancelToken::new()).collect();
    let mut threads = Vec::new();
    for (number, job) in plan.jobs.iter().enumerate() {
        let (backing, process) = (Arc::clone(&backing), job.process);
        let thread = Job { backing, process, valve: valves[process].clone(), tokens: tokens.clone() };
        let (job, clock) = (job.clone(), thread.backing.clock.clone());
        threads.push(clock.spawn(&format!("job-{number}"), move || thread.live(&job)));
    }
    for step in &plan.script {
        backing.clock.advance(Duration::from_micros(step.after));
        act(&backing, &stores, &tokens, step.act);
    }
    recover(&backing, &stores, &valves);
    wait_for(&backing, plan.jobs.len());
    drop(valves);
    backing.clock.advance(LONG);
    backing.tell(|world, now| world.all_over(now));
    drop(stores);
    backing.clock.settle();
    if backing.tell(|world, _| world.broken.is_none()) {
        let timers = backing.clock.timers();
        assert_eq!(timers, 0, "timers are left behind");
        for thread in threads {
            thread.join().unwrap();
        }
    }
    backing.tell(|world, _| {
        let (seen, trace) = (std::mem::take(&mut world.seen), std::mem::take(&mut world.trace));
        match world.broken.take() {
            None => Ok(Course { seen, trace }),
            Some(broken) => Err(format!("{}\n{broken}", trace.join("\n"))),
        }
    })
}

fn store(backing: &Arc<Backing>, process: usize, plan: &ProcessPlan) -> ChaosStore {
    let witness = Witness { backing: Arc::clone(backing), process };
    ChaosStore::new(witness, plan.seed)
        .served_by(Remote::new(plan.workers, Duration::from_micros(plan.timeout)).unwrap())
        .errors(plan.errors)
        .lost_replies(plan.lost_replies)
        .late(plan.late)
        .not_after(plan.not_after)
        .delays(Duration::from_micros(plan.delay))
        .doubled_releases(plan.doubled_releases)
        .lost_notices(plan.lost_notices)
}

fn valve(plan: &Plan, process: &ProcessPlan, store: &ChaosStore) -> Valve {
    let mut builder = Valve::builder(ID)
        .global_concurrency(plan.limit, Duration::from_micros(process.ttl))
        .on_store_error(if process.fails { OnStoreError::Fail } else { OnStoreError::Wait })
        .store(store.clone());
    if let Some(rule) = plan.rule {
        builder =
            builder.rule(Rule::gcra(rule.limit, Duration::from_micros(rule.interval)).burst(rule.burst));
    }
    if let Some(local) = process.local {
        builder = builder.concurrency(local);
    }
    builder.build().unwrap()
}

fn act(backing: &Backing, stores: &[ChaosStore], tokens: &[CancelToken], act: Act) {
    match act {
        Act::Cancel(token) => {
            backing.tell(|world, now| world.cancelled(now, token));
            tokens[token].cancel();
        }
        Act::Down { process, down } => {
            let crashed = backing.tell(|world, now| {
                world.log(now, format_args!("the store of process {process} is down: {down}"));
                world.is_crashed(process)
            });
            stores[process].set_down(down || crashed);
        }
        Act::Freeze { process, length } => {
            backing.tell(|world, now| world.frozen(now, process, now + length));
            stores[process].freeze(Duration::from_micros(length));
        }
        Act::Crash { process } => {
            backing.tell(|world, now| world.crashed(now, process));
            stores[process].set_down(true);
        }
        Act::Flush => backing.flush(),
    }
}

/// Nothing goes wrong any more. What is dead stays dead: who waits there is let go, for the test has to end.
fn recover(backing: &Backing, stores: &[ChaosStore], valves: &[Valve]) {
    for (process, store) in stores.iter().enumerate() {
        let crashed = backing.tell(|world, now| {
            world.log(now, "recovery");
            world.is_crashed(process)
        });
        if crashed {
            valves[process].close();
        } else {
            store.heal();
        }
    }
}

fn wait_for(backing: &Backing, threads: usize) {
    for _ in 0..PATIENCE {
        if backing.tell(|world, _| world.finished) == threads {
            return;
        }
        backing.clock.advance(Duration::from_secs(1));
    }
    backing.tell(World::never_ended);
}
