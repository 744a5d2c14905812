//! What the model remembers: processes, their calls, and what is on the network.

use super::owner::Owner;
use super::rules::{BEFORE, Broken, NAMES, PRESENT, TIMEOUT};
use super::store::{PROCESSES, Store};

/// How large a world is explored.
#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    pub(super) processes: usize,
    pub(super) slots: usize,
    /// How often the store may lose its state.
    pub(super) losses: u8,
    /// How much may be out of order at once: calls that are late, lost or doubled, and processes that are frozen. All
    /// else is over as soon as it begins.
    pub(super) troubles: usize,
    /// How many names a process may use at once.
    pub(super) names: usize,
    /// The greatest fencing token that is explored; with 0 they are not followed, which keeps the world finite.
    pub(super) fences: u8,
    pub(super) broken: Option<Broken>,
}

/// The three calls of the protocol. A process has at most one of each kind on its way: the turn, the renewal, the errand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ask,
    Renew,
    Release,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Ask, Kind::Renew, Kind::Release];
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    None,
    /// The request is on its way.
    Sent,
    /// The answer is on its way: granted, held, or done.
    Good,
    /// The answer is on its way: no slot is free, or not held.
    Bad,
    /// It was read as good when the lease still held, by a thread that then stood still.
    Read,
    /// Nothing will come any more.
    Silent,
}

/// A call, from when it is sent until its answer is used or given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) phase: Phase,
    /// Ticks since it was sent, as far as they matter.
    pub(super) age: u8,
    /// The names it is about, as bits.
    pub(super) names: u8,
    /// The names whose releases ride on it.
    pub(super) rides: u8,
    /// What an ask tells of the fencing tokens its sender has seen, or its answer of the one it got.
    pub(super) fence: u8,
}

/// A message whose sender does not wait for it: a copy, or one that outlived its sender's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) kind: Kind,
    pub(super) call: Call,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) owner: Owner,
    /// A job runs.
    pub(super) job: bool,
    /// A job waits, for so many ticks yet.
    pub(super) waiting: bool,
    pub(super) patience: u8,
    pub(super) ask: Call,
    pub(super) renew: Call,
    pub(super) release: Call,
    pub(super) stray: Option<Stray>,
    pub(super) frozen: bool,
    /// The greatest fencing token it has seen.
    pub(super) floor: u8,
    /// Its job was told of the loss.
    pub(super) told: bool,
    /// Its grant is of a state that the store has lost.
    pub(super) early: bool,
    /// For how many ticks a lease, or an ask that may still take one, has had no owner.
    pub(super) gone: [u8; NAMES],
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    pub(super) processes: [Process; PROCESSES],
    pub(super) store: Store,
    /// The greatest fencing token given since the store last lost its state.
    pub(super) top: u8,
    /// How often it has lost its state.
    pub(super) losses: u8,
    /// Each process in one word, which `forget` keeps up to date.
    pub(super) words: [u64; PROCESSES],
}

impl Process {
    pub(super) fn call(&mut self, kind: Kind) -> &mut Call {
        match kind {
            Kind::Ask => &mut self.ask,
            Kind::Renew => &mut self.renew,
            Kind::Release => &mut self.release,
        }
    }

    pub(super) fn call_of(&self, kind: Kind) -> &Call {
        match kind {
            Kind::Ask => &self.ask,
            Kind::Renew => &self.renew,
            Kind::Release => &self.release,
        }
    }

    /// Whether it has anything that can be lost or delayed.
    pub(super) fn is_busy(&self) -> bool {
        self.owner.held || self.waiting || self.owner.unreleased() != 0 || self.has_calls()
    }

    pub(super) fn has_calls(&self) -> bool {
        self.ask.phase != Phase::None || self.renew.phase != Phase::None || self.release.phase != Phase::None
    }

    /// What is out of order with it.
    pub(super) fn troubles(&self) -> usize {
        let calls = usize::from(self.ask.phase != Phase::None)
            + usize::from(self.renew.phase != Phase::None)
            + usize::from(self.release.phase != Phase::None);
        calls + usize::from(self.stray.is_some()) + usize::from(self.frozen)
    }

    /// A call whose time is up must be given up before time goes on.
    pub(super) fn is_overdue(&self) -> bool {
        let overdue = |call: &Call| call.phase != Phase::None && call.age >= TIMEOUT;
        overdue(&self.ask) || overdue(&self.renew) || overdue(&self.release)
    }

    /// Releases that no call carries: they go within a millisecond.
    pub(super) fn owes_release(&self) -> bool {
        let carried = if self.ask.phase == Phase::None { 0 } else { self.ask.rides };
        self.owner.unreleased() & !carried != 0 && self.release.phase == Phase::None
    }

    /// Whether someone sees to what this name may hold.
    pub(super) fn owns(&self, name: usize, broken: Option<Broken>) -> bool {
        let trusted = self.owner.held && self.job && !self.owner.is_lost(broken);
        name == PRESENT && (self.ask.phase != Phase::None || trusted)
    }

    /// Whether a message about this name is on the network, or its call not over.
    fn speaks_of(&self, name: usize) -> bool {
        let bit = 1 << name;
        let about = |call: &Call| call.phase != Phase::None && (call.names | call.rides) & bit != 0;
        about(&self.ask)
            || about(&self.renew)
            || about(&self.release)
            || self.stray.is_some_and(|stray| (stray.call.names | stray.call.rides) & bit != 0)
    }

    /// Whether an ask of this name may still be carried out although nobody waits for it.
    fn has_stray_ask(&self, name: usize, broken: Option<Broken>) -> bool {
        self.stray.is_some_and(|stray| {
            stray.kind == Kind::Ask
                && stray.call.names & 1 << name != 0
                && may_be_carried_out(&stray.call, broken)
        })
    }

