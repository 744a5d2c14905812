//! What must happen: a plain model of store and valves that is told of each act, and says when something else was seen.
//!
//! It keeps each rule in its own way, fractions of a tick over the limit, and looks at the whole queue each time. It knows
//! exactly who starts when; only of early refusals, which a valve may find out sooner or later, it checks that they are true.

mod judge;
mod retried;

use super::plan::{By, Call, Plan, ValvePlan};
use super::spent::Spent;
use valve::{Error, Stats};

pub(super) struct World {
    rules: Vec<Spent>,
    paused_until: u64,
    valves: Vec<ValveState>,
    cancelled: Vec<bool>,
    calls: Vec<CallState>,
    /// Attempts before the last of their calls: when they started, and what they cost.
    tried: Vec<(u64, u32)>,
    /// How many times a call has backed off.
    back_offs: u64,
    pub(super) trace: Vec<String>,
    /// The first thing that was not as it must be.
    pub(super) broken: Option<String>,
}

struct ValveState {
    limit: u32,
    queue_max: usize,
    phase: Phase,
    running: u32,
    started: u64,
    timed_out: u64,
    cancelled: u64,
    refused: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    Closed,
}

struct CallState {
    call: Call,
    since: u64,
    deadline: Option<u64>,
    fate: Fate,
}

/// What must become of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Waits,
    /// It ends without a start at this tick.
    Ends(End),
    /// It was admitted at this tick and must be seen to start.
    Starts(u64),
    Runs {
        since: u64,
    },
    /// It is to be tried again at this tick; the second number says in which order such calls were to.
    BacksOff(u64, u64),
    Ended {
        started: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is told at the door: it costs too much, its token is cancelled, or the valve is closed. All may hold.
    AtTheDoor,
    Cancelled,
    Closed,
    Refused,
    /// The queue is full; if it is too late as well, it may hear of that instead.
    Full,
    /// It has been told that its deadline has passed, or will.
    Late,
}

impl World {
    pub(super) fn new(plan: &Plan) -> World {
        let valve = |plan: &ValvePlan| ValveState {
            limit: plan.concurrency.unwrap_or(u32::MAX),
            queue_max: plan.max_queue.unwrap_or(usize::MAX),
            phase: Phase::Open,
            running: 0,
            started: 0,
            timed_out: 0,
            cancelled: 0,
            refused: 0,
        };
        World {
            rules: plan.rules.iter().map(Spent::new).collect(),
            paused_until: 0,
            valves: plan.valves.iter().map(valve).collect(),
            cancelled: vec![false; plan.tokens],
            calls: Vec::new(),
            tried: Vec::new(),
            back_offs: 0,
            trace: Vec::new(),
            broken: None,
        }
    }

