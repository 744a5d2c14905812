//! A ticket: what one waiting call holds until it is settled.
//!
//! It is settled once. The first of grant, deadline, cancel and close wins; whoever comes later is told so and undoes its
//! own side. The waiter is unparked after the locks of the one who settled are gone.

use super::absence;
use crate::clock::{Clock, Parker};
use crate::error::Error;
use crate::planted::fault;
use crate::sync::{AtomicU8, Mutex, Ordering};

/// How a waiting call ended.
#[derive(Debug)]
pub(crate) enum Outcome<G> {
    /// The job may start.
    Granted(G),
    /// It may not.
    Failed(Error),
}

/// One waiting call.
pub(crate) struct Ticket<G> {
    settled: AtomicU8,
    outcome: Mutex<Option<Outcome<G>>>,
    waiter: Waits<G>,
}

/// Who waits.
enum Waits<G> {
    Thread(Parker),
    /// No thread: what is to be done with the outcome.
    Call(Mutex<Option<Call<G>>>),
}

type Call<G> = Box<dyn FnOnce(Outcome<G>) + Send>;

const OPEN: u8 = 0;
const SETTLED: u8 = 1;

impl<G> Ticket<G> {
    /// A ticket that the calling thread will wait for.
    pub(crate) fn new(clock: &Clock) -> Ticket<G> {
        Ticket::for_whom(Waits::Thread(Parker::new(clock)))
    }

    /// A ticket that no thread waits for: whoever wakes it calls `then`, without a lock.
    pub(crate) fn calling(then: impl FnOnce(Outcome<G>) + Send + 'static) -> Ticket<G> {
        Ticket::for_whom(Waits::Call(Mutex::new(Some(Box::new(then)))))
    }

    fn for_whom(waiter: Waits<G>) -> Ticket<G> {
        Ticket { settled: AtomicU8::new(OPEN), outcome: Mutex::new(None), waiter }
    }

    /// Decides how the call ends; `false` if that was decided before. The winner calls [`wake`](Ticket::wake) afterwards,
    /// outside its locks.
    #[must_use]
    pub(crate) fn settle(&self, outcome: Outcome<G>) -> bool {
        if fault("notify-before-publish") {
            self.notify();
        }
        let won = self.settled.compare_exchange(OPEN, SETTLED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won || fault("settle-without-compare") {
            *self.outcome.lock() = Some(outcome);
            return true;
        }
        false
    }

    /// Whether it was decided how the call ends.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) == SETTLED
    }

    /// Lets the waiter go on. To be called after [`settle`](Ticket::settle), never before: a waiter that wakes to nothing
    /// would wait again, and for ever.
    pub(crate) fn wake(&self) {
        if !fault("notify-before-publish") {
            self.notify();
        }
    }

    fn notify(&self) {
        match &self.waiter {
            Waits::Thread(parker) => parker.unpark(),
            Waits::Call(then) => {
                let outcome = self.outcome.lock().take();
                let then = outcome.as_ref().and_then(|_| then.lock().take());
                if let (Some(then), Some(outcome)) = (then, outcome) {
                    then(outcome);
                }
            }
        }
    }

    /// Parks until settled. Not for a ticket made by [`calling`](Ticket::calling).
    pub(crate) fn wait(&self) -> Outcome<G> {
        let _away = (self.settled.load(Ordering::Acquire) == OPEN).then(absence::leave);
        loop {
            if let Waits::Thread(parker) = &self.waiter {
                parker.park();
            }
            if let Some(outcome) = self.outcome.lock().take() {
                return outcome;
            }
        }
    }
}
