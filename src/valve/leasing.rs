//! What a valve does for its leases: takes them with grants, renews them in time, releases them, and notices their loss.

use super::core::{After, Core, Grant, State};
use super::told::LEASES;
use crate::clock::{Tick, duration, ticks_up};
use crate::error::{Executed, StoreError};
use crate::event::{Abort, Event, caught, say};
use crate::lease::{Lease, RENEWALS};
use crate::planted::fault;
use crate::store::{Counts, Deadline, Errand, Lease as Renewal, Runner, Token, Work};
use crate::sync::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// How long a release waits for an ask to ride on.
const RIDE_WITHIN: Tick = 1_000;
/// The pauses between tries of a renewal that failed: the first is at once.
const RETRY_MIN: Tick = 1_000;
const RETRY_MAX: Tick = 100_000;

/// Names of leases: a number of this process's own, and a count.
pub(super) struct Names {
    process: u64,
    next: AtomicU64,
}

impl Names {
    pub(super) fn new() -> Result<Names, StoreError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| {
            let what = format!("the system has no random numbers for the names of leases: {error}");
            StoreError::new(crate::error::StoreErrorKind::Other, Executed::No, what)
        })?;
        Ok(Names { process: u64::from_le_bytes(bytes), next: AtomicU64::new(0) })
    }

    pub(super) fn next(&self) -> Token {
        Token(u128::from(self.process) << 64 | u128::from(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Core {
    /// A job with a lease ended: its slot is released, with the next ask or soon.
    pub(super) fn end_lease(&self, lease: &Lease) {
        let mut after = After::default();
        let mut state = self.state.lock();
        let lost = state.leases.end(lease, self.clock.now());
        self.look_after_releases(&mut state, &mut after);
        drop(state);
        if let Some(callbacks) = lost {
            self.tell_lost(1, callbacks);
        }
        after.act(self);
    }

    /// Sees to releases that no ask carries. Called under the lock; on a store that does not block they are made when it
    /// is gone.
    pub(super) fn look_after_releases(&self, state: &mut State, after: &mut After) {
        if !state.leases.has_unsent() {
            return;
        }
        if self.remote.is_none() {
            after.release = true;
        } else if state.release_at.is_none() {
            let at = self.clock.now() + RIDE_WITHIN;
            state.release_at = Some(at);
            self.arm_leases(state);
        }
    }

    /// Sets the timer for what the leases need next.
    pub(super) fn arm_leases(&self, state: &mut State) {
        let when = state.leases.next_due().into_iter().chain(state.release_at).min();
        if state.lease_timer.map(|(tick, _)| tick) == when {
            return;
        }
        if let Some((_, key)) = state.lease_timer.take() {
            self.scheduler.cancel(key);
        }
        state.lease_timer =
            when.and_then(|tick| Some((tick, self.set_timer(state, tick, self.number, LEASES)?)));
    }

    /// The leases' timer is due.
    pub(super) fn leases_due(&self, now: Tick) {
        let mut lost = Vec::new();
        let mut state = self.state.lock();
        if state.lease_timer.is_some_and(|(tick, _)| tick <= now) {
            state.lease_timer = None;
        }
        let before = state.leases.len();
        let renew = state.leases.due(now, &mut lost);
        let ended = before - state.leases.len();
        let mut release = state.release_at.is_some_and(|at| at <= now);
        if release {
            state.release_at = None;
            release = state.leases.has_unsent();
        }
        self.arm_leases(&mut state);
        drop(state);
        self.tell_lost(ended, lost);
        if renew || release {
            self.renew_or_send(renew);
        }
    }

    fn renew_or_send(&self, renew: bool) {
        let Some(remote) = &self.remote else {
            if renew {
                self.renew();
            }
            self.send_releases();
            return;
        };
        if renew {
            self.state.lock().renewal_due = true;
        }
        let errand: Weak<dyn Errand> = self.me.clone();
        if let Err(error) = remote.submit_leases(&self.clock, Runner::Weak(errand)) {
            say(
                log::Level::Warn,
                format_args!("valve {:?} cannot renew or release its leases: {error}", self.id),
            );
            let mut state = self.state.lock();
            if state.leases.has_unsent() {
                state.release_at = Some(self.clock.now() + RETRY_MAX);
            }
            if std::mem::take(&mut state.renewal_due) {
                state.leases.renewed(self.clock.now() + RETRY_MAX);
            }
            self.arm_leases(&mut state);
        }
    }

    /// A lease thread's call.
    pub(super) fn run_leases(&self) {
        let renew = std::mem::take(&mut self.state.lock().renewal_due);
        if renew {
            self.renew();
        }
        self.send_releases();
    }

    /// Renews all leases, the early ones too, so that all fall due together.
    fn renew(&self) {
        if fault("V52") {
            return;
        }
        let all = self.state.lock().leases.all();
        let begun = self.clock.now();
        let mut next = Tick::MAX;
        for chunk in all.chunks(RENEWALS) {
            let again = self.renew_chunk(chunk);
            next = next.min(again);
        }
        let third = all.iter().map(|lease| lease.ttl / 3).min().unwrap_or(RETRY_MAX);
        let mut state = self.state.lock();
        state.leases.renewed(next.min(begun + third));
        self.arm_leases(&mut state);
    }

    /// Renews up to 500, trying twice; when to renew again if that failed.
    fn renew_chunk(&self, chunk: &[Arc<Lease>]) -> Tick {
        let ask: Vec<Renewal> =
            chunk.iter().map(|lease| Renewal { token: lease.token, ttl: duration(lease.ttl) }).collect();
        let third = chunk.iter().map(|lease| lease.ttl / 3).min().unwrap_or(RETRY_MAX);
        for _ in 0..2 {
            let sent = self.clock.now();
            let deadline = match &self.remote {
                None => Deadline::never(),
                Some(remote) => Deadline::after(&self.clock, remote.timeout().min(duration(third))),
            };
            let mut held = Vec::with_capacity(chunk.len());
            let result = caught(|| self.counts.renew(&ask, deadline, &mut held));
            if matches!(result, Some(Ok(()))) && held.len() == chunk.len() {
                self.note_good();
                let (now, mut lost) = (self.clock.now(), Vec::new());
                let count = self.state.lock().leases.answered(chunk, &held, sent, now, &mut lost);
                self.tell_lost(count, lost);
                return Tick::MAX;
            }
        }
        self.clock.now() + (third / 10).clamp(RETRY_MIN, RETRY_MAX)
    }

    pub(super) fn tell_lost(&self, count: usize, callbacks: Vec<Arc<crate::event::Callback>>) {
        if count > 0 {
            let what = format_args!(
                "valve {:?}: {count} running jobs lost their leases, and others may have their slots: the store forgot them, \
                 or it or this process stood still for most of their TTL",
                self.id
            );
            say(log::Level::Warn, what);
            self.tell(Event::LeaseLost { count });
        }
        for callback in callbacks {
            self.scheduler.events().abort(callback, Abort::LeaseLost);
        }
    }

    /// Sends the releases that no ask took along.
    pub(super) fn send_releases(&self) {
        let mut tokens = Vec::new();
        loop {
            self.state.lock().leases.unsent(RENEWALS, self.clock.now(), &mut tokens);
            if tokens.is_empty() {
                return;
            }
            let result = caught(|| self.counts.release(&tokens));
            let good = matches!(result, Some(Ok(())));
            if good {
                self.note_good();
            }
            let mut state = self.state.lock();
            if !good {
                // Tried again with the next ask or release, and in a while; the leases end by themselves at the latest.
                state.release_at = Some(self.clock.now() + RETRY_MAX);
                self.arm_leases(&mut state);
                return;
            }
            state.leases.released(&tokens);
            state.queue.slot_freed();
            self.drive(state);
        }
    }

    /// An ask whose outcome is unknown may have taken slots, for as long as a command may be on its way and a lease lasts.
    pub(super) fn abandon(&self, state: &mut State, tokens: &[Token], sent: Tick, ttl: Tick) {
        for &token in tokens {
            state.leases.abandon(token, sent + ttl + ticks_up(self.remote_timeout()));
        }
    }

    /// The last handle went: releases that were not sent yet are, by a thread that needs the valve no more.
    pub(super) fn send_last_releases(&self, tokens: Vec<Token>) {
        let Some(remote) = self.remote.as_ref().filter(|_| !tokens.is_empty()) else { return };
        let farewell = Farewell { counts: Arc::clone(&self.counts), tokens };
        if let Err(error) = remote.submit_leases(&self.clock, Runner::Owned(Arc::new(farewell))) {
            let what = format_args!(
                "valve {:?}: its last slots stay taken until their leases end: {error}",
                self.id
            );
            say(log::Level::Warn, what);
        }
    }

    /// Any good reply says that the store is back. A bad one here says nothing about admissions.
    pub(super) fn note_good(&self) {
        if let Some(remote) = &self.remote {
            remote.report(Ok(()), self.clock.now());
        }
    }

    fn remote_timeout(&self) -> std::time::Duration {
        self.remote.as_ref().map_or(std::time::Duration::ZERO, crate::store::Remote::timeout)
    }

    /// Whether a job's right to run is gone.
    #[inline]
    pub(super) fn is_lost(&self, grant: &Grant) -> bool {
        grant.lease.as_ref().is_some_and(|lease| lease.is_lost(self.clock.now()))
    }
}

/// The releases of a valve that is gone.
struct Farewell {
    counts: Arc<dyn Counts>,
    tokens: Vec<Token>,
}

impl Errand for Farewell {
    fn run(self: Arc<Self>, _work: Work) {
        for chunk in self.tokens.chunks(RENEWALS) {
            let result = caught(|| self.counts.release(chunk));
            if !matches!(result, Some(Ok(()))) {
                say(
                    log::Level::Debug,
                    format_args!("the slots of a dropped valve stay taken until their leases end"),
                );
            }
        }
    }

    fn store_turned(self: Arc<Self>, _down: Option<StoreError>) {}
}

#[cfg(test)]
mod tests;
