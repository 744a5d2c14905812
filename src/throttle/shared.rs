//! What a throttle shares with other instances: the engine, when it is left alone, and the extensions of leases.

use super::breaker::{Breaker, Change, Ended, Pass};
use super::core::{Core, Flight};
use super::engine::{Engine, SetOptions};
use super::log::LogLevel;
use super::machine::{Timings, Write};
use super::shard::Slot;
use super::workers::{Urgency, Workers};
use crate::clock::{Clock, Tick, duration};
use crate::error::StoreError;
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::uncounted;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::fmt::Display;
use std::sync::Arc;

pub(super) struct Shared {
    pub(super) engine: Arc<dyn Engine>,
    breaker: Mutex<Breaker>,
    /// Threads that extend leases, so that no run and no other key waits for a slow engine.
    pub(super) extenders: Workers,
    /// Keys whose closures are executed.
    running: AtomicU64,
}

/// The most extensions on their way at once.
const EXTENDERS: usize = 256;

impl Shared {
    pub(super) fn new(engine: Arc<dyn Engine>, timings: &Timings, clock: &Clock) -> Shared {
        Shared {
            engine,
            breaker: Mutex::new(Breaker::new(timings.patience)),
            extenders: Workers::new("valve-extend", EXTENDERS, clock),
            running: AtomicU64::new(0),
        }
    }

    pub(super) fn begins(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// A closure has ended. With the last, no thread is kept for extensions.
    pub(super) fn ends(&self) {
        if self.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.extenders.dismiss();
        }
    }

    /// A new extension, if the engine may be asked.
    pub(super) fn depart(&self, now: Tick) -> Option<Flight> {
        let pass = self.breaker.lock().admit(now)?;
        Some(Flight { pass, landed: None })
    }

    /// Tells the breaker how a call ended. `true` if it opened, which is to be logged.
    #[must_use]
    pub(super) fn report(&self, pass: Pass, how: Ended, now: Tick) -> bool {
        self.breaker.lock().ended(pass, how, now) == Change::Opened
    }
}

/// How an attempt to acquire a key ended.
pub(super) enum Acquired {
    /// Held until that tick.
    Until(Tick),
    /// Without the engine's consent, because it could not be asked.
    Unasked,
    Lost,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Core<T, E> {
    /// Takes the engine's key for a run.
    pub(super) fn acquire(&self, shared: &Shared, key: &str, write: Write) -> Acquired {
        let sent = self.clock.now();
        match self.write(shared, "acquire", key, write, self.timings.lease) {
            Some(true) => match write {
                // The answer came when the key might have been another's already: nobody can tell whose it was.
                Write::Over { until } if self.clock.now() >= until => Acquired::Lost,
                _ => Acquired::Until(sent + self.timings.lease),
            },
            Some(false) if fault("T02") => Acquired::Unasked,
            Some(false) => Acquired::Lost,
            None if fault("T86") => Acquired::Lost,
            None => Acquired::Unasked,
        }
    }

    /// Writes a window that lasts `length` from now. Whether it was written; `None` if the engine could not be asked.
    pub(super) fn write(
        &self,
        shared: &Shared,
        operation: &str,
        key: &str,
        write: Write,
        length: Tick,
    ) -> Option<bool> {
        self.ask(shared, operation, key, |engine, key| self.set(engine, key, write, length))
    }

    fn set(&self, engine: &dyn Engine, key: &str, write: Write, length: Tick) -> Result<bool, StoreError> {
        let options = SetOptions::new(duration(length));
        let options = match write {
            Write::Over { .. } => options,
            Write::IfAbsent => options.if_absent(),
        };
        let end = (self.clock.wall() + length) / 1_000;
        engine.set(key, &end.to_string(), options)
    }

    /// Reads when another instance's window ends.
    pub(super) fn read(&self, shared: &Shared, key: &str) -> Option<Option<String>> {
        self.ask(shared, "read", key, |engine, key| engine.get(key))
    }

    /// Makes a call to the engine, if the breaker lets it; `None` if it could not be made or failed.
    fn ask<R>(
        &self,
        shared: &Shared,
        operation: &str,
        key: &str,
        call: impl FnOnce(&dyn Engine, &str) -> Result<R, StoreError>,
    ) -> Option<R> {
        let pass = shared.breaker.lock().admit(self.clock.now())?;
        let full_key = self.full_key(key);
        let watched = self.workers.watch(&self.scheduler, self.timings.patience);
        // Were the engine's own waits counted too, the thread would be missed twice.
        let result = caught(|| match &watched {
            Some(_) => uncounted(|| call(&*shared.engine, &full_key)),
            None => call(&*shared.engine, &full_key),
        });
        drop(watched);
        let result = result.unwrap_or_else(|| Err(StoreError::panicked()));
        self.judge(shared, pass, operation, &full_key, result)
    }

    fn judge<R>(
        &self,
        shared: &Shared,
        pass: Pass,
        operation: &str,
        full_key: &str,
        result: Result<R, StoreError>,
    ) -> Option<R> {
        let how = if result.is_ok() { Ended::Answered } else { Ended::Failed };
        let opened = shared.report(pass, how, self.clock.now());
        match result {
            Ok(answer) => Some(answer),
            Err(error) => {
                if opened {
                    self.say_opened(operation, full_key, &error.to_string());
                }
                None
            }
        }
    }

    pub(super) fn say_opened(&self, operation: &str, full_key: &str, error: &str) {
        let fields =
            [("operation", operation), ("key", full_key), ("cooldown_ms", "10000"), ("error", error)];
        self.logger.write(LogLevel::Debug, "breaker opened", &fields);
    }

    pub(super) fn full_key(&self, key: &str) -> String {
        if fault("T12") { key.to_owned() } else { [&self.prefix, key].concat() }
    }

    /// Has an extension made on a thread for that.
    pub(super) fn extend(self: &Arc<Self>, slot: Slot, sent: Tick, write: Write) {
        let Some(shared) = &self.shared else { return };
        let extension = Extension { core: Arc::clone(self), slot, sent, write };
        shared.extenders.submit(Box::new(move || extension.make()), Urgency::InTurn);
    }
}

/// One extension on its way; if it is dropped unmade, it has failed.
struct Extension<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> {
    core: Arc<Core<T, E>>,
    slot: Slot,
    sent: Tick,
    write: Write,
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Extension<T, E> {
    fn make(self) {
        let core = &*self.core;
        let Some(shared) = &core.shared else { return };
        let full_key = core.full_key(&self.slot.key);
        let result = caught(|| core.set(&*shared.engine, &full_key, self.write, core.timings.lease))
            .unwrap_or_else(|| Err(StoreError::panicked()));
        let wrote = result.as_ref().is_ok_and(|wrote| *wrote);
        if let Some(flight) = self.land(wrote) {
            core.judge(shared, flight.pass, "extend", &full_key, result);
            if let Some(landed) = flight.landed {
                landed.done();
            }
        }
    }

    fn land(&self, wrote: bool) -> Option<Flight> {
        let Slot { key, hash } = &self.slot;
        let timings = &self.core.timings;
        let now = self.core.clock.now();
        let mut shard = self.core.shard(*hash);
        shard.change(*hash, key, |entry| entry.stage.extended(self.sent, wrote, now, timings)).flatten()
    }
}

impl<T: Clone + Send + 'static, E: Display + Send + Sync + 'static> Drop for Extension<T, E> {
    fn drop(&mut self) {
        // Made, it has landed, and this finds nothing.
        if let Some(landed) = self.land(false).and_then(|flight| flight.landed) {
            landed.done();
        }
    }
}
