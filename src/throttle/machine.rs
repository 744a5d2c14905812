//! One key as a pure machine: what it is doing, what happens to it, and what is to be done then.
//!
//! It is told the time and everything else; it knows no clock, lock, thread or engine, nor the calls that wait, only whether
//! there are any. `README.md` beside this file lists how its stages follow each other. An absent key has no machine.

use super::job::Phase;
use crate::clock::Tick;
use crate::planted::fault;

/// Who else may see the windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Nobody: there is no engine.
    Private,
    /// Everybody who uses the engine.
    Shared,
}

/// All the lengths of time that a throttle goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timings {
    pub(super) sharing: Sharing,
    /// W, as written to the engine when a run has ended.
    pub(super) window: Tick,
    /// From the end of a run until its window ends here. On an engine a little longer than there, so that the key has expired.
    gap: Tick,
    /// L, as written while a run is acquired or goes on.
    pub(super) lease: Tick,
    /// How often a running key's lease is extended.
    pub(super) interval: Tick,
    /// How long the answer to an extension is awaited.
    pub(super) patience: Tick,
}

const MILLISECOND: Tick = 1_000;
/// How much longer a window lasts here than on a shared engine.
const SLACK: Tick = 2 * MILLISECOND;
const INTERVAL_MIN: Tick = 100 * MILLISECOND;
/// A lost race is not run again sooner than this.
const RETRY_MIN: Tick = 10 * MILLISECOND;

impl Timings {
    pub(super) fn new(window: Tick, sharing: Sharing, patience: Tick) -> Timings {
        let interval = (window / 2).max(INTERVAL_MIN);
        let gap = match sharing {
            Sharing::Private => window + Tick::from(fault("T19")),
            Sharing::Shared => window + SLACK,
        };
        Timings { sharing, window, gap, lease: window.max(2 * interval), interval, patience }
    }

    /// When the window ends that begins now.
    fn due(&self, now: Tick, owed: Owed) -> Tick {
        if owed == Owed::RunNow { now } else { now + self.gap }
    }

    /// How long after a lost race the next one is due, by what the engine holds: `Some(None)` if the key is gone, `None` if it
    /// could not be read. `wall` is in microseconds of the Unix epoch.
    pub(super) fn retry_in(&self, stored: Option<Option<&str>>, wall: u64) -> Tick {
        let unread = if fault("T92") { RETRY_MIN } else { self.window };
        let Some(stored) = stored else { return unread };
        let left = match stored.map(parse_milliseconds) {
            None => 0,
            Some(None) => return self.window,
            Some(Some(end)) => end.saturating_mul(MILLISECOND).saturating_sub(wall),
        };
        left.clamp(if fault("T91") { 0 } else { RETRY_MIN }, self.lease)
    }
}

/// A decimal whole number with blanks around it, cut at what a `u64` holds; below zero is the past.
fn parse_milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(if text.starts_with('-') { 0 } else { digits.parse().unwrap_or(u64::MAX) })
}

/// What a key is doing. `F` is what the owner wants to keep of an extension that is on its way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage<F> {
    /// A thread waits for the valve in front, asks the engine for the key, or reads when to try again.
    Acquiring(Phase),
    /// Its run is due and waits for a worker.
    Queued { own_until: Tick },
    /// Its closure is executed. Without an engine there is nothing to hold.
    Running(Option<Box<Hold<F>>>),
    /// The closure has ended; an extension on its way is awaited, so that it cannot land after the closing write.
    Ending(Box<Hold<F>>),
    /// The closing write is on its way.
    Closing,
    /// Nothing runs before `due`. Until `own_until` the engine's key is certainly this throttle's own.
    Window { due: Tick, own_until: Tick },
    /// Another instance has the window. Calls wait for it to end.
    Lost { due: Tick },
}

/// A running key's hold on the engine's key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hold<F> {
    /// When it is extended next.
    next: Tick,
    /// Until when the key is held, counted from when the last write that went well was sent; 0 if it is not.
    until: Tick,
    /// An extension that was sent at that tick and has not come back.
    flight: Option<(Tick, F)>,
}

