//! Scenes about the scheduler alone: one thread sleeps until the next timer, others set and take back.

use super::stage::{FAR, HORIZON, Left, SOON, Stage};
use crate::clock::{Clock, Tick, ticks_up};
use crate::scheduler::{Outcome, Ticket, Timed, Timer};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Rings when its timer is due.
struct Bell {
    ticket: Ticket<Tick>,
    rung: AtomicU64,
}

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell { ticket: Ticket::new(&Clock::System), rung: AtomicU64::new(0) })
    }

    fn timer(self: &Arc<Self>) -> Timer {
        let owner: Weak<dyn Timed> = Arc::downgrade(&(Arc::clone(self) as Arc<dyn Timed>));
        Timer { owner, timer: 0 }
    }
}

impl Timed for Bell {
    fn due(self: Arc<Self>, _timer: u64, now: Tick) {
        self.rung.fetch_add(1, Relaxed);
        if self.ticket.settle(Outcome::Granted(now)) {
            self.ticket.wake();
        }
    }

    fn stopped(self: Arc<Self>) {}
}

/// The thread sleeps without a timer, or for one that will not come; one that comes must wake it, whenever it is set.
pub(super) fn set_meets_sleep() {
    let mut stage = Stage::new();
    let late = Bell::new();
    let (scheduler, owner) = (stage.scheduler.clone(), Arc::clone(&late));
    stage.go(move || {
        let key = scheduler.set(ticks_up(FAR), 0, owner.timer()).unwrap();
        scheduler.cancel(key);
    });
    for when in [SOON, HORIZON] {
        let (scheduler, bell) = (stage.scheduler.clone(), Bell::new());
        stage.go(move || {
            scheduler.set(ticks_up(when), 0, bell.timer()).unwrap();
            let Outcome::Granted(at) = bell.ticket.wait() else { panic!("nobody fails this ticket") };
            assert!(at >= ticks_up(when), "rung at {at}, before {when:?}");
        });
    }
    stage.end(Left::Open);
    assert_eq!(late.rung.load(Relaxed), 0, "rung before its time");
}

/// A timer that is taken back may ring, but then only once, and it is gone either way.
pub(super) fn cancel_meets_due() {
    let mut stage = Stage::new();
    let bells = [Bell::new(), Bell::new()];
    for bell in &bells {
        let (scheduler, bell) = (stage.scheduler.clone(), Arc::clone(bell));
        stage.go(move || {
            let key = scheduler.set(ticks_up(SOON), 0, bell.timer()).unwrap();
            scheduler.cancel(key);
            scheduler.cancel(key);
        });
    }
    stage.end(Left::Open);
    for bell in &bells {
        assert!(bell.rung.load(Relaxed) <= 1, "rung twice");
    }
}
