//! Tasks that take a second each, on a clock that the test turns: how many are done by when, and which threads stay.

use super::*;
use crate::scheduler::{Outcome, Ticket};
use crate::testing::ManualClock;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

struct Trial {
    clock: ManualClock,
    workers: Workers,
    done: Arc<Mutex<Vec<u64>>>,
}

impl Trial {
    fn new(bound: usize) -> Trial {
        let clock = ManualClock::new();
        let workers = Workers::new("trial", bound, &clock.clock());
        Trial { clock, workers, done: Arc::default() }
    }

    fn submit(&self, urgency: Urgency, count: usize) {
        for _ in 0..count {
            let (clock, done) = (self.clock.clone(), Arc::clone(&self.done));
            let task = move || {
                clock.sleep(SECOND);
                done.lock().push(clock.now().as_secs());
            };
            self.workers.submit(Box::new(task), urgency);
        }
    }

    fn threads(&self) -> usize {
        self.workers.pool.state.lock().threads
    }
}

#[test]
fn so_many_tasks_go_on_at_once() {
    let trial = Trial::new(2);
    trial.submit(Urgency::InTurn, 5);
    trial.clock.advance(SECOND * 10);
    assert_eq!(*trial.done.lock(), [1, 1, 2, 2, 3]);
    assert_eq!(trial.threads(), 2);
}

#[test]
fn what_is_wanted_at_once_has_places_of_its_own() {
    let trial = Trial::new(2);
    trial.submit(Urgency::InTurn, 4);
    trial.submit(Urgency::AtOnce, EXTRA_MAX + 1);
    trial.clock.advance(SECOND * 10);
    let done = trial.done.lock();
    let at = |second| done.iter().filter(|at| **at == second).count();
    assert_eq!((at(1), at(2)), (EXTRA_MAX + 2, 3));
    assert_eq!(trial.threads(), 2, "threads beyond the bound end");
}

#[test]
fn a_thread_that_waits_is_replaced_while_it_waits() {
    let trial = Trial::new(1);
    let ticket: Arc<Mutex<Option<Arc<Ticket<()>>>>> = Arc::default();
    let (clock, place) = (trial.clock.clock(), Arc::clone(&ticket));
    trial.workers.submit(
        Box::new(move || {
            let mine = Arc::new(Ticket::new(&clock));
            *place.lock() = Some(Arc::clone(&mine));
            let Outcome::Granted(()) = mine.wait() else { panic!("nobody fails this ticket") };
        }),
        Urgency::InTurn,
    );
    trial.submit(Urgency::InTurn, 2);
    trial.clock.advance(SECOND * 3 / 2);
    assert_eq!((trial.done.lock().len(), trial.threads()), (1, 2));
    let waits = ticket.lock().take().unwrap();
    assert!(waits.settle(Outcome::Granted(())));
    waits.wake();
    trial.submit(Urgency::InTurn, 1);
    trial.clock.advance(SECOND * 10);
    assert_eq!(*trial.done.lock(), [1, 2, 3], "the one that came back is one too many");
    assert_eq!(trial.threads(), 1);
}

#[test]
fn dismissed_threads_end_once_they_have_nothing_to_do() {
    let trial = Trial::new(4);
    trial.submit(Urgency::InTurn, 3);
    trial.clock.settle();
    trial.workers.dismiss();
    assert_eq!(trial.threads(), 3);
    trial.clock.advance(SECOND * 2);
    assert_eq!((trial.done.lock().len(), trial.threads()), (3, 0));
    trial.submit(Urgency::InTurn, 1);
    trial.clock.advance(SECOND * 2);
    assert_eq!((trial.done.lock().len(), trial.threads()), (4, 1), "one more task, one thread that stays");
    let pool = Arc::clone(&trial.workers.pool);
    drop(trial.workers);
    trial.clock.settle();
    assert_eq!(pool.state.lock().threads, 0, "the handle is gone");
}

#[test]
fn a_task_that_panics_costs_no_thread() {
    let trial = Trial::new(1);
    trial.workers.submit(Box::new(|| panic!("on purpose")), Urgency::InTurn);
    trial.submit(Urgency::InTurn, 1);
    trial.clock.advance(SECOND * 2);
    assert_eq!((trial.done.lock().len(), trial.threads()), (1, 1));
}
