//! Scenes about how things end: closed, drained, dropped, or with their scheduler.

use super::stage::{FAR, HORIZON, Left, SOON, Stage};
use crate::clock::{Clock, Tick};
use crate::error::{Error, StoreError};
use crate::event::Event;
use crate::rule::Rule;
use crate::scheduler::{Outcome, Ticket, Timed, Timer};
use crate::store::{Counts, MemoryStore, Remote, Store, Wake};
use crate::sync::{ThreadId, current_thread};
use crate::valve::Valve;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

fn ran_or_closed(ended: Result<(), Error>) {
    assert!(matches!(ended, Ok(()) | Err(Error::Closed)), "{ended:?}");
}

pub(super) fn close_meets_join() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    for _ in 0..2 {
        stage.plays(&player, |player| ran_or_closed(player.run(player.valve.acquire())));
    }
    stage.plays(&player, |player| player.valve.close());
    held.end();
    stage.end(Left::Closed);
}

/// The drain ends when the last job does, whether that one ran or waited when the drain began.
pub(super) fn drain_meets_last_release() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    stage.go(move || held.end());
    stage.plays(&player, |player| ran_or_closed(player.run(player.valve.acquire())));
    stage.plays(&player, |player| {
        player.valve.drain(Duration::MAX).unwrap();
        let (busy, _) = player.valve.word();
        assert_eq!(busy, 0, "drained, and yet somebody runs");
    });
    stage.end(Left::Closed);
}

pub(super) fn drain_deadline_meets_last_release() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    stage.go(move || held.end());
    stage.plays(&player, |player| ran_or_closed(player.run(player.valve.acquire())));
    stage.plays(&player, |player| {
        let drained = player.valve.drain(SOON);
        assert!(matches!(drained, Ok(()) | Err(Error::Timeout { .. })), "{drained:?}");
    });
    stage.end(Left::Closed);
}

/// A store of the user's that says when it is dropped, and must not be on the scheduler's thread.
struct Mortal {
    inner: MemoryStore,
    dropped: Arc<Ticket<()>>,
    scheduler: Arc<Mutex<Option<ThreadId>>>,
}

impl Store for Mortal {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        self.inner.open(id)
    }

    fn remote(&self) -> Option<Remote> {
        None
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.inner.watch(wake)
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        assert_ne!(
            *self.scheduler.lock(),
            Some(current_thread().id()),
            "a user's value dropped on the scheduler"
        );
        assert!(self.dropped.settle(Outcome::Granted(())), "dropped twice");
        self.dropped.wake();
    }
}

/// Learns on which thread timers are served.
struct Learns(Arc<Mutex<Option<ThreadId>>>);

impl Timed for Learns {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        *self.0.lock() = Some(current_thread().id());
    }

    fn stopped(self: Arc<Self>) {}
}

/// A call is woken by the scheduler, and its thread drops the valve and its scheduler while that one still looks at it.
pub(super) fn scheduler_holds_the_last_handle() {
    let stage = Stage::new();
    let (dropped, thread) = (Arc::new(Ticket::new(&Clock::System)), Arc::new(Mutex::new(None)));
    let store =
        Mortal { inner: MemoryStore::new(), dropped: Arc::clone(&dropped), scheduler: Arc::clone(&thread) };
    let scheduler = stage.into_scheduler();
    let learns: Arc<dyn Timed> = Arc::new(Learns(thread));
    scheduler.set(0, 0, Timer { owner: Arc::downgrade(&learns), timer: 0 }).unwrap();
    let valve =
        Valve::builder("scene").rule(Rule::gcra(1, SOON)).store(store).scheduler(&scheduler).build().unwrap();
    drop(scheduler);
    let caller = shuttle::thread::spawn(move || {
        for _ in 0..2 {
            match valve.job().max_wait(HORIZON / 2).acquire() {
                Ok(permit) => drop(permit),
                // This thread stood still until then.
                Err(Error::Timeout { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    let Outcome::Granted(()) = dropped.wait() else { panic!("nobody fails this ticket") };
    caller.join().unwrap();
}

/// The scheduler stops while one call waits for its rate, or before it begins to: it ends either way.
pub(super) fn scheduler_stops_below_a_wait() {
    let mut stage = Stage::new();
    let player = stage.valve(3, |valve| valve.rule(Rule::gcra(1, FAR)));
    player.run(player.valve.acquire()).unwrap();
    for wait in [Duration::MAX, FAR * 2] {
        stage.plays(&player, move |player| {
            let ended = player.run(player.valve.job().max_wait(wait).acquire());
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        });
    }
    let scheduler = stage.scheduler.clone();
    stage.go(move || scheduler.shutdown(Duration::MAX).unwrap());
    stage.end(Left::Closed);
}

/// The scheduler stops while a drain waits for a job and for its deadline, or before it begins to: the deadline cannot come
/// any more, so the drain ends.
pub(super) fn scheduler_stops_below_a_drain() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve);
    let held = player.start(player.valve.acquire_owned()).unwrap();
    let drained = Arc::new(Ticket::new(&Clock::System));
    let end = Arc::clone(&drained);
    stage.plays(&player, move |player| {
        let drained = player.valve.drain(FAR);
        assert!(matches!(drained, Err(Error::Timeout { .. } | Error::Closed)), "{drained:?}");
        assert!(end.settle(Outcome::Granted(())));
        end.wake();
    });
    let scheduler = stage.scheduler.clone();
    stage.go(move || scheduler.shutdown(Duration::MAX).unwrap());
    let Outcome::Granted(()) = drained.wait() else { panic!("nobody fails this ticket") };
    held.end();
    stage.end(Left::Closed);
}

/// What the handler is told comes in the order in which it happened, and all of it, though its thread starts at any time.
pub(super) fn events_arrive_in_order() {
    let mut stage = Stage::new();
    let (told, all) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Ticket::new(&Clock::System)));
    let (tell, end) = (Arc::clone(&told), Arc::clone(&all));
    let player = stage.valve(1, move |valve| {
        valve.on_event(move |event| {
            let count = {
                let mut told = tell.lock();
                told.push(matches!(event, Event::Paused { .. }));
                told.len()
            };
            if count == 4 && end.settle(Outcome::Granted(())) {
                end.wake();
            }
        })
    });
    for _ in 0..2 {
        player.valve.pause(FAR).unwrap();
        player.valve.resume().unwrap();
    }
    let Outcome::Granted(()) = all.wait() else { panic!("nobody fails this ticket") };
    assert_eq!(*told.lock(), [true, false, true, false]);
    stage.end(Left::Open);
}
