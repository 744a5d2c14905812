//! A thread of a process: it makes its calls, and tells the world all that it sees.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use valve::{Abort, CancelToken, Error, Running, Valve};

use super::plan::{By, Call, JobPlan};
use super::witness::Backing;
use super::world::World;

pub(super) struct Job {
    pub(super) backing: Arc<Backing>,
    pub(super) process: usize,
    pub(super) valve: Valve,
    pub(super) tokens: Vec<CancelToken>,
}

impl Job {
    /// The whole life of the thread.
    pub(super) fn live(&self, plan: &JobPlan) {
        for call in &plan.calls {
            self.sleep(call.after);
            if self.is_crashed() {
                break;
            }
            self.call(call);
        }
        self.backing.tell(|world, _| world.finished += 1);
    }

    fn is_crashed(&self) -> bool {
        self.backing.tell(|world, _| world.is_crashed(self.process))
    }

    /// Takes time, and more if the process is frozen by then.
    fn sleep(&self, length: u64) {
        self.backing.clock.sleep(Duration::from_micros(length));
        loop {
            let left = self.backing.tell(|world, now| world.frozen_until(self.process).saturating_sub(now));
            if left == 0 || self.is_crashed() {
                return;
            }
            self.backing.clock.sleep(Duration::from_micros(left));
        }
    }

    fn call(&self, call: &Call) {
        let number = self.backing.tell(|world, now| world.called(now, self.process, call));
        let mut job = self.valve.job().cost(call.cost).priority(call.priority);
        if let Some(wait) = call.max_wait {
            job = job.max_wait(Duration::from_micros(wait));
        }
        if let Some(token) = call.token {
            job = job.cancel(&self.tokens[token]);
        }
        let work = |at, fence, lost: &dyn Fn() -> bool| self.work(number, call, at, fence, lost, None);
        let result = match call.by {
            By::Run => job.run(|running| self.run(number, call, running)),
            By::AcquireOwned => job.acquire_owned().and_then(|permit| {
                work(permit.admitted_at(), permit.fencing_token(), &|| permit.is_aborted());
                permit.finish()
            }),
            By::Acquire | By::Drop | By::Try => {
                let permit = if call.by == By::Try { job.try_acquire() } else { job.acquire() };
                permit.and_then(|permit| {
                    work(permit.admitted_at(), permit.fencing_token(), &|| permit.is_aborted());
                    if call.by == By::Drop { Ok(()) } else { permit.finish() }
                })
            }
        };
        self.ended(number, call, &result);
    }

    fn ended(&self, number: usize, call: &Call, result: &Result<(), Error>) {
        self.backing.tell(|world, now| world.ended(now, number, result, call.by != By::Drop));
    }

    fn run(&self, number: usize, call: &Call, running: &Running<'_>) {
        let told = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&told);
        let _guard = running.on_abort(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let lost = || running.aborted() == Some(Abort::LeaseLost);
        self.work(number, call, running.admitted_at(), running.fencing_token(), &lost, Some(&told));
    }

    fn work(
        &self,
        number: usize,
        call: &Call,
        admitted_at: SystemTime,
        fence: Option<NonZeroU64>,
        lost: &dyn Fn() -> bool,
        told: Option<&AtomicU64>,
    ) {
        let admitted_at = admitted_at.duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let look = |world: &mut World, now| {
            world.looked(now, number, lost(), told.map(|told| told.load(Ordering::Relaxed)));
        };
        self.backing.tell(|world, now| {
            world.started(now, number, fence.map(NonZeroU64::get), admitted_at);
            look(world, now);
        });
        for _ in 0..call.looks {
            self.sleep(call.takes / call.looks);
            if self.is_crashed() {
                return;
            }
            self.backing.tell(look);
            if call.obeys && lost() {
                return;
            }
        }
    }
}
