//! Asking the store: the turn is taken under the lock, the store is asked without it, the answer is settled under it.

use super::call::Call;
use super::core::{After, Core, Grant, Offer, Phase, Scratch, State, Waiting};
use crate::clock::Tick;
use crate::error::{Error, Executed, StoreError, StoreErrorKind};
use crate::event::{Event, caught};
use crate::lease::{Lease, RIDES};
use crate::planted::fault;
use crate::scheduler::{Asked, Hint, Next, Outcome, Waiter, Why};
use crate::store::{Answer, Ask, Deadline, Gate, Refusal, Slots};
use crate::sync::{MutexGuard, Ordering};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// The most jobs offered to the store in one ask.
const BATCH: usize = 64;
/// How often one thread asks for others before the scheduler goes on in its place: its own work waits meanwhile.
const ROUNDS: usize = 32;
/// What came of an ask.
enum Reply {
    Answer(Answer),
    Failed(StoreError),
    /// It was not sent: the store is down, and may be tried at this tick.
    Down(Tick, StoreError),
}

/// What an answer means for those asked for, in order.
pub(super) struct Verdict {
    pub(super) granted: usize,
    pub(super) at: u64,
    pub(super) sent: Tick,
    /// The fencing token of the first.
    pub(super) fence: Option<NonZeroU64>,
    /// What the next one was told.
    pub(super) refused: Option<Hint>,
    /// All those not granted fail with this.
    pub(super) failed: Option<StoreError>,
}

impl Core {
    /// Whether the calling thread may ask for itself. On a store that can block only a call that the time limit of one ask
    /// does not hold beyond its own deadline, and that nobody can cancel meanwhile.
    pub(super) fn may_ask_directly(&self, call: &Call<'_>, deadline: Option<Tick>, now: Tick) -> bool {
        let Some(remote) = &self.remote else { return true };
        let far = deadline.is_none_or(|deadline| deadline - now > crate::clock::ticks_up(remote.timeout()));
        call.instant || (call.token.is_none() && far)
    }

