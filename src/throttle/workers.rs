//! Threads of a throttle's own, started on demand: so many work at once, and one that is held up does not count.

use crate::clock::{Clock, Parker, Tick};
use crate::event::caught;
use crate::planted::fault;
use crate::scheduler::{Counted, Scheduler, Timed, Timer, TimerKey, counted};
use crate::sync::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Weak};

#[cfg(shuttle)]
use shuttle::thread_local;

pub(super) type Task = Box<dyn FnOnce() + Send>;

/// How many threads there may be beyond those that work at once, in place of those that are held up.
const EXTRA_MAX: usize = 256;

/// A line this long keeps its memory.
const LINE_KEPT: usize = 64;

/// How soon a task is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Once a worker is free.
    InTurn,
    /// Now, beyond the bound if need be.
    AtOnce,
}

/// The handle on a pool; its threads end when it goes, or once they are idle then.
pub(super) struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    name: &'static str,
    bound: usize,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    in_turn: Line,
    at_once: Line,
    /// Tasks that may begin, each with the urgency it was submitted with: a thread is on its way to each.
    ready: VecDeque<(Task, Urgency)>,
    idle: Vec<Arc<Parker>>,
    threads: usize,
    /// Threads that were called and have not looked for a task yet.
    called: usize,
    /// Threads that wait for something else inside a task, or are stuck in the engine.
    away: usize,
    started: u64,
    /// Threads that find nothing to do end, until the next task.
    resting: bool,
    stopping: bool,
}

/// The tasks of one urgency. Those of the other never take their places.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Task>,
    /// So many have begun or may begin, without those that are held up.
    active: usize,
}

/// Threads to be called once the lock is gone.
#[derive(Default)]
struct Summons {
    idle: Vec<Arc<Parker>>,
    /// The numbers of new ones.
    new: Vec<u64>,
}

impl State {
    fn new() -> State {
        State {
            in_turn: Line::default(),
            at_once: Line::default(),
            ready: VecDeque::new(),
            idle: Vec::new(),
            threads: 0,
            called: 0,
            away: 0,
            started: 0,
            resting: false,
            stopping: false,
        }
    }

    fn line(&mut self, urgency: Urgency) -> &mut Line {
        match urgency {
            Urgency::InTurn => &mut self.in_turn,
            Urgency::AtOnce => &mut self.at_once,
        }
    }

    /// Lets tasks begin as long as they may, and calls a thread to each.
    fn proceed(&mut self, bound: usize) -> Summons {
        for (urgency, most) in [(Urgency::AtOnce, EXTRA_MAX), (Urgency::InTurn, bound)] {
            while self.line(urgency).active < most {
                let Some(task) = self.line(urgency).waiting.pop_front() else { break };
                self.line(urgency).active += 1;
                self.ready.push_back((task, urgency));
            }
        }
        for line in [&mut self.in_turn, &mut self.at_once] {
            // A million keys that were due together need not be remembered.
            if line.waiting.is_empty() && line.waiting.capacity() > LINE_KEPT {
                line.waiting = VecDeque::new();
            }
        }
        let mut calls = Summons::default();
        while self.called < self.ready.len() {
            if let Some(parker) = self.idle.pop() {
                calls.idle.push(parker);
            } else if self.threads < bound.saturating_add(EXTRA_MAX) {
                calls.new.push(self.started);
                self.threads += 1;
                self.started += 1;
            } else {
                // Whoever ends a task takes it.
                break;
            }
            self.called += 1;
        }
        calls
    }

    /// Everything that has not begun.
    fn clear(&mut self) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (task, urgency) in std::mem::take(&mut self.ready) {
            self.line(urgency).active -= 1;
            tasks.push(task);
        }
        tasks.extend(self.at_once.waiting.drain(..).chain(self.in_turn.waiting.drain(..)));
        tasks
    }
}

thread_local! {
    /// The pool this thread belongs to, by its address, and how urgent its task is.
    static POOL: Cell<(usize, Urgency)> = const { Cell::new((0, Urgency::InTurn)) };
}

impl Workers {
    /// Threads called `name-0`, `name-1`, ..., of which `bound` work at once.
    pub(super) fn new(name: &'static str, bound: usize, clock: &Clock) -> Workers {
        let state = Mutex::new(State::new());
        Workers { pool: Arc::new(Pool { name, bound, clock: clock.clone(), state }) }
    }

    /// Has a thread run the task. If none can be had at all, it is dropped right here, so it must mind being dropped.
    pub(super) fn submit(&self, task: Task, urgency: Urgency) {
        let mut state = self.pool.state.lock();
        state.resting = false;
        state.line(urgency).waiting.push_back(task);
        let calls = state.proceed(self.pool.bound);
        drop(state);
        self.pool.call(calls);
    }

    /// Takes back the tasks that no thread has taken up.
    pub(super) fn clear(&self) -> Vec<Task> {
        self.pool.state.lock().clear()
    }

    /// Lets the threads end that have nothing to do.
    pub(super) fn dismiss(&self) {
        self.pool.dismiss();
    }

