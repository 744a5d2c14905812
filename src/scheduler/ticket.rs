//! A ticket: what one waiting call holds until it is settled.
//!
//! It is settled once. The first of grant, deadline, cancel and close wins; whoever comes later is told so and undoes its
//! own side. The waiter is unparked after the locks of the one who settled are gone.

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
    parker: Parker,
}

const OPEN: u8 = 0;
const SETTLED: u8 = 1;

impl<G> Ticket<G> {
    /// A ticket that the calling thread will wait for.
    pub(crate) fn new(clock: &Clock) -> Ticket<G> {
        Ticket { settled: AtomicU8::new(OPEN), outcome: Mutex::new(None), parker: Parker::new(clock) }
    }

    /// Decides how the call ends; `false` if that was decided before. The winner calls [`wake`](Ticket::wake) afterwards,
    /// outside its locks.
    #[must_use]
    pub(crate) fn settle(&self, outcome: Outcome<G>) -> bool {
        if fault("notify-before-publish") {
            self.parker.unpark();
        }
        let won = self.settled.compare_exchange(OPEN, SETTLED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won || fault("settle-without-compare") {
            *self.outcome.lock() = Some(outcome);
            return true;
        }
        false
    }

    /// Lets the waiter go on. To be called after [`settle`](Ticket::settle), never before: a waiter that wakes to nothing
    /// would wait again, and for ever.
    pub(crate) fn wake(&self) {
        if !fault("notify-before-publish") {
            self.parker.unpark();
        }
    }

    /// Parks until settled.
    pub(crate) fn wait(&self) -> Outcome<G> {
        loop {
            self.parker.park();
            if let Some(outcome) = self.outcome.lock().take() {
                return outcome;
            }
        }
    }
}
