//! When an engine that keeps failing is left alone: five failures in a row, ten seconds, then one call that decides.
//!
//! Pure: it is told the time, the calls that want to start and how they ended. It never calls an engine, waits or locks.

#[cfg(test)]
mod tests;

use crate::clock::Tick;
use crate::planted::fault;

/// How many failures in a row open it.
const FAILURES_MAX: u32 = 5;

/// For how long it then stays open.
pub(crate) const COOLDOWN: Tick = 10_000_000;

/// What it knows of one engine.
///
/// Whoever wants to call the engine asks [`admit`](Breaker::admit) first. The pass it gets carries the *generation*, which
/// changes with each opening, probe and closing; so an answer counts only for the state in which its call began.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    generation: u64,
    /// How long the answer of a probe is awaited.
    probe_limit: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed {
        /// In a row.
        failures: u32,
    },
    Open {
        until: Tick,
    },
    /// One call is out, all others are skipped.
    Probing {
        given_up_at: Tick,
    },
}

/// A call's leave to ask the engine, to be handed back with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pass {
    generation: u64,
}

/// How a call to the engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Answered,
    /// With an error or a panic.
    Failed,
}

/// What became of the breaker with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It opened, or its probe failed: to be logged.
    Opened,
    Closed,
}

impl Breaker {
    pub(crate) fn new(probe_limit: Tick) -> Breaker {
        Breaker { state: State::Closed { failures: 0 }, generation: 0, probe_limit }
    }

    /// Whether a call may ask the engine now; `None` if it must do without.
    ///
    /// A probe that has not answered by its limit is given up here, as a failure at that limit: nobody need watch it, because
    /// nothing depends on the breaker but calls that want to start.
    pub(crate) fn admit(&mut self, now: Tick) -> Option<Pass> {
        if let State::Probing { given_up_at } = self.state {
            if now >= given_up_at && !fault("T85") {
                self.enter(State::Open { until: given_up_at.saturating_add(COOLDOWN) });
            }
        }
        match self.state {
            State::Closed { .. } => {}
            State::Open { until } if now >= until => {
                self.enter(State::Probing { given_up_at: now.saturating_add(self.probe_limit) });
            }
            State::Open { .. } | State::Probing { .. } => return None,
        }
        Some(Pass { generation: self.generation })
    }

    /// Learns how a call that was admitted ended. Of an earlier generation, it counts for nothing.
    pub(crate) fn ended(&mut self, pass: Pass, how: Ended, now: Tick) -> Change {
        if pass.generation != self.generation {
            return Change::None;
        }
        match (self.state, how) {
            (State::Probing { given_up_at }, _) if now >= given_up_at => {
                self.enter(State::Open { until: given_up_at.saturating_add(COOLDOWN) });
                Change::Opened
            }
            (State::Probing { .. }, Ended::Answered) => {
                self.enter(State::Closed { failures: 0 });
                Change::Closed
            }
            (State::Closed { .. }, Ended::Answered) => {
                self.state = State::Closed { failures: 0 };
                Change::None
            }
            (State::Closed { failures }, Ended::Failed) if failures + 1 < FAILURES_MAX || fault("T84") => {
                self.state = State::Closed { failures: failures + 1 };
                Change::None
            }
            (State::Closed { .. } | State::Probing { .. }, Ended::Failed) => {
                self.enter(State::Open { until: now.saturating_add(COOLDOWN) });
                Change::Opened
            }
            (State::Open { .. }, _) => Change::None,
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }
}
