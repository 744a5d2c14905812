//! What becomes of a valve's calls when its store fails, and who is told.

use super::core::{After, Core, Offer, State};
use super::settings::OnStoreError;
use super::turn::Verdict;
use crate::clock::Tick;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::event::{Event, say};
use crate::planted::fault;
use crate::scheduler::{Hint, Why};
use crate::store::Errand;
use std::sync::Weak;

/// A store that failed is asked again no sooner than this.
const AFTER_FAILURE: Tick = 1_000;
/// What no breaker holds back, a store that never blocks or what concerns one id, fails for a reason that takes longer to
/// go away: the first pause, doubled three times.
const AFTER_OWN_FAILURE: Tick = 50_000;

impl Core {
    /// Tells the store's breaker, or, if it has none, whoever listens. A store that answers that this id's state is unreadable
    /// is well: that concerns nobody else.
    pub(super) fn report(&self, result: Result<(), &StoreError>) {
        let own =
            result.err().filter(|error| self.remote.is_none() || error.kind() == StoreErrorKind::Corrupt);
        if let Some(remote) = &self.remote {
            remote.report(if own.is_some() { Ok(()) } else { result }, self.clock.now());
        }
        if own.is_some() || result.is_ok() {
            self.note_own(own);
        }
    }

    /// Says once when the store fails for this id alone, and once when it is back.
    fn note_own(&self, error: Option<&StoreError>) {
        let mut failing = self.failing.lock();
        if failing.is_some() == error.is_some() {
            return;
        }
        *failing = error.cloned();
        drop(failing);
        self.say(error.cloned());
    }

    /// How soon a store that failed with this is asked again. With a breaker it is that which holds back the next.
    pub(super) fn pause_after(&self, error: &StoreError, state: &mut State) -> Tick {
        let own = self.remote.is_none() || error.kind() == StoreErrorKind::Corrupt;
        let pause = if own { AFTER_OWN_FAILURE << state.failures.min(3) } else { AFTER_FAILURE };
        state.failures = if own { state.failures.saturating_add(1) } else { 0 };
        pause
    }

    /// What those asked for get without an answer.
    pub(super) fn without_store(
        &self,
        state: &State,
        error: StoreError,
        now: Tick,
        until: Tick,
        sent: Tick,
        offer: &Offer,
    ) -> Verdict {
        let asked = offer.costs.len();
        // It may have begun during the ask, and no store has granted anything before it.
        let pause = state.queue.paused_until(now).filter(|_| self.on_store_error == OnStoreError::Open);
        let (granted, failed) = match self.on_store_error {
            OnStoreError::Wait if !fault("V63") => (0, None),
            OnStoreError::Fail if fault("V64") => (0, None),
            OnStoreError::Open if !fault("V65") => (if pause.is_some() { 0 } else { asked }, None),
            OnStoreError::Wait | OnStoreError::Fail | OnStoreError::Open => (0, Some(error)),
        };
        let (why, not_before) = pause.map_or((Why::Store, until), |pause| (Why::Paused, pause));
        let hint = Hint { cost: 0, not_before, why, rate: None };
        let waits = matches!(self.on_store_error, OnStoreError::Wait) || pause.is_some() || fault("V64");
        let refused = waits.then_some(hint);
        Verdict { granted, at: self.clock.wall(), sent, fence: None, refused, failed }
    }

    /// Has a store worker ask, since this thread may not.
    pub(super) fn send_for_worker(&self) {
        let Some(remote) = &self.remote else { return };
        let errand: Weak<dyn Errand> = self.me.clone();
        if let Err(error) = remote.submit(&self.clock, errand) {
            say(log::Level::Warn, format_args!("valve {:?} cannot ask its store: {error}", self.id));
            let mut state = self.state.lock();
            state.errand = false;
            state.queue.hold(Why::Store, self.clock.now() + AFTER_OWN_FAILURE);
            self.drive(state);
        }
    }

    /// The store turned bad, or good again.
    pub(super) fn turned(&self, down: Option<StoreError>) {
        let mut after = After::default();
        let mut state = self.state.lock();
        match &down {
            Some(error) if self.on_store_error == OnStoreError::Fail && !fault("V64") => {
                while let Some(waiter) = state.queue.pop() {
                    self.fail(waiter, Error::StoreUnavailable(error.clone()), &mut after);
                }
            }
            Some(_) => {}
            None => state.queue.store_back(),
        }
        self.drive(state);
        after.act(self);
        self.say(down);
    }

    fn say(&self, down: Option<StoreError>) {
        match down {
            Some(error) => {
                say(log::Level::Warn, format_args!("valve {:?}: the store is unavailable: {error}", self.id));
                self.tell(Event::StoreError { error });
            }
            None => {
                say(log::Level::Info, format_args!("valve {:?}: the store answers again", self.id));
                self.tell(Event::StoreBack);
            }
        }
    }
}