/// How to write the engine's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// It is held until then: overwrite it.
    Over { until: Tick },
    /// It is not: only if nobody else has it.
    IfAbsent,
}

/// What a timer leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// The window passed unused: the key is forgotten.
    Forget,
    /// Its run is due.
    Run,
    /// An extension is sent at this tick.
    Extend {
        sent: Tick,
        write: Write,
    },
}

/// What the end of a closure leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The window is open already.
    Open,
    /// An extension is awaited until this tick at most; then `close`.
    Await(Tick),
    /// `close` now.
    Close,
}

/// What of a stage is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    pub(super) active: usize,
    pub(super) pending: usize,
    pub(super) timers: usize,
}

/// Whether calls wait for a run, and how badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    Nothing,
    /// A run at the end of the window.
    Run,
    /// A run as soon as there can be one: the throttle is being flushed.
    RunNow,
}

impl<F> Stage<F> {
    /// Whether a call that comes now finds the key idle, though its timer has not come yet.
    pub(super) fn has_passed(&self, now: Tick, owed: Owed) -> bool {
        matches!(self, Stage::Window { due, .. } if owed == Owed::Nothing && now >= *due)
    }

    /// When its timer is due.
    pub(super) fn wakes_at(&self) -> Option<Tick> {
        match self {
            Stage::Window { due, .. } | Stage::Lost { due } => Some(*due),
            Stage::Running(Some(hold)) => Some(hold.next),
            _ => None,
        }
    }

    pub(super) fn tally(&self, owed: Owed) -> Tally {
        let owed = usize::from(owed != Owed::Nothing);
        match self {
            // Its calls are those that the leading run will cover.
            Stage::Acquiring(Phase::Leading) => {
                Tally { active: usize::from(!fault("T51")), pending: 0, timers: 0 }
            }
            Stage::Acquiring(Phase::Trailing) | Stage::Ending(_) | Stage::Closing => {
                Tally { active: 1, pending: owed, timers: 0 }
            }
            Stage::Running(hold) => Tally { active: 1, pending: owed, timers: usize::from(hold.is_some()) },
            Stage::Queued { .. } => Tally { active: 0, pending: owed, timers: 0 },
            Stage::Window { .. } | Stage::Lost { .. } => Tally { active: 0, pending: owed, timers: 1 },
        }
    }

    /// The timer that was set for `at` has come. If an extension is due, `depart` is told of the one before that never came
    /// back, if there is one, and gives what is kept of the new one, or nothing if none may be sent.
    pub(super) fn due(
        &mut self,
        at: Tick,
        now: Tick,
        owed: Owed,
        timings: &Timings,
        depart: impl FnOnce(Option<F>) -> Option<F>,
    ) -> Due {
        if self.wakes_at() != Some(at) || at > now {
            return Due::Nothing;
        }
        match self {
            Stage::Window { .. } | Stage::Lost { .. } if owed == Owed::Nothing || fault("T20") => Due::Forget,
            Stage::Window { .. } | Stage::Lost { .. } => {
                *self = Stage::Queued { own_until: 0 };
                Due::Run
            }
            Stage::Running(Some(hold)) => hold.extend(now, timings, depart),
            _ => Due::Nothing,
        }
    }

    /// A flush: whether the run is due now and not at the end of the window. Another instance's window is not this one's to end.
    pub(super) fn hurry(&mut self) -> bool {
        let Stage::Window { own_until, .. } = *self else { return false };
        *self = Stage::Queued { own_until };
        true
    }

    /// A worker has taken up the run. How the key is acquired, if it may be at all.
    pub(super) fn begin(&mut self, now: Tick) -> Option<Write> {
        match *self {
            // A leading run that its caller left to a worker.
            Stage::Acquiring(Phase::Leading) => Some(Write::IfAbsent),
            Stage::Queued { own_until } => {
                *self = Stage::Acquiring(Phase::Trailing);
                Some(write(own_until, now))
            }
            _ => None,
        }
    }