    /// Its next name: the messages about the present one are from now on about the one before.
    fn rename(&mut self) {
        self.owner.rename();
        self.gone.swap(PRESENT, BEFORE);
        let stray = self.stray.as_mut().map(|stray| &mut stray.call);
        for call in [&mut self.renew, &mut self.release].into_iter().chain(stray) {
            call.names = call.names << 1 & 0b11;
            call.rides = call.rides << 1 & 0b11;
        }
    }
}

/// The time after which an ask or a renewal changes nothing. A release has none.
pub(super) fn may_be_carried_out(call: &Call, broken: Option<Broken>) -> bool {
    call.age <= TIMEOUT || broken == Some(Broken::NotAfterIgnored)
}

impl State {
    /// Whether nothing in the world speaks of this name any more.
    fn is_clear(&self, at: usize, name: usize) -> bool {
        let process = &self.processes[at];
        self.store.left(at, name) == 0 && process.owner.unsent[name] == 0 && !process.speaks_of(name)
    }

    /// Whether a process without a lease has a name for an ask.
    pub(super) fn has_name(&self, at: usize, world: &World) -> bool {
        if world.broken == Some(Broken::NameReused) {
            return self.processes[at].owner.unsent[PRESENT] == 0 && self.store.left(at, PRESENT) == 0;
        }
        self.is_clear(at, PRESENT) || world.names == NAMES && self.is_clear(at, BEFORE)
    }

    /// Makes its present name one that nothing speaks of. `Names::next` never gives one twice; the model uses those again
    /// that are forgotten.
    pub(super) fn take_name(&mut self, at: usize, broken: Option<Broken>) {
        if broken != Some(Broken::NameReused) && !self.is_clear(at, PRESENT) {
            self.processes[at].rename();
            self.store.rename(at);
        }
    }

    /// Whether this name holds a slot, or may come to.
    pub(super) fn may_hold(&self, at: usize, name: usize, broken: Option<Broken>) -> bool {
        self.store.holds(at, name) || self.processes[at].has_stray_ask(name, broken)
    }

    /// Forgets what can make no difference, so that equal worlds are equal.
    pub(super) fn forget(&mut self, world: &World, at: usize) {
        for name in 0..NAMES {
            if !self.may_hold(at, name, world.broken) || self.processes[at].owns(name, world.broken) {
                self.processes[at].gone[name] = 0;
            }
        }
        let process = &mut self.processes[at];
        process.told &= process.owner.held;
        process.early &= process.owner.held || process.ask.phase == Phase::Good;
        if process.owner.lost {
            process.owner.left = 0;
        }
        if let Some(stray) = process.stray {
            let void = stray.kind != Kind::Release && stray.call.rides == 0;
            if void && !may_be_carried_out(&stray.call, world.broken) {
                process.stray = None;
            }
        }
        self.words[at] = self.word(at);
    }

    /// The state in a few words, and its processes in the order that is the same for all equal worlds. Puts them into that
    /// order, and gives it.
    pub(super) fn settle(&mut self) -> ([u64; 4], [usize; PROCESSES]) {
        let mut order = [0, 1, 2];
        for (left, right) in [(0, 1), (1, 2), (0, 1)] {
            if self.words[order[left]] < self.words[order[right]] {
                order.swap(left, right);
            }
        }
        if order != [0, 1, 2] {
            self.reorder(order);
        }
        let [first, second, third] = self.words;
        let last = self.store.fence << 16 | u64::from(self.top) << 8 | u64::from(self.losses);
        ([first, second, third, last], order)
    }

    fn reorder(&mut self, order: [usize; PROCESSES]) {
        let (processes, words) = (self.processes, self.words);
        for (place, &from) in order.iter().enumerate() {
            self.processes[place] = processes[from];
            self.words[place] = words[from];
        }
        self.store.reorder(order);
    }

    /// Everything that is known of a process, in one word.
    pub(super) fn word(&self, at: usize) -> u64 {
        let process = &self.processes[at];
        let owner = &process.owner;
        let mut word = 0;
        for name in 0..NAMES {
            word = word << 3 | self.store.left(at, name) as u64;
            word = word << 3 | process.gone[name] as u64;
            word = word << 3 | owner.unsent[name] as u64;
        }
        word = word << 3 | owner.left as u64;
        for flag in [owner.held, owner.lost, process.job, process.told, process.early, process.frozen] {
            word = word << 1 | flag as u64;
        }
        word = word << 2 | if process.waiting { process.patience as u64 + 1 } else { 0 };
        word = word << 6 | process.ask.word() | process.ask.rides as u64 >> BEFORE;
        word = word << 6 | process.renew.word() | process.renew.names as u64 >> BEFORE;
        word = word << 7 | process.release.word() << 1 | process.release.names as u64;
        word = word << 9 | (process.floor as u64) << 6 | (process.ask.fence as u64) << 3;
        let Some(Stray { kind, call }) = process.stray else { return word << 7 };
        let stray = (kind as u64 + 1) << 5
            | (call.age as u64) << 3
            | (call.names << 1) as u64
            | (call.rides >> BEFORE) as u64;
        (word | call.fence as u64) << 7 | stray
    }
}

impl Call {
    pub(super) fn sent(names: u8, rides: u8, fence: u8) -> Call {
        Call { phase: Phase::Sent, age: 0, names, rides, fence }
    }

    /// Phase and age, above one free bit.
    fn word(&self) -> u64 {
        (self.phase as u64) << 3 | (self.age as u64) << 1
    }
}
