//! Time that a test turns, and the threads that take part in it: one runs at a time, and only while the test lets them.
//!
//! A *participant* is a thread started through the clock. It is *running* or *parked*; whoever unparks it puts it on the
//! ready list, under the same lock, so there is no instant at which work is in flight and nothing shows it. The test's
//! thread holds the *baton* while it lets participants run, one after the other in the order in which they became ready.
//! That order is then the same in every run. Threads that are no participants may wait on this clock too; for them only
//! the times at which they are served are promised.

use super::Tick;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long, in real time, a participant may run without coming back before the test is told which one it is.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// A clock that stands still until it is set.
pub(crate) struct VirtualTime {
    now: AtomicU64,
    stage: Mutex<Stage>,
    /// The holder of the baton waits here for the participant it let run; also those who wait for others to park.
    changed: Condvar,
}

#[derive(Default)]
struct Stage {
    participants: Vec<Participant>,
    running: Option<usize>,
    ready: VecDeque<usize>,
    others_parked: usize,
    /// Nobody is left who could hand on the baton: those who are ready run without.
    retired: bool,
}

struct Participant {
    name: String,
    state: State,
    go: Arc<Condvar>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    Parked,
    Gone,
}

thread_local! {
    /// The clock this thread takes part in, and its number there.
    static TAKES_PART: RefCell<Option<(Arc<VirtualTime>, usize)>> = const { RefCell::new(None) };
}

impl VirtualTime {
    pub(crate) fn new() -> Arc<VirtualTime> {
        Arc::new(VirtualTime {
            now: AtomicU64::new(0),
            stage: Mutex::new(Stage::default()),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn now(&self) -> Tick {
        self.now.load(Ordering::Acquire)
    }

    /// Moves the time on. Only the holder of the baton does.
    pub(crate) fn set(&self, tick: Tick) {
        self.now.store(tick, Ordering::Release);
    }

    /// A place for a thread that will take part; it is ready at once, and runs when the baton comes to it.
    pub(crate) fn enlist(self: &Arc<Self>, name: &str) -> Begin {
        let mut stage = self.stage.lock();
        let number = stage.participants.len();
        stage.participants.push(Participant {
            name: name.to_owned(),
            state: State::Ready,
            go: Arc::new(Condvar::new()),
        });
        stage.ready.push_back(number);
        Begin { time: Arc::clone(self), number }
    }

    /// Where the calling thread waits on this clock.
    pub(crate) fn seat(self: &Arc<Self>) -> Seat {
        // A thread that is ending may have lost its thread-locals already; it waits like any other then.
        let participant = TAKES_PART.try_with(|takes_part| match &*takes_part.borrow() {
            Some((time, number)) if Arc::ptr_eq(time, self) => Some(*number),
            _ => None,
        });
        let participant = participant.ok().flatten();
        Seat { time: Arc::clone(self), participant, unparked: AtomicU64::new(0), condvar: Condvar::new() }
    }

    /// Lets every ready participant run, one at a time, until all are parked or gone.
    ///
    /// # Panics
    ///
    /// If one neither parks on this clock nor ends for ten seconds.
    pub(crate) fn settle(&self) {
        loop {
            let mut stage = self.stage.lock();
            self.wait_while_one_runs(&mut stage);
            let Some(next) = stage.ready.pop_front() else { return };
            stage.participants[next].state = State::Running;
            stage.running = Some(next);
            stage.participants[next].go.notify_one();
        }
    }

    /// Time will never move again and nobody will let participants run: those who are ready, or are unparked later, run
    /// on their own, so that threads that were told to end can.
    pub(crate) fn retire(&self) {
        let mut stage = self.stage.lock();
        stage.retired = true;
        for &number in &stage.ready {
            stage.participants[number].go.notify_one();
        }
    }

    /// Waits, in real time, until at least `count` threads that are no participants are parked on this clock.
    pub(crate) fn wait_blocked(&self, count: usize) {
        let mut stage = self.stage.lock();
        while stage.others_parked < count {
            let waited = self.changed.wait_for(&mut stage, STUCK_AFTER);
            assert!(
                !waited.timed_out() || stage.others_parked >= count,
                "{} threads are parked on this clock, after 10 s, of the {count} waited for",
                stage.others_parked
            );
        }
    }

    fn wait_while_one_runs(&self, stage: &mut MutexGuard<'_, Stage>) {
        while let Some(running) = stage.running {
            if self.changed.wait_for(stage, STUCK_AFTER).timed_out() && stage.running == Some(running) {
                let name = &stage.participants[running].name;
                panic!(
                    "participant {name:?} has run for 10 s without waiting on its clock: is it stuck elsewhere?"
                );
            }
        }
    }
}

/// The first step of a participant's thread.
pub(crate) struct Begin {
    time: Arc<VirtualTime>,
    number: usize,
}

impl Begin {
    /// Waits for the baton, then runs `body`; the baton goes back when it ends, also by a panic.
    pub(crate) fn run<T>(self, body: impl FnOnce() -> T) -> T {
        TAKES_PART.with_borrow_mut(|takes_part| *takes_part = Some((Arc::clone(&self.time), self.number)));
        {
            let mut stage = self.time.stage.lock();
            wait_for_baton(&mut stage, self.number);
        }
        body()
    }
}

impl Drop for Begin {
    fn drop(&mut self) {
        let mut stage = self.time.stage.lock();
        stage.participants[self.number].state = State::Gone;
        stage.ready.retain(|&number| number != self.number);
        if stage.running == Some(self.number) {
            stage.running = None;
        }
        self.time.changed.notify_all();
    }
}

fn wait_for_baton(stage: &mut MutexGuard<'_, Stage>, number: usize) {
    let go = Arc::clone(&stage.participants[number].go);
    while stage.participants[number].state == State::Parked
        || (stage.participants[number].state == State::Ready && !stage.retired)
    {
        go.wait(stage);
    }
}

/// Where one thread waits on a virtual clock.
pub(crate) struct Seat {
    time: Arc<VirtualTime>,
    participant: Option<usize>,
    /// Guarded by the stage's lock; an atomic only to be shared.
    unparked: AtomicU64,
    condvar: Condvar,
}

const WAITING: u64 = 2;
const UNPARKED: u64 = 1;
const IDLE: u64 = 0;

impl Seat {
    pub(crate) fn park(&self) {
        let mut stage = self.time.stage.lock();
        if self.unparked.swap(WAITING, Ordering::Relaxed) == UNPARKED {
            self.unparked.store(IDLE, Ordering::Relaxed);
            return;
        }
        match self.participant {
            Some(number) => {
                stage.participants[number].state = State::Parked;
                stage.running = None;
                self.time.changed.notify_all();
                wait_for_baton(&mut stage, number);
            }
            None => {
                stage.others_parked += 1;
                self.time.changed.notify_all();
                while self.unparked.load(Ordering::Relaxed) != UNPARKED {
                    self.condvar.wait(&mut stage);
                }
            }
        }
        self.unparked.store(IDLE, Ordering::Relaxed);
    }

    pub(crate) fn unpark(&self) {
        let mut stage = self.time.stage.lock();
        if self.unparked.swap(UNPARKED, Ordering::Relaxed) != WAITING {
            return;
        }
        match self.participant {
            Some(number) => {
                stage.participants[number].state = State::Ready;
                stage.ready.push_back(number);
                if stage.retired {
                    stage.participants[number].go.notify_one();
                }
            }
            None => {
                stage.others_parked -= 1;
                self.condvar.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests;
