//! What a valve tells its owner, and the one thread that runs the owner's handlers.
//!
//! Handlers run nowhere else: never under a lock, never on the scheduler, never on the thread whose doing it was.

use crate::clock::{Clock, Parker};
use crate::error::{Error, StoreError};
use crate::os;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What happened to a valve. Given to the handler of [`ValveBuilder::on_event`](crate::ValveBuilder::on_event).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The store could not be asked, or turned bad. Once per change, not per call.
    #[non_exhaustive]
    StoreError {
        /// The failure that was noticed first.
        error: StoreError,
    },
    /// The store answers again.
    StoreBack,
    /// A pause could not be recorded; it is not tried again.
    #[non_exhaustive]
    PauseFailed {
        /// Why.
        error: StoreError,
    },
    /// This valve learned of a pause, its own or another process's.
    #[non_exhaustive]
    Paused {
        /// What is left of it.
        left: Duration,
    },
    /// This valve learned that a pause was lifted.
    Resumed,
    /// The handler was too slow: this many of the oldest events were dropped.
    #[non_exhaustive]
    Dropped {
        /// How many since the last event that was delivered.
        count: u64,
    },
}

/// A handler of events.
pub(crate) type Handler = Box<dyn Fn(&Event) + Send + Sync>;

/// Where one valve's events go.
pub(crate) struct Sink {
    handler: Handler,
    dropped: AtomicU64,
}

impl Sink {
    pub(crate) fn new(handler: Handler) -> Arc<Sink> {
        Arc::new(Sink { handler, dropped: AtomicU64::new(0) })
    }

    fn deliver(&self, event: &Event) {
        let count = self.dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            self.call(&Event::Dropped { count });
        }
        self.call(event);
    }

    fn call(&self, event: &Event) {
        if catch_unwind(AssertUnwindSafe(|| (self.handler)(event))).is_err() {
            log::error!("an event handler panicked on {event:?}");
        }
    }
}

/// How many events wait for slow handlers; then the oldest is dropped and counted.
const CAPACITY: usize = 1024;

enum Delivery {
    Event(Arc<Sink>, Event),
    /// A value of the user's whose last owner was a thread that must not run its `Drop`.
    Bury(Box<dyn Any + Send>),
}

/// The events thread of one scheduler, started when it is first needed.
pub(crate) struct Events {
    shared: Arc<Shared>,
    clock: Clock,
}

struct Shared {
    sender: Sender<Delivery>,
    receiver: Receiver<Delivery>,
    thread: Mutex<Thread>,
}

enum Thread {
    None,
    /// Started; the parker comes once it runs.
    Serving(Option<Arc<Parker>>),
    Stopping,
}

impl Events {
    pub(crate) fn new(clock: Clock) -> Events {
        let (sender, receiver) = bounded(CAPACITY);
        Events { shared: Arc::new(Shared { sender, receiver, thread: Mutex::new(Thread::None) }), clock }
    }

    /// Starts the thread if it does not run yet.
    pub(crate) fn start(&self) -> Result<(), Error> {
        let mut thread = self.shared.thread.lock();
        if !matches!(*thread, Thread::None) {
            return Ok(());
        }
        *thread = Thread::Serving(None);
        drop(thread);
        let (shared, clock) = (Arc::clone(&self.shared), self.clock.clone());
        self.clock.spawn("valve-events", None, move || shared.serve(&clock)).map_err(|error| {
            *self.shared.thread.lock() = Thread::None;
            Error::Spawn(Arc::new(error))
        })
    }

    /// Sends an event to its handler, after those sent before.
    pub(crate) fn send(&self, sink: &Arc<Sink>, event: Event) {
        self.post(Delivery::Event(Arc::clone(sink), event));
    }

    /// Drops a value on the events thread.
    pub(crate) fn bury(&self, value: Box<dyn Any + Send>) {
        self.post(Delivery::Bury(value));
    }

    fn post(&self, delivery: Delivery) {
        let mut delivery = delivery;
        while let Err(TrySendError::Full(back)) = self.shared.sender.try_send(delivery) {
            delivery = back;
            if let Ok(Delivery::Event(sink, _)) = self.shared.receiver.try_recv() {
                sink.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Err(error) = self.start() {
            log::error!("events are not delivered: {error}");
            return;
        }
        let parker = match &*self.shared.thread.lock() {
            Thread::Serving(parker) => parker.clone(),
            Thread::None | Thread::Stopping => None,
        };
        if let Some(parker) = parker {
            parker.unpark();
        }
    }
}

impl Shared {
    fn serve(&self, clock: &Clock) {
        let parker = Arc::new(Parker::new(clock));
        match &mut *self.thread.lock() {
            Thread::Serving(place) => *place = Some(Arc::clone(&parker)),
            Thread::None | Thread::Stopping => {}
        }
        loop {
            while let Ok(delivery) = self.receiver.try_recv() {
                match delivery {
                    Delivery::Event(sink, event) => sink.deliver(&event),
                    Delivery::Bury(value) => {
                        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
                            log::error!("a value given to a valve panicked when it was dropped");
                        }
                    }
                }
            }
            if matches!(*self.thread.lock(), Thread::Stopping) {
                return;
            }
            parker.park();
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if os::forked() {
            return;
        }
        let before = std::mem::replace(&mut *self.shared.thread.lock(), Thread::Stopping);
        if let Thread::Serving(Some(parker)) = before {
            parker.unpark();
        }
    }
}