    pub(super) fn note(&mut self, now: u64, what: impl std::fmt::Display) {
        self.trace.push(format!("{now} {what}"));
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce(&World) -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what(self));
        }
    }

    /// Learns from the figures which waits have ended for lateness, before those calls are seen to end: when a valve finds
    /// out is its own affair. `told` has just been told so.
    pub(super) fn observe(&mut self, now: u64, stats: &[Stats], told: Option<usize>) {
        self.come_back(now, &stats.iter().map(|stats| stats.backing_off).collect::<Vec<_>>());
        if let Some(told) = told.filter(|told| self.calls[*told].fate == Fate::Waits) {
            // It was not to start instead.
            self.drive(self.calls[told].call.valve, now);
            if self.calls[told].fate == Fate::Waits {
                self.calls[told].fate = Fate::Ends(End::Late);
            }
        }
        for (valve, stats) in stats.iter().enumerate() {
            while let Some((number, fate)) = self.next_to_learn(valve, now, stats.timed_out, told) {
                self.calls[number].fate = fate;
                self.drive(valve, now);
            }
        }
    }

    /// The next call to be known to be late, as long as fewer are than the figure says; or one that is not, after all.
    fn next_to_learn(
        &mut self,
        valve: usize,
        now: u64,
        timed_out: u64,
        told: Option<usize>,
    ) -> Option<(usize, Fate)> {
        let of_valve = |number: &usize| self.calls[*number].call.valve == valve;
        let late = |number: &usize| of_valve(number) && self.calls[*number].fate == Fate::Ends(End::Late);
        let refused = told.filter(|told| of_valve(told) && !late(told));
        let late: Vec<_> = (0..self.calls.len()).filter(late).collect();
        let known = self.valves[valve].timed_out + (late.len() + refused.iter().count()) as u64;
        if known > timed_out {
            let guessed = late.into_iter().find(|number| Some(*number) != told);
            self.expect(guessed.is_some(), |_| format!("valve {valve}: not all timeouts are counted"));
            return guessed.map(|number| (number, Fate::Waits));
        }
        if known == timed_out {
            return None;
        }
        self.drive(valve, now);
        let next = self.likely_late(valve, now);
        self.expect(next.is_some(), |_| format!("valve {valve}: {timed_out} timeouts are too many"));
        next.map(|number| (number, Fate::Ends(End::Late)))
    }

    /// Who has been told that it is too late, if somebody has: the head, those that the head's refusal speaks of, any that
    /// a refusal could speak of, and then those whose deadline is now.
    fn likely_late(&self, valve: usize, now: u64) -> Option<usize> {
        let head = self.head(valve)?;
        let cost = self.calls[head].call.cost;
        let start = self.earliest(now, cost);
        let spoken_of = |number: &usize| {
            let CallState { call, deadline, .. } = &self.calls[*number];
            call.cost >= cost && deadline.is_some_and(|deadline| deadline < start)
        };
        let too_late = |number: &usize| self.is_too_late(*number, now);
        Some(head)
            .filter(too_late)
            .or_else(|| self.queued(valve).find(spoken_of))
            .or_else(|| self.queued(valve).find(too_late))
            .or_else(|| self.queued(valve).find(|number| self.calls[*number].deadline == Some(now)))
    }

    /// A call is about to be made; gives its number.
    pub(super) fn call(&mut self, now: u64, call: &Call) -> usize {
        let number = self.calls.len();
        self.note(now, format_args!("call {number} {call:?}"));
        let deadline = call.max_wait.filter(|_| call.by != By::Try).map(|wait| now + wait);
        let fate = self.fate_of(now, call);
        self.calls.push(CallState { call: call.clone(), since: now, deadline, fate });
        if let Fate::Starts(_) = fate {
            self.admit(number, now);
        }
        if fate != Fate::Ends(End::AtTheDoor) {
            self.drive(call.valve, now);
        }
        number
    }

    fn fate_of(&self, now: u64, call: &Call) -> Fate {
        let valve = &self.valves[call.valve];
        let is_cancelled = call.token.is_some_and(|token| self.cancelled[token]);
        if call.cost > self.capacity() || is_cancelled || valve.phase != Phase::Open {
            Fate::Ends(End::AtTheDoor)
        } else if call.by == By::Try || call.max_wait == Some(0) {
            let ahead = self.queued(call.valve).any(|other| self.calls[other].call.priority >= call.priority);
            let starts = !ahead && self.may_start(call.valve, now, call.cost);
            if starts { Fate::Starts(now) } else { Fate::Ends(End::Refused) }
        } else if self.queued(call.valve).count() >= valve.queue_max {
            Fate::Ends(End::Full)
        } else {
            Fate::Waits
        }
    }

    /// A call was granted, as of this tick of the store's clock.
    pub(super) fn started(&mut self, now: u64, number: usize, admitted_at: u64) {
        self.note(now, format_args!("start {number} admitted at {admitted_at}"));
        let valve = self.calls[number].call.valve;
        self.drive(valve, now);
        let fate = self.calls[number].fate;
        self.expect(fate == Fate::Starts(admitted_at), |world| {
            format!("call {number} starts as of {admitted_at}: {}", world.tell(number, now))
        });
        self.calls[number].fate = Fate::Runs { since: admitted_at };
        let running = self
            .calls
            .iter()
            .filter(|other| other.call.valve == valve && matches!(other.fate, Fate::Runs { .. }));
        let (running, limit) = (running.count(), self.valves[valve].limit);
        self.expect(running <= limit as usize, |_| format!("{running} jobs run where {limit} may"));
        let in_time = self.calls[number].deadline.is_none_or(|deadline| admitted_at <= deadline);
        self.expect(in_time, |world| {
            format!("call {number} starts after its deadline: {}", world.tell(number, now))
        });
        self.drive(valve, now);
    }

    /// A job is about to give its slot back.
    pub(super) fn ends(&mut self, now: u64, number: usize) {
        self.note(now, format_args!("end {number}"));
        let Fate::Runs { since } = self.calls[number].fate else { return };
        self.calls[number].fate = Fate::Ended { started: Some(since) };
        let valve = self.calls[number].call.valve;
        self.valves[valve].running -= 1;
        self.drive(valve, now);
    }

    /// A call ended without a start.
    pub(super) fn failed(&mut self, now: u64, number: usize, error: &Error) {
        self.note(now, format_args!("call {number} fails: {error:?}"));
        let valve = self.calls[number].call.valve;
        // Then nobody has looked at the queue.
        let at_the_door = self.calls[number].fate == Fate::Ends(End::AtTheDoor);
        if !at_the_door {
            // Whatever made it fail, those before it have been seen to.
            self.drive(valve, now);
        }
        let right = self.is_right(now, number, error);
        self.expect(right, |world| {
            format!("call {number} fails with {error:?}: {}", world.tell(number, now))
        });
        let counts = &mut self.valves[valve];
        match error {
            Error::Timeout { .. } => counts.timed_out += 1,
            Error::WouldWait { .. } => counts.refused += 1,
            Error::Cancelled => counts.cancelled += 1,
            _ => {}
        }
        self.calls[number].fate = Fate::Ended { started: None };
        if !at_the_door {
            self.drive(valve, now);
        }
    }

    /// A token is about to be cancelled.
    pub(super) fn cancel(&mut self, now: u64, token: usize) {
        self.note(now, format_args!("cancel {token}"));
        self.cancelled[token] = true;
        // A valve without such a call does not look at its queue.
        if self.end_waits(End::Cancelled, |state| state.call.token == Some(token)) {
            self.drive(token % self.valves.len(), now);
        }
    }

    /// A pause was recorded, or is about to be: nothing else happens meanwhile.
    pub(super) fn pause(&mut self, now: u64, length: u64) {
        self.note(now, format_args!("pause for {length}"));
        self.paused_until = self.paused_until.max(now + length);
    }

    pub(super) fn resume(&mut self, now: u64) {
        self.note(now, "resume");
        self.paused_until = 0;
        for valve in 0..self.valves.len() {
            self.drive(valve, now);
        }
    }

    pub(super) fn close(&mut self, now: u64, valve: usize) {
        self.note(now, format_args!("close {valve}"));
        self.valves[valve].phase = Phase::Closed;
        self.end_waits(End::Closed, |state| state.call.valve == valve);
    }

    pub(super) fn drain(&mut self, now: u64, valve: usize) {
        self.note(now, format_args!("drain {valve}"));
        if self.valves[valve].phase == Phase::Open {
            self.valves[valve].phase = Phase::Draining;
        }
    }

    /// A drain that began at `since` and may take `timeout` has returned.
    pub(super) fn drained(
        &mut self,
        now: u64,
        valve: usize,
        since: u64,
        timeout: u64,
        result: &Result<(), Error>,
    ) {
        self.note(now, format_args!("drained {valve}: {result:?}"));
        let owed = self.queued(valve).next().is_some() || self.backing_off(valve).next().is_some();
        let empty = self.valves[valve].running == 0 && !owed;
        let right = match result {
            Ok(()) => empty,
            Err(Error::Timeout { waited, .. }) => {
                now == since + timeout && waited.as_micros() as u64 == timeout
            }
            Err(_) => false,
        };
        self.expect(right, |world| {
            format!("drained {valve} with {result:?}, {} run", world.valves[valve].running)
        });
        self.valves[valve].phase = Phase::Closed;
        self.end_waits(End::Closed, |state| state.call.valve == valve);
    }

    /// Whether there was any.
    fn end_waits(&mut self, end: End, whose: impl Fn(&CallState) -> bool) -> bool {
        let waits = |fate: Fate| matches!(fate, Fate::Waits | Fate::BacksOff(..));
        let ended = self.calls.iter_mut().filter(|state| waits(state.fate) && whose(state));
        ended.map(|state| state.fate = Fate::Ends(end)).count() > 0
    }

    /// Whether each call that was made has ended.
    pub(super) fn is_over(&self) -> bool {
        self.calls.iter().all(|state| matches!(state.fate, Fate::Ended { .. }))
    }

    /// What started and when, as (tick, cost).
    pub(super) fn starts(&self) -> Vec<(u64, u32)> {
        let started = |state: &CallState| match state.fate {
            Fate::Ended { started: Some(at) } | Fate::Runs { since: at } => Some((at, state.call.cost)),
            _ => None,
        };
        let mut starts: Vec<_> = self.calls.iter().filter_map(started).chain(self.tried.clone()).collect();
        starts.sort_unstable();
        starts
    }

    fn queued(&self, valve: usize) -> impl Iterator<Item = usize> {
        let waits = move |state: &CallState| state.call.valve == valve && state.fate == Fate::Waits;
        self.calls.iter().enumerate().filter(move |(_, state)| waits(state)).map(|(number, _)| number)
    }

    fn head(&self, valve: usize) -> Option<usize> {
        self.queued(valve).min_by_key(|&number| (std::cmp::Reverse(self.calls[number].call.priority), number))
    }

    fn earliest(&self, now: u64, cost: u32) -> u64 {
        self.rules.iter().map(|rule| rule.earliest(now, cost)).max().unwrap_or(now)
    }

    /// Whether the rates alone put this call after its deadline.
    fn is_too_late(&self, number: usize, now: u64) -> bool {
        let state = &self.calls[number];
        state.deadline.is_some_and(|deadline| self.earliest(now, state.call.cost) > deadline)
    }

    fn may_start(&self, valve: usize, now: u64, cost: u32) -> bool {
        let state = &self.valves[valve];
        now >= self.paused_until && state.running < state.limit && self.earliest(now, cost) == now
    }

    /// Lets those in front start for as long as they may.
    fn drive(&mut self, valve: usize, now: u64) {
        while let Some(head) = self.head(valve) {
            if !self.may_start(valve, now, self.calls[head].call.cost) {
                return;
            }
            self.admit(head, now);
        }
    }

    fn admit(&mut self, number: usize, now: u64) {
        let CallState { call, fate, .. } = &mut self.calls[number];
        *fate = Fate::Starts(now);
        for rule in &mut self.rules {
            rule.spend(now, call.cost);
        }
        self.valves[call.valve].running += 1;
        self.valves[call.valve].started += 1;
    }

    fn capacity(&self) -> u32 {
        self.rules.iter().map(|rule| rule.plan.capacity()).min().unwrap_or(u32::MAX)
    }
}
