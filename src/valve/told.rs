//! What a valve does when a timer, a store or a worker tells it something, and the timer it sets for itself.

use super::core::{Core, State};
use super::settings::{RECHECK, RECHECK_NOTIFIED};
use crate::clock::Tick;
use crate::error::StoreError;
use crate::planted::fault;
use crate::scheduler::{Place, Timed, Timer, TimerKey, Why};
use crate::store::{Errand, Notice, Noticed, Work};
use crate::sync::MutexGuard;
use std::sync::Arc;

/// The timer that looks at the queue, and the one for the deadlines of [`drain`](Core::drain); every other is of the waiter at
/// that place: the end of its back-off, or its deadline.
const WAKE: u64 = u64::MAX;
pub(super) const DRAIN: u64 = u64::MAX - 1;
/// The timer for what the leases need next.
pub(super) const LEASES: u64 = u64::MAX - 2;
/// The timer that counts the stripes anew.
pub(super) const RECOUNT: u64 = u64::MAX - 3;
/// The timer for a notice that came too soon after another.
const NOTICE: u64 = u64::MAX - 4;
const NOTICES_APART: Tick = 1_000;
/// At one tick, valves look at their queues before deadlines end waits: a start at the deadline itself is in time.
pub(super) const DEADLINES_LAST: u64 = 1 << 63;

impl Core {
    /// Sets the timer that looks at the queue, or takes it back.
    pub(super) fn arm(&self, state: &mut State, when: Option<Tick>) {
        if state.wake.map(|(tick, _)| tick) == when {
            return;
        }
        if let Some((_, key)) = state.wake.take() {
            self.scheduler.cancel(key);
        }
        state.wake = when.and_then(|tick| Some((tick, self.set_timer(state, tick, self.number, WAKE)?)));
    }

    /// Sets a timer. If the scheduler has stopped, the valve is orphaned and closes at the end of this hold of its lock.
    pub(super) fn set_timer(
        &self,
        state: &mut State,
        when: Tick,
        order: u64,
        timer: u64,
    ) -> Option<TimerKey> {
        let key = self.scheduler.set(when, order, Timer { owner: self.me.clone(), timer });
        state.orphaned |= key.is_err();
        key.ok()
    }

    /// Asks anew, but a store that has to be reached no more than once in a while: notices may come in floods.
    fn heed_notice(&self, mut state: MutexGuard<'_, State>) {
        let now = self.clock.now();
        let next = state.noticed.map_or(0, |last| last + NOTICES_APART);
        if self.remote.is_some() && now < next {
            if state.notice_timer.is_none() {
                state.notice_timer = self.set_timer(&mut state, next, self.number, NOTICE);
            }
            return;
        }
        state.noticed = Some(now);
        state.queue.forget();
        self.drive(state);
    }
}

impl Timed for Core {
    fn due(self: Arc<Self>, timer: u64, now: Tick) {
        if timer == WAKE {
            let mut state = self.state.lock();
            if state.wake.is_some_and(|(tick, _)| tick <= now) {
                state.wake = None;
            }
            self.drive(state);
        } else if timer == DRAIN {
            self.end_drains(now);
        } else if timer == RECOUNT {
            self.recount_due();
        } else if timer == NOTICE {
            let mut state = self.state.lock();
            if state.notice_timer.take().is_some() {
                self.heed_notice(state);
            }
        } else if timer == LEASES {
            self.leases_due(now);
        } else if !self.back_off_over(Place::from_bits(timer)) {
            let place = Place::from_bits(timer);
            self.end_waits([place], |core, state, since, now| {
                let free = core.free(state);
                let (why, at) = state.queue.head_blocked(now, free).unwrap_or((Why::Queue, None));
                if state.queue.get_mut(place).is_some_and(|waiter| waiter.instant) {
                    state.totals.refused += 1;
                    return core.would_wait(state, why, at, now);
                }
                state.totals.timed_out += 1;
                core.timeout(state, since, why, at, now)
            });
        }
        bury(self);
    }

    fn stopped(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.orphaned = true;
        self.drive(state);
        self.end_drains(self.clock.now());
        bury(self);
    }
}

impl Noticed for Core {
    fn noticed(self: Arc<Self>, notice: Notice) {
        // Of a pause, whoever asks next learns; asking now would only be refused.
        if notice != Notice::Paused && !fault("V28") {
            let mut state = self.state.lock();
            match notice {
                Notice::Listening => state.recheck = RECHECK_NOTIFIED,
                // A store that goes down goes silent too: a pause that is known is to hold until there is news of it.
                Notice::Silent => {
                    state.recheck = RECHECK;
                    state.queue.slot_freed();
                    self.drive(state);
                    return bury(self);
                }
                Notice::Resumed if state.pauses_due == 0 => {
                    state.queue.lift_own_pause();
                }
                Notice::Paused | Notice::Resumed | Notice::Released => {}
            }
            self.heed_notice(state);
        }
        bury(self);
    }
}

/// Ends a borrowed hold on a valve. If every other handle went meanwhile, what its owner gave to it, handlers and store,
/// is dropped on the events thread and not on ours.
pub(super) fn bury(core: Arc<Core>) {
    if let Some(core) = Arc::into_inner(core) {
        let scheduler = core.scheduler.clone();
        scheduler.events().bury(Box::new(core));
    }
}

impl Errand for Core {
    fn run(self: Arc<Self>, work: Work) {
        match work {
            Work::Ask => self.run_errand(),
            Work::Leases => self.run_leases(),
        }
        bury(self);
    }

    fn store_turned(self: Arc<Self>, down: Option<StoreError>) {
        self.turned(down);
        bury(self);
    }
}