    /// Asks for a call that has not joined, if nobody waits and nobody asks. `None`: it has to join.
    pub(super) fn ask_directly<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        call: &Call<'_>,
        now: Tick,
    ) -> (MutexGuard<'a, State>, Option<Result<Grant, Error>>) {
        if self.free(&state) == 0 {
            return (state, None);
        }
        let Some(asked) = state.queue.next_direct(call.cost, now) else { return (state, None) };
        let mut offer = std::mem::take(&mut state.scratch.offer);
        offer.costs.clear();
        offer.costs.push(call.cost);
        self.prepare(&mut state, &mut offer, !call.instant);
        self.reserve(&mut state, if fault("V48") { call.cost.into() } else { 1 });
        drop(state);
        let (reply, sent) = self.ask(&offer);
        let mut after = After::default();
        let mut state = self.state.lock();
        let now = self.clock.now();
        let verdict = self.conclude(&mut state, asked, reply, &offer, sent, now, &mut after);
        self.unreserve(&mut state, 1, verdict.granted);
        let grant = (verdict.granted == 1).then(|| self.grant(&mut state, &offer, &verdict, 0));
        state.scratch.offer = offer;
        let result = if let Some(grant) = grant {
            Some(Ok(grant))
        } else if let Some(error) = verdict.failed {
            Some(Err(Error::StoreUnavailable(error)))
        } else if call.instant {
            state.totals.refused += 1;
            let (why, at) =
                verdict.refused.map_or((Why::Queue, None), |hint| (hint.why, Some(hint.not_before)));
            Some(Err(self.would_wait(&state, why, at, now)))
        } else {
            None
        };
        if !after.is_empty() {
            drop(state);
            after.act(self);
            state = self.state.lock();
        }
        // Only now: the valve may have closed during the ask or just then, and nobody joins a closed one.
        let closed = result.is_none() && state.phase != Phase::Open;
        (state, if closed { Some(Err(Error::Closed)) } else { result })
    }

    /// Lets those in front ask for as long as they may. To be called at the end of every hold of the lock that may have
    /// changed what the head may do.
    pub(super) fn drive<'a>(&'a self, state: MutexGuard<'a, State>) {
        self.drive_for(state, if self.remote.is_some() { 0 } else { ROUNDS });
    }

    /// A store worker's call: one ask, so that the valves of a store take turns.
    pub(super) fn run_errand(&self) {
        let mut state = self.state.lock();
        state.errand = false;
        self.drive_for(state, 1);
    }

    fn drive_for<'a>(&'a self, mut state: MutexGuard<'a, State>, mut asks: usize) {
        let mut after = After::default();
        if state.queue.is_empty() {
            // Most often nobody waits: then there is nothing to look at the clock for.
            self.arm(&mut state, None);
            self.settle_down(&mut state, &mut after);
            drop(state);
            return after.act(self);
        }
        let mut scratch = std::mem::take(&mut state.scratch);
        let mut needs_worker = false;
        loop {
            let now = self.clock.now();
            let (free, most) = (self.free(&state), if self.remote.is_some() { BATCH } else { state.batch });
            let (next, asked) = state.queue.next(now, free, most, &mut scratch.places, &mut scratch.refused);
            self.refuse(&mut state, &mut scratch, now, &mut after);
            match next {
                Next::Sleep(until) => self.arm(&mut state, Some(until)),
                Next::Rest => self.arm(&mut state, None),
                Next::Ask if asks == 0 => {
                    state.queue.give_back();
                    if self.remote.is_some() {
                        needs_worker = !std::mem::replace(&mut state.errand, true);
                    } else {
                        self.arm(&mut state, Some(now));
                    }
                }
                Next::Ask => {
                    asks -= 1;
                    state = self.ask_for_waiters(state, asked, &mut scratch, &mut after);
                    continue;
                }
            }
            break;
        }
        state.scratch = scratch;
        // A slot that came free may not be anybody's, because the limit has shrunk.
        self.break_circle(&mut state, &mut after);
        self.settle_down(&mut state, &mut after);
        drop(state);
        after.act(self);
        if needs_worker {
            self.send_for_worker();
        }
    }

    fn ask_for_waiters<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        asked: Asked,
        scratch: &mut Scratch,
        after: &mut After,
    ) -> MutexGuard<'a, State> {
        let Scratch { places, offer, .. } = scratch;
        offer.costs.clear();
        offer
            .costs
            .extend(places.iter().map(|&place| state.queue.get_mut(place).map_or(1, |waiter| waiter.cost)));
        self.prepare(&mut state, offer, true);
        self.reserve(&mut state, places.len() as u64);
        drop(state);
        after.act(self);
        let (reply, sent) = self.ask(offer);
        let mut state = self.state.lock();
        let now = self.clock.now();
        if let Reply::Answer(answer) = &reply {
            // They have met their deadlines: what the next one is told must not end them.
            for &place in places.iter().take(answer.granted) {
                if let Some(waiter) = state.queue.get_mut(place) {
                    waiter.deadline = None;
                }
            }
        }
        let verdict = self.conclude(&mut state, asked, reply, offer, sent, now, after);
        let verdict = if fault("V20") { Verdict { granted: places.len(), ..verdict } } else { verdict };
        state.batch = if verdict.granted == places.len() { (places.len() * 2).min(BATCH) } else { 1 };
        let mut started = 0;
        for (index, &place) in places.iter().enumerate() {
            if index >= verdict.granted && verdict.failed.is_none() {
                break;
            }
            let waiter = if fault("V46") { state.queue.pop() } else { state.queue.remove(place) };
            if index >= verdict.granted {
                if let Some((waiter, error)) = waiter.zip(verdict.failed.as_ref()) {
                    self.fail(waiter, Error::StoreUnavailable(error.clone()), after);
                }
                continue;
            }
            let waiter = if fault("V35") { waiter.or_else(|| state.queue.pop()) } else { waiter };
            let grant = self.grant(&mut state, offer, &verdict, index);
            match waiter {
                Some(waiter) => started += usize::from(self.hand_over(&mut state, waiter, grant, after)),
                // Whoever was cancelled meanwhile is gone: its cost stays spent, its slots go back.
                None => self.take_back(&mut state, &grant),
            }
        }
        self.look_after_releases(&mut state, after);
        let kept = if fault("V33") { verdict.granted } else { started };
        self.unreserve(&mut state, places.len() as u64, kept);
        state
    }

    /// What the job at `index` of those granted gets.
    fn grant(&self, state: &mut State, offer: &Offer, verdict: &Verdict, index: usize) -> Grant {
        let lease = offer.global.zip(offer.tokens.get(index)).map(|(global, &token)| {
            let fence = verdict.fence.and_then(|first| NonZeroU64::new(first.get() + index as u64));
            let lease = Arc::new(Lease::new(token, fence, global.ttl_ticks(), verdict.sent));
            state.leases.take(&lease);
            self.arm_leases(state);
            lease
        });
        Grant { at: verdict.at, lease, striped: false }
    }

    /// Settles a waiter that starts; `false` if it is gone after all.
    fn hand_over(&self, state: &mut State, waiter: Waiter<Waiting>, grant: Grant, after: &mut After) -> bool {
        if let Some(timer) = waiter.timer {
            self.scheduler.cancel(timer);
        }
        let won = waiter.what.settle(Outcome::Granted(grant.clone()));
        if won {
            after.wakes.push(waiter.what);
        } else {
            self.take_back(state, &grant);
        }
        won
    }

    /// Nobody took the grant: its lease is released.
    fn take_back(&self, state: &mut State, grant: &Grant) {
        if let Some(lease) = &grant.lease {
            state.leases.end(lease, self.clock.now());
        }
    }

    /// Completes an offer whose costs are set: what else the store is told.
    fn prepare(&self, state: &mut State, offer: &mut Offer, waits: bool) {
        offer.rules.clone_from(&state.limits.rules);
        offer.global = state.limits.global;
        let floor = state.leases.floor();
        offer.floor = self.remote.as_ref().map_or(floor, |remote| remote.floor(floor));
        offer.waits = waits;
        offer.tokens.clear();
        if let Some(names) = self.names.get().filter(|_| offer.global.is_some()) {
            offer.tokens.extend(offer.costs.iter().map(|_| names.next()));
        }
        offer.releases.clear();
        if state.leases.has_unsent() {
            state.leases.ride(RIDES, self.clock.now(), &mut offer.releases);
        }
    }

    /// Takes slots before the ask, so that nobody else counts on them.
    fn reserve(&self, state: &mut State, slots: u64) {
        self.fast.word.fetch_add(slots, Ordering::AcqRel);
        state.reserved += slots;
    }

    /// Gives back the slots of those who do not start.
    fn unreserve(&self, state: &mut State, slots: u64, started: usize) {
        state.reserved -= slots;
        self.fast.word.fetch_sub(slots - started as u64, Ordering::AcqRel);
    }

    /// Makes the call, without any lock. The second value is when it was made.
    fn ask(&self, offer: &Offer) -> (Reply, Tick) {
        let sent = self.clock.now();
        let mut ask = Ask::new(&offer.rules, &offer.costs);
        ask.waits = offer.waits;
        ask.releases = &offer.releases;
        ask.slots = offer.global.map(|global| {
            let mut slots = Slots::new(global.limit, global.ttl, &offer.tokens);
            slots.floor = offer.floor;
            slots
        });
        if let Some(remote) = &self.remote {
            if let Gate::Down(until) = remote.gate(sent) {
                let error = remote.down().unwrap_or_else(|| unexplained("the store is down"));
                return (Reply::Down(until, error), sent);
            }
            ask.deadline = Deadline::after(&self.clock, remote.timeout());
        }
        let mut answer = Answer::default();
        let result = caught(|| self.counts.admit(&ask, &mut answer))
            .unwrap_or_else(|| Err(StoreError::panicked()))
            .and_then(|()| check(&answer, offer));
        self.report(result.as_ref().copied());
        match result {
            Ok(()) => (Reply::Answer(answer), if fault("V39") { self.clock.now() } else { sent }),
            Err(error) => (Reply::Failed(error), sent),
        }
    }

    /// Takes a reply under the lock: ends the turn, keeps the hint, and says what it means for those asked for.
    #[expect(clippy::too_many_arguments, reason = "an ask is what it is: who, what, when, and the answer")]
    fn conclude(
        &self,
        state: &mut State,
        asked: Asked,
        reply: Reply,
        offer: &Offer,
        sent: Tick,
        now: Tick,
        after: &mut After,
    ) -> Verdict {
        let answered = matches!(reply, Reply::Answer(_));
        let verdict = match reply {
            Reply::Answer(answer) => {
                state.failures = 0;
                state.leases.released(&offer.releases);
                if !state.leases.has_unsent() {
                    state.release_at = None;
                }
                let undone = fault("V23") && state.queue.paused_until(now).is_some();
                let granted = if undone { 0 } else { answer.granted };
                let at = if fault("V21") { self.clock.wall() } else { answer.at };
                let cost = offer.costs.get(granted).copied();
                let recheck = state.recheck;
                let hint = cost
                    .zip(answer.refusal)
                    .map(|(cost, refusal)| self.hint(cost, &refusal, sent, now, recheck));
                Verdict { granted, at, sent, fence: answer.fence, refused: hint, failed: None }
            }
            Reply::Failed(error) => {
                if let Some(global) = offer.global.filter(|_| error.executed() == Executed::Unknown) {
                    self.abandon(state, &offer.tokens, sent, global.ttl_ticks());
                }
                let pause = self.pause_after(&error, state);
                self.without_store(state, error, now, now + pause, sent, offer)
            }
            Reply::Down(until, error) => self.without_store(state, error, now, until, sent, offer),
        };
        state.leases.stranded();
        self.look_after_releases(state, after);
        let mut scratch = Scratch::default();
        if let Some(Hint { why: Why::Paused, not_before, .. }) = verdict.refused {
            if state.queue.paused_until(now).is_none() {
                let left = crate::clock::duration(not_before.saturating_sub(now));
                after.events.push(Event::Paused { left });
            }
        }
        // Of a slot that nobody waits for the store tells nobody when it comes free.
        let kept = verdict.refused.filter(|hint| offer.waits || hint.why != Why::Slots);
        // Of a pause that the store has not told of, more is known already.
        let kept = kept.filter(|hint| answered || hint.why != Why::Paused);
        state.queue.answered(asked, kept, &mut scratch.refused);
        state.totals.timed_out += scratch.refused.len() as u64;
        self.refuse(state, &mut scratch, now, after);
        verdict
    }

    fn hint(&self, cost: u32, refusal: &Refusal, sent: Tick, now: Tick, recheck: Tick) -> Hint {
        // A remote store's hint is as of some instant since the ask was sent; one that never blocks answers as of now.
        let from = if self.remote.is_some() && !fault("V19") { sent } else { now };
        let late = if fault("V18") { 997 } else { 0 };
        let at = |wait: Duration| from + crate::clock::ticks_up(wait) + late;
        let rate = refusal.rate.map(|(rule, wait)| (rule, at(wait)));
        // Of a pause the last instant counts: without the store nobody else would hold it to its end.
        let pause = refusal.pause.map(|left| now + crate::clock::ticks_up(left));
        let (why, not_before) = match (rate, pause) {
            (Some((rule, _)), _) if fault("V62") => (Why::Rate(rule), now + recheck),
            (Some((rule, rate)), pause) if pause.is_none_or(|pause| rate >= pause) => (Why::Rate(rule), rate),
            (_, Some(pause)) => (Why::Paused, pause),
            _ => (Why::Slots, now + if fault("V61") { 2 } else { 1 } * recheck + jitter(now)),
        };
        Hint { cost, not_before: not_before.max(now), why, rate }
    }

    /// Settles those refused for good.
    fn refuse(&self, state: &mut State, scratch: &mut Scratch, now: Tick, after: &mut After) {
        for refused in scratch.refused.drain(..) {
            let waiter = refused.waiter;
            let error = if waiter.instant {
                state.totals.refused += 1;
                self.would_wait(state, refused.why, refused.retry_at, now)
            } else {
                self.timeout(state, waiter.since, refused.why, refused.retry_at, now)
            };
            self.fail(waiter, error, after);
        }
    }
}

/// A few milliseconds that differ from one process to the next, so that those who poll do not all come at once.
fn jitter(now: Tick) -> Tick {
    now.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51
}

/// A store's answer must make sense before it is believed.
fn check(answer: &Answer, offer: &Offer) -> Result<(), StoreError> {
    let asked = offer.costs.len();
    let rule_exists = |refusal: &Refusal| refusal.rate.is_none_or(|(rule, _)| rule < offer.rules.len());
    let sound = answer.granted <= asked
        && (answer.granted == asked || answer.refusal.is_some())
        && answer.refusal.as_ref().is_none_or(rule_exists);
    if sound { Ok(()) } else { Err(unexplained("the store's answer does not fit what was asked")) }
}

fn unexplained(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, Executed::Unknown, what)
}