    /// While the guard lives, a thread of this pool that is held up longer than `patience` is replaced.
    pub(super) fn watch(&self, scheduler: &Scheduler, patience: Tick) -> Option<Watched> {
        let (pool, urgency) = POOL.try_with(Cell::get).ok()?;
        if pool != self.pool.address() {
            return None;
        }
        let seat = Seat { pool: Arc::clone(&self.pool), urgency };
        let watch = Arc::new(Watch { seat, state: Mutex::new(Held::InTime) });
        let weak = Arc::downgrade(&watch);
        let owner: Weak<dyn Timed> = weak;
        let at = self.pool.clock.now() + patience;
        let key = scheduler.set(at, WATCHES, Timer { owner, timer: 0 }).ok();
        Some(Watched { watch, timer: key.map(|key| (scheduler.clone(), key)) })
    }
}

/// Among the timers of one tick, after those of valves and throttles.
const WATCHES: u64 = (1 << 63) - 1;

impl Drop for Workers {
    fn drop(&mut self) {
        if crate::os::forked() {
            return;
        }
        self.pool.state.lock().stopping = true;
        self.pool.dismiss();
    }
}

impl Pool {
    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    fn call(self: &Arc<Self>, calls: Summons) {
        for parker in calls.idle {
            parker.unpark();
        }
        for number in calls.new {
            self.start(number);
        }
    }

    fn start(self: &Arc<Self>, number: u64) {
        let pool = Arc::clone(self);
        let name = format!("{}-{number}", self.name);
        if self.clock.spawn(&name, None, move || pool.serve()).is_ok() {
            return;
        }
        let mut state = self.state.lock();
        state.threads -= 1;
        state.called -= 1;
        // With a thread left, it takes them up in time.
        let unserved = if state.threads == 0 { state.clear() } else { Vec::new() };
        drop(state);
        drop(unserved);
    }

    fn serve(self: &Arc<Self>) {
        let parker = Arc::new(Parker::new(&self.clock));
        let mut state = self.state.lock();
        loop {
            state.called = state.called.saturating_sub(1);
            while let Some((task, urgency)) = state.ready.pop_front() {
                drop(state);
                self.run(task, urgency);
                state = self.state.lock();
                state.line(urgency).active -= 1;
                // One of those that may begin now is for this thread.
                state.called += 1;
                let calls =
                    if fault("next-task-left") { Summons::default() } else { state.proceed(self.bound) };
                state.called -= 1;
                drop(state);
                self.call(calls);
                state = self.state.lock();
            }
            if state.stopping || state.resting || state.threads > self.bound {
                state.threads -= 1;
                return;
            }
            state.idle.push(Arc::clone(&parker));
            drop(state);
            parker.park();
            state = self.state.lock();
        }
    }

    fn run(self: &Arc<Self>, task: Task, urgency: Urgency) {
        let _ = POOL.try_with(|pool| pool.set((self.address(), urgency)));
        let by: Rc<dyn Counted> = Rc::new(Seat { pool: Arc::clone(self), urgency });
        let _ = caught(|| counted(by, task));
    }

    fn dismiss(&self) {
        let mut state = self.state.lock();
        let idle = std::mem::take(&mut state.idle);
        state.resting = true;
        // Each looks for a task once more.
        state.called += idle.len();
        drop(state);
        for parker in idle {
            parker.unpark();
        }
    }
}

/// A thread of a pool, as long as it has a task.
struct Seat {
    pool: Arc<Pool>,
    urgency: Urgency,
}

impl Counted for Seat {
    fn leaves(&self) {
        let mut state = self.pool.state.lock();
        state.away += 1;
        state.line(self.urgency).active -= 1;
        let calls = if fault("T105") { Summons::default() } else { state.proceed(self.pool.bound) };
        drop(state);
        self.pool.call(calls);
    }

    fn returns(&self) {
        let mut state = self.pool.state.lock();
        state.away -= 1;
        state.line(self.urgency).active += 1;
    }

    fn is_exhausted(&self) -> bool {
        self.pool.state.lock().away >= EXTRA_MAX
    }
}

/// One call to the engine that a worker makes.
pub(super) struct Watched {
    watch: Arc<Watch>,
    timer: Option<(Scheduler, TimerKey)>,
}

struct Watch {
    seat: Seat,
    state: Mutex<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    InTime,
    TooLong,
    Over,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some((scheduler, key)) = &self.timer {
            scheduler.cancel(*key);
        }
        let before = std::mem::replace(&mut *self.watch.state.lock(), Held::Over);
        if before == Held::TooLong {
            self.watch.seat.returns();
        }
    }
}

impl Timed for Watch {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        let mut state = self.state.lock();
        if *state == Held::InTime {
            *state = Held::TooLong;
            // Under the lock, so that it cannot return before it has left.
            self.seat.leaves();
        }
    }

    fn stopped(self: Arc<Self>) {}
}

#[cfg(test)]
mod tests;
