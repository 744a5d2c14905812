//! The one way in which threads of this crate wait: until somebody unparks them, never with a timeout.
//!
//! Every deadline is an entry in a scheduler's wheel, which unparks. So a model checker and a virtual clock see each wait.

use super::Clock;
#[cfg(any(test, feature = "testing"))]
use super::virtual_time::Seat;
use crate::sync::{Condvar, Mutex};

/// Where one thread waits, once. Unparking before parking is not lost.
pub(crate) struct Parker {
    unparked: Mutex<bool>,
    condvar: Condvar,
    #[cfg(any(test, feature = "testing"))]
    seat: Option<Seat>,
}

impl Parker {
    /// A parker for the calling thread, which alone may [`park`](Parker::park).
    pub(crate) fn new(clock: &Clock) -> Parker {
        #[cfg(not(any(test, feature = "testing")))]
        let _ = clock;
        Parker {
            unparked: Mutex::new(false),
            condvar: Condvar::new(),
            #[cfg(any(test, feature = "testing"))]
            seat: match clock {
                Clock::System => None,
                Clock::Virtual(time) => Some(time.seat()),
            },
        }
    }

    /// Waits until [`unpark`](Parker::unpark) was called since the last park.
    pub(crate) fn park(&self) {
        #[cfg(any(test, feature = "testing"))]
        if let Some(seat) = &self.seat {
            return seat.park();
        }
        let mut unparked = self.unparked.lock();
        while !*unparked {
            self.condvar.wait(&mut unparked);
        }
        *unparked = false;
    }

    /// Ends the current or the next [`park`](Parker::park).
    pub(crate) fn unpark(&self) {
        #[cfg(any(test, feature = "testing"))]
        if let Some(seat) = &self.seat {
            return seat.unpark();
        }
        *self.unparked.lock() = true;
        self.condvar.notify_one();
    }
}
