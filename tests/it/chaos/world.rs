//! What must hold: an account of every call, kept from what the store executed and what the callers saw.

use std::collections::BTreeMap;
use std::fmt::Display;

use valve::{Answer, Ask, Blocked, Deadline, Error, Lease as Renewal, Token};

use super::ledger::Ledger;
use super::plan::{By, Call, Plan, Weather};

/// How often things happened, for whoever wonders whether they did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen(pub(super) BTreeMap<&'static str, u64>);

impl Seen {
    pub(super) fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Seen) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

pub(super) struct World {
    weather: Weather,
    ledger: Ledger,
    processes: Vec<Process>,
    cancelled: Vec<bool>,
    calls: Vec<CallState>,
    /// Threads that have done all they had to.
    pub(super) finished: usize,
    pub(super) seen: Seen,
    pub(super) trace: Vec<String>,
    /// The first thing that was not as it must be.
    pub(super) broken: Option<String>,
}

struct Process {
    fails: bool,
    timeout: u64,
    not_after: bool,
    frozen_until: u64,
    crashed: bool,
}

struct CallState {
    process: usize,
    call: Call,
    since: u64,
    deadline: Option<u64>,
    lease: Option<Token>,
    /// When it was first seen that the lease is lost.
    lost: Option<u64>,
    over: bool,
}

impl World {
    pub(super) fn new(plan: &Plan) -> World {
        let process = |plan: &super::plan::ProcessPlan| Process {
            fails: plan.fails,
            timeout: plan.timeout,
            not_after: plan.not_after,
            frozen_until: 0,
            crashed: false,
        };
        World {
            weather: plan.weather,
            ledger: Ledger::new(plan.rule),
            processes: plan.processes.iter().map(process).collect(),
            cancelled: vec![false; plan.tokens],
            calls: Vec::new(),
            finished: 0,
            seen: Seen::default(),
            trace: Vec::new(),
            broken: None,
        }
    }