    /// The closure begins at `now`. The hold on the engine's key ends at `until`, or is none.
    pub(super) fn run(&mut self, now: Tick, until: Option<Tick>, timings: &Timings) {
        let hold = Hold { next: now + timings.interval, until: until.unwrap_or(0), flight: None };
        *self = Stage::Running((timings.sharing == Sharing::Shared).then(|| Box::new(hold)));
    }

    /// The race was lost; the next one is due at `due`.
    pub(super) fn lose(&mut self, due: Tick) {
        *self = Stage::Lost { due };
    }

    /// The extension sent at `sent` came back. What was kept of it, unless it was given up before.
    pub(super) fn extended(&mut self, sent: Tick, wrote: bool, now: Tick, timings: &Timings) -> Option<F> {
        let (Stage::Running(Some(hold)) | Stage::Ending(hold)) = self else { return None };
        let current = hold.flight.as_ref().is_some_and(|(at, _)| *at == sent);
        if !current {
            return None;
        }
        // One that overwrote may have come after the hold had ended and another instance had the key.
        let overwrote = sent < hold.until;
        if wrote && !(overwrote && now >= hold.until) {
            hold.until = sent + timings.lease;
        }
        hold.flight.take().map(|(_, flight)| flight)
    }

    /// Whether the engine's key stays taken while this goes on, though the throttle is destroyed.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Stage::Running(Some(_)) | Stage::Ending(_) | Stage::Closing)
    }

    /// What is kept of the extension that is on its way.
    pub(super) fn flight_mut(&mut self) -> Option<&mut F> {
        let (Stage::Running(Some(hold)) | Stage::Ending(hold)) = self else { return None };
        hold.flight.as_mut().map(|(_, flight)| flight)
    }

    /// The closure has ended.
    pub(super) fn end(&mut self, now: Tick, owed: Owed, timings: &Timings) -> Ended {
        match std::mem::replace(self, Stage::Closing) {
            Stage::Running(Some(hold)) => {
                let until = hold.flight.as_ref().map(|(sent, _)| sent + timings.patience);
                *self = Stage::Ending(hold);
                until.filter(|_| !fault("T90")).map_or(Ended::Close, Ended::Await)
            }
            _ => {
                let due = if fault("T22") { now } else { timings.due(now, owed) };
                *self = Stage::Window { due, own_until: 0 };
                Ended::Open
            }
        }
    }

    /// No extension is awaited any more. How the closing write is made, and what is kept of an extension given up.
    pub(super) fn close(&mut self, now: Tick) -> (Write, Option<F>) {
        match std::mem::replace(self, Stage::Closing) {
            Stage::Ending(hold) => {
                let write = write(hold.until, now);
                (write, hold.flight.map(|(_, flight)| flight))
            }
            _ => (Write::IfAbsent, None),
        }
    }

    /// The closing write, sent at `sent`, is done: the window begins.
    pub(super) fn open(&mut self, sent: Tick, now: Tick, wrote: bool, owed: Owed, timings: &Timings) {
        let own_until = if wrote { sent + timings.window } else { 0 };
        *self = Stage::Window { due: timings.due(now, owed), own_until };
    }
}

impl<F> Hold<F> {
    fn extend(&mut self, now: Tick, timings: &Timings, depart: impl FnOnce(Option<F>) -> Option<F>) -> Due {
        // On the grid that began with the run; ticks that passed unseen are left out.
        let missed = (now - self.next) / timings.interval;
        self.next += (missed + 1) * timings.interval;
        let before = match &self.flight {
            Some((sent, _)) if now < sent + timings.patience => return Due::Nothing,
            _ => self.flight.take().map(|(_, flight)| flight),
        };
        let Some(flight) = depart(before) else { return Due::Nothing };
        self.flight = Some((now, flight));
        Due::Extend { sent: now, write: write(self.until, now) }
    }
}

fn write(held_until: Tick, now: Tick) -> Write {
    if now < held_until { Write::Over { until: held_until } } else { Write::IfAbsent }
}

#[cfg(test)]
mod tests;
