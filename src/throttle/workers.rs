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

#[derive(Default)]
struct State {
    in_turn: VecDeque<Task>,
    at_once: VecDeque<Task>,
    idle: Vec<Arc<Parker>>,
    threads: usize,
    /// Threads that wait for something else inside a task, or are stuck in the engine.
    away: usize,
    started: u64,
    /// Threads that find nothing to do end, until the next task.
    resting: bool,
    stopping: bool,
}

/// Who takes up a task.
enum Call {
    Nobody,
    Idle(Arc<Parker>),
    /// A new thread of this number.
    New(u64),
}

impl State {
    /// Threads that have a task or are about to take one.
    fn active(&self) -> usize {
        self.threads.saturating_sub(self.idle.len() + self.away)
    }

    fn call(&mut self, bound: usize) -> Call {
        let active = self.active();
        let wanted = (!self.in_turn.is_empty() && active < bound)
            || (!self.at_once.is_empty() && active < bound + EXTRA_MAX);
        if !wanted {
            return Call::Nobody;
        }
        if let Some(parker) = self.idle.pop() {
            return Call::Idle(parker);
        }
        if self.threads >= bound.saturating_add(EXTRA_MAX) {
            return Call::Nobody;
        }
        self.threads += 1;
        self.started += 1;
        Call::New(self.started - 1)
    }

    /// The next task for a thread that is active.
    fn take(&mut self, bound: usize) -> Option<Task> {
        if let Some(task) = self.at_once.pop_front() {
            return Some(task);
        }
        if self.active() > bound { None } else { self.in_turn.pop_front() }
    }
}

thread_local! {
    /// The pool this thread belongs to, by its address.
    static POOL: Cell<usize> = const { Cell::new(0) };
}

impl Workers {
    /// Threads called `name-0`, `name-1`, ..., of which `bound` work at once.
    pub(super) fn new(name: &'static str, bound: usize, clock: &Clock) -> Workers {
        let state = Mutex::new(State::default());
        Workers { pool: Arc::new(Pool { name, bound, clock: clock.clone(), state }) }
    }

    /// Has a thread run the task. If none can be had at all, it is dropped right here, so it must mind being dropped.
    pub(super) fn submit(&self, task: Task, urgency: Urgency) {
        let mut state = self.pool.state.lock();
        state.resting = false;
        match urgency {
            Urgency::InTurn => state.in_turn.push_back(task),
            Urgency::AtOnce => state.at_once.push_back(task),
        }
        let call = state.call(self.pool.bound);
        drop(state);
        self.pool.answer(call);
    }

    /// Takes back the tasks that no thread has taken up.
    pub(super) fn clear(&self) -> Vec<Task> {
        let mut state = self.pool.state.lock();
        let State { in_turn, at_once, .. } = &mut *state;
        at_once.drain(..).chain(in_turn.drain(..)).collect()
    }

    /// Lets the threads end that have nothing to do.
    pub(super) fn dismiss(&self) {
        self.pool.dismiss();
    }

    /// While the guard lives, a thread of this pool that is held up longer than `patience` is replaced.
    pub(super) fn watch(&self, scheduler: &Scheduler, patience: Tick) -> Option<Watched> {
        if !self.pool.is_own_thread() {
            return None;
        }
        let watch = Arc::new(Watch { pool: Arc::clone(&self.pool), state: Mutex::new(Held::InTime) });
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
    fn is_own_thread(self: &Arc<Self>) -> bool {
        POOL.try_with(Cell::get).is_ok_and(|pool| pool == Arc::as_ptr(self).addr())
    }

    fn answer(self: &Arc<Self>, call: Call) {
        match call {
            Call::Nobody => {}
            Call::Idle(parker) => parker.unpark(),
            Call::New(number) => self.start(number),
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
        let mut unserved = Vec::new();
        // With a thread left, it takes them up in time.
        if state.threads == 0 {
            let State { in_turn, at_once, .. } = &mut *state;
            unserved.extend(at_once.drain(..).chain(in_turn.drain(..)));
        }
        drop(state);
        drop(unserved);
    }

    fn serve(self: &Arc<Self>) {
        let parker = Arc::new(Parker::new(&self.clock));
        let _ = POOL.try_with(|pool| pool.set(Arc::as_ptr(self).addr()));
        loop {
            let mut state = self.state.lock();
            if let Some(task) = state.take(self.bound) {
                drop(state);
                let by: Rc<dyn Counted> = Rc::new(Arc::clone(self));
                let _ = caught(|| counted(by, task));
                continue;
            }
            if state.stopping || state.resting || state.threads > self.bound {
                state.threads -= 1;
                return;
            }
            if fault("worker-idles-late") {
                drop(state);
                state = self.state.lock();
            }
            state.idle.push(Arc::clone(&parker));
            drop(state);
            parker.park();
        }
    }

    fn leaves(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.away += 1;
        let call = if fault("T105") { Call::Nobody } else { state.call(self.bound) };
        drop(state);
        self.answer(call);
    }

    fn returns(&self) {
        self.state.lock().away -= 1;
    }

    fn dismiss(&self) {
        let mut state = self.state.lock();
        let idle = std::mem::take(&mut state.idle);
        state.resting = true;
        drop(state);
        for parker in idle {
            parker.unpark();
        }
    }
}

impl Counted for Arc<Pool> {
    fn leaves(&self) {
        Pool::leaves(self);
    }

    fn returns(&self) {
        Pool::returns(self);
    }

    fn is_exhausted(&self) -> bool {
        self.state.lock().away >= EXTRA_MAX
    }
}

/// One call to the engine that a worker makes.
pub(super) struct Watched {
    watch: Arc<Watch>,
    timer: Option<(Scheduler, TimerKey)>,
}

struct Watch {
    pool: Arc<Pool>,
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
            self.watch.pool.returns();
        }
    }
}

impl Timed for Watch {
    fn due(self: Arc<Self>, _timer: u64, _now: Tick) {
        let mut state = self.state.lock();
        if *state == Held::InTime {
            *state = Held::TooLong;
            // Under the lock, so that it cannot return before it has left.
            self.pool.leaves();
        }
    }

    fn stopped(self: Arc<Self>) {}
}