    pub(super) fn log(&mut self, now: u64, what: impl Display) {
        self.trace.push(format!("{now} {what}"));
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce(&World) -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what(self));
            self.trace.push("^ here".to_owned());
        }
    }

    fn ok<T>(&mut self, result: Result<T, String>) -> Option<T> {
        let (value, error) = match result {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        self.expect(error.is_none(), |_| error.unwrap_or_default());
        value
    }

    /// The store has carried out an ask.
    pub(super) fn asked(&mut self, now: u64, process: usize, ask: &Ask<'_>, answer: &Answer) {
        let Answer { granted, fence, refusal, .. } = answer;
        let (of, fence) = (ask.costs.len(), fence.map_or(0, |fence| fence.get()));
        self.log(
            now,
            format_args!("process {process}: {granted} of {of} granted from fence {fence}, {refusal:?}"),
        );
        self.executed(process, &ask.deadline);
        let result = self.ledger.asked(process, ask, answer, now, &mut self.seen);
        self.ok(result);
    }

    pub(super) fn renewed(
        &mut self,
        now: u64,
        process: usize,
        leases: &[Renewal],
        deadline: &Deadline,
        held: &[bool],
    ) {
        // The order of leases in a renewal is nobody's business.
        let count = held.iter().filter(|held| **held).count();
        self.log(now, format_args!("process {process}: {count} of {} renewed", leases.len()));
        self.executed(process, deadline);
        let result = self.ledger.renewed(leases, held, now, &mut self.seen);
        self.ok(result);
    }

    pub(super) fn released(&mut self, now: u64, process: usize, tokens: &[Token]) {
        if !tokens.is_empty() {
            self.log(now, format_args!("process {process}: {} released", tokens.len()));
            self.ledger.released(tokens, now, &mut self.seen);
        }
    }

    /// What is executed after its deadline comes without one.
    fn executed(&mut self, process: usize, deadline: &Deadline) {
        if deadline.left().is_none_or(|left| left.is_zero()) {
            self.seen.note("too late");
            let refuses = self.processes[process].not_after;
            self.expect(!refuses, |_| {
                format!("the store of process {process} executed a call after its deadline")
            });
        }
    }

    pub(super) fn flushed(&mut self, now: u64) {
        self.log(now, "the store loses its state");
        self.seen.note("flushed");
        self.ledger.flushed();
    }

    pub(super) fn frozen(&mut self, now: u64, process: usize, until: u64) {
        self.log(now, format_args!("process {process} is frozen until {until}"));
        self.seen.note("frozen");
        self.processes[process].frozen_until = until.max(self.processes[process].frozen_until);
    }

    pub(super) fn crashed(&mut self, now: u64, process: usize) {
        self.log(now, format_args!("process {process} crashes"));
        self.seen.note("crashed");
        self.processes[process].crashed = true;
    }

    pub(super) fn cancelled(&mut self, now: u64, token: usize) {
        self.log(now, format_args!("token {token} is cancelled"));
        self.cancelled[token] = true;
    }

    pub(super) fn is_crashed(&self, process: usize) -> bool {
        self.processes[process].crashed
    }

    pub(super) fn frozen_until(&self, process: usize) -> u64 {
        self.processes[process].frozen_until
    }

    /// A call is about to be made; gives its number.
    pub(super) fn called(&mut self, now: u64, process: usize, call: &Call) -> usize {
        let number = self.calls.len();
        self.log(now, format_args!("process {process} makes call {number}: {call:?}"));
        self.seen.note("calls");
        self.calls.push(CallState {
            process,
            call: call.clone(),
            since: now,
            deadline: call.max_wait.map(|wait| now + wait),
            lease: None,
            lost: None,
            over: false,
        });
        number
    }

    /// A call was granted, with this fencing token, as of this tick of the store's clock.
    pub(super) fn started(&mut self, now: u64, number: usize, fence: Option<u64>, admitted_at: u64) {
        self.log(now, format_args!("call {number} starts, fence {fence:?}, admitted at {admitted_at}"));
        self.seen.note("ran");
        self.in_time(now, number);
        let process = self.calls[number].process;
        let twice = self.calls[number].lease.is_some() || self.calls[number].over;
        self.expect(!twice, |_| format!("call {number} starts twice"));
        let result = self.ledger.hand_over(process, fence.unwrap_or(0), number);
        let Some(token) = self.ok(result) else { return };
        self.calls[number].lease = Some(token);
        let granted_at = self.ledger.lease(token).granted_at;
        self.expect(granted_at == admitted_at, |_| format!("call {number} was admitted at {granted_at}"));
    }

    /// A call with a deadline ends by it, one that does not wait by the time limit of its ask; unless its process is frozen.
    fn in_time(&mut self, now: u64, number: usize) {
        let CallState { process, call, since, deadline, .. } = &self.calls[number];
        let Process { timeout, frozen_until, crashed, .. } = &self.processes[*process];
        let instant = call.by == By::Try || call.max_wait == Some(0);
        let end = if instant { Some(since + timeout) } else { *deadline };
        let (crashed, end) = (*crashed, end.map(|end| end.max(*frozen_until)));
        self.expect(crashed || end.is_none_or(|end| now <= end), |_| {
            format!("call {number} ends at {now} where it should by {end:?}")
        });
    }

    /// What a running job sees now: whether its lease is lost, and how often it was told of an abort, if it asked to be.
    pub(super) fn looked(&mut self, now: u64, number: usize, lost: bool, told: Option<u64>) {
        self.log(now, format_args!("call {number} looks: lost {lost}, told {told:?}"));
        let CallState { process, call, lease, lost: before, .. } = &self.calls[number];
        let (before, Some(token)) = (*before, *lease) else { return };
        if self.processes[*process].crashed {
            return;
        }
        let cancelled = call.token.is_some_and(|token| self.cancelled[token]);
        let lease = self.ledger.lease(token).clone();
        self.expect(before.is_none() || lost, |_| {
            format!("call {number} was told that it lost {lease:?}, then not")
        });
        self.expect(lost || now < lease.end, |_| format!("call {number} trusts {lease:?}, which is over"));
        let live = self.ledger.is_live(&lease, now);
        let known = self.ledger.is_known(&lease);
        self.expect(lost || live || !known, |_| format!("call {number} trusts {lease:?}, which is not live"));
        let calm = self.weather == Weather::Calm;
        self.expect(!lost || !calm, |_| format!("call {number} lost {lease:?} although nothing was wrong"));
        self.expect(told != Some(1) || lost || cancelled, |_| {
            format!("call {number} was told to stop for no reason")
        });
        self.expect(told.is_none_or(|told| told <= 1), |_| {
            format!("call {number} was told to stop {told:?} times")
        });
        if let Some(since) = before.filter(|since| *since < now) {
            let silent = told == Some(0);
            self.expect(!silent, |_| format!("call {number} was not told of its loss at {since}"));
        }
        if lost && before.is_none() {
            self.seen.note("lost");
            self.calls[number].lost = Some(now);
        }
        if lost && self.ledger.is_overtaken(&lease) {
            self.seen.note("overtaken");
        }
    }

    /// A call ended: as the job's own end says, or without a start.
    pub(super) fn ended(&mut self, now: u64, number: usize, result: &Result<(), Error>, may_tell: bool) {
        self.log(now, format_args!("call {number} ends: {result:?}"));
        let state = &mut self.calls[number];
        let (again, started, lost) = (state.over, state.lease.is_some(), state.lost.is_some());
        state.over = true;
        let crashed = self.processes[state.process].crashed;
        self.expect(!again, |_| format!("call {number} ends twice"));
        let right = match result {
            _ if crashed => true,
            Ok(()) => started && !(lost && may_tell),
            Err(Error::LeaseLost) => started && lost,
            Err(error) => !started && self.is_right(now, number, error),
        };
        if !started && !crashed {
            self.in_time(now, number);
        }
        self.expect(right, |_| {
            format!("call {number} ends with {result:?}; it started {started}, lost {lost}")
        });
    }

    /// Whether a call that did not start may end now with this.
    fn is_right(&mut self, now: u64, number: usize, error: &Error) -> bool {
        let CallState { process, call, since, deadline, .. } = &self.calls[number];
        match error {
            Error::Timeout { waited, retry_after, blocked_by, .. } => {
                self.seen.note("timed out");
                let Some(deadline) = *deadline else { return false };
                let early = matches!(blocked_by, Blocked::Rate { .. })
                    && retry_after.is_some_and(|left| now + left.as_micros() as u64 > deadline);
                waited.as_micros() as u64 == now - since && (now >= deadline || early)
            }
            Error::WouldWait { .. } => call.by == By::Try,
            Error::Cancelled => {
                self.seen.note("cancelled");
                call.token.is_some_and(|token| self.cancelled[token])
            }
            Error::StoreUnavailable(_) => {
                self.seen.note("unavailable");
                self.processes[*process].fails && self.weather != Weather::Calm
            }
            _ => false,
        }
    }

    /// All is over, and the longest lease has ended since.
    pub(super) fn all_over(&mut self, now: u64) {
        let live = self.ledger.live(now);
        self.expect(live == 0, |_| format!("{live} leases are held although nobody runs"));
        let open = self.calls.iter().filter(|call| !call.over).count();
        self.expect(open == 0, |_| format!("{open} calls never ended"));
        let (calm, unreleased) = (self.weather == Weather::Calm, self.ledger.unreleased());
        self.expect(!calm || unreleased == 0, |_| format!("{unreleased} leases were never released"));
        let orphans = self.ledger.orphans(now);
        for _ in 0..orphans {
            self.seen.note("orphans");
        }
    }

    pub(super) fn never_ended(&mut self, now: u64) {
        let open: Vec<_> = (0..self.calls.len()).filter(|number| !self.calls[*number].over).collect();
        self.expect(false, |_| format!("at {now} these calls have not ended yet: {open:?}"));
    }
}
