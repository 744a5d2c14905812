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
    /// A pause could not be lifted; that is not tried again.
    #[non_exhaustive]
    ResumeFailed {
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
    /// Running jobs lost their leases on fleet-wide slots: others may have these now.
    #[non_exhaustive]
    LeaseLost {
        /// How many jobs did, at once. At least 1.
        count: usize,
    },
    /// The handler was too slow: this many of the oldest events were dropped.
    #[non_exhaustive]
    Dropped {
        /// How many since the last event that was delivered.
        count: u64,
    },
}

/// Why a running job should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abort {
    /// Its lease on a fleet-wide slot ended: another process may have the slot.
    LeaseLost,
    /// Its [`CancelToken`](crate::CancelToken) was cancelled. The value it returns is still delivered.
    Cancelled,
}

/// A job's wish to be called when it should stop: called at most once, and not after it was taken back.
pub(crate) struct Callback {
    call: Mutex<Option<Call>>,
}

type Call = Box<dyn FnOnce(Abort) + Send>;

impl Callback {
    pub(crate) fn new(call: impl FnOnce(Abort) + Send + 'static) -> Arc<Callback> {
        Arc::new(Callback { call: Mutex::new(Some(Box::new(call))) })
    }

    /// Takes the wish back; a call that has begun goes on.
    pub(crate) fn forget(&self) {
        let call = self.call.lock().take();
        drop(call);
    }

    /// Whether it may still be called.
    pub(crate) fn is_wanted(&self) -> bool {
        self.call.lock().is_some()
    }

    fn fire(&self, reason: Abort) {
        let call = self.call.lock().take();
        let Some(call) = call else { return };
        if caught(|| call(reason)).is_none() {
            say(log::Level::Error, format_args!("an on_abort callback panicked"));
        }
    }
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
        if caught(|| (self.handler)(event)).is_none() {
            say(log::Level::Error, format_args!("an event handler panicked on {event:?}"));
        }
    }
}

/// Runs what is the user's; `None` if it panicked. The panic's payload is the user's too and may panic as it goes.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    None
}

/// Writes to the program's log. The logger is the user's too: its panic must not end a turn or a thread of ours.
pub(crate) fn say(level: log::Level, what: std::fmt::Arguments<'_>) {
    let _ = caught(|| log::log!(target: "valve", level, "{what}"));
}

/// How many events wait for slow handlers; then the oldest is dropped and counted.
const CAPACITY: usize = 1024;

/// The events thread of one scheduler, started when it is first needed.
pub(crate) struct Events {
    shared: Arc<Shared>,
    clock: Clock,
}

struct Shared {
    sender: Sender<(Arc<Sink>, Event)>,
    receiver: Receiver<(Arc<Sink>, Event)>,
    /// Jobs' callbacks: as many as jobs run, and none is ever dropped.
    aborts: Mutex<Vec<(Arc<Callback>, Abort)>>,
    /// Values of the user's whose last owner was a thread that must not run their `Drop`. Not in the channel, whose
    /// overflow would drop them right there.
    buried: Mutex<Vec<Box<dyn Any + Send>>>,
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
        let (aborts, buried) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let thread = Mutex::new(Thread::None);
        Events { shared: Arc::new(Shared { sender, receiver, aborts, buried, thread }), clock }
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
        let mut delivery = (Arc::clone(sink), event);
        while let Err(TrySendError::Full(back)) = self.shared.sender.try_send(delivery) {
            delivery = back;
            if let Ok((sink, _)) = self.shared.receiver.try_recv() {
                sink.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.wake();
    }

    /// Calls a job's callback.
    pub(crate) fn abort(&self, callback: Arc<Callback>, reason: Abort) {
        self.shared.aborts.lock().push((callback, reason));
        self.wake();
    }

    /// Drops a value on the events thread.
    pub(crate) fn bury(&self, value: Box<dyn Any + Send>) {
        self.shared.buried.lock().push(value);
        self.wake();
    }

    fn wake(&self) {
        if let Err(error) = self.start() {
            say(log::Level::Error, format_args!("events are not delivered: {error}"));
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
            // Looked at first: what was sent before the stop is still delivered.
            let stopping = matches!(*self.thread.lock(), Thread::Stopping);
            // Jobs that should stop come before news: they are looked at between any two events.
            let aborts = std::mem::take(&mut *self.aborts.lock());
            for (callback, reason) in aborts {
                callback.fire(reason);
            }
            if let Ok((sink, event)) = self.receiver.try_recv() {
                sink.deliver(&event);
                continue;
            }
            let buried = std::mem::take(&mut *self.buried.lock());
            for value in buried {
                if caught(|| drop(value)).is_none() {
                    say(
                        log::Level::Error,
                        format_args!("a value given to a valve panicked when it was dropped"),
                    );
                }
            }
            if stopping {
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
        // They belong to a scheduler, and without that no clock of a test moves.
        self.clock.retire();
    }
}

#[cfg(test)]
mod tests;
