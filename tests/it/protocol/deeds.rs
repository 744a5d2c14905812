//! What may happen in the model's world, and how it is told.

use super::state::Kind;
use std::fmt;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The call is over at once: carried out, answered, and the answer acted on.
    Done,
    /// It is carried out at once; its answer stays under way.
    AnswerLate,
    /// It is carried out at once; its answer never comes.
    AnswerLost,
    /// The request stays under way.
    Late,
    /// The request never comes.
    Lost,
}

/// One thing that happens to one process, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Tick,
    LoseState,
    EndJob,
    /// The deadline of the job that waits is near.
    Hurry,
    /// A process calls the store.
    Call(Kind, Fate),
    /// A request that was under way comes to the store.
    Arrive(Kind, Fate),
    /// An answer that was under way is read and acted on.
    Answer(Kind),
    /// The time of a call is up: what was under way for it is lost.
    GiveUp(Kind),
    /// A copy of a request under way goes its own way; it may be all that is left of it.
    Double(Kind),
    StrayArrives,
    StrayIsLost,
    Freeze,
    /// It freezes between reading the clock for a renewal's answer and acting on that.
    FreezeWhileReading,
    Thaw,
    /// The process ends without a word; another takes its place.
    Crash,
}

impl Deed {
    /// Whether it happens to the whole world.
    pub(super) fn is_of_all(self) -> bool {
        matches!(self, Deed::Tick | Deed::LoseState)
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match self {
            Deed::Tick => "a tick passes",
            Deed::LoseState => "the store loses its state",
            Deed::EndJob => "its job ends",
            Deed::Hurry => "its job's deadline is near",
            Deed::Call(kind, fate) => return write!(out, "sends {kind}: {fate}"),
            Deed::Arrive(kind, fate) => return write!(out, "{kind} arrives: {fate}"),
            Deed::Answer(kind) => return write!(out, "hears of {kind}"),
            Deed::GiveUp(kind) => return write!(out, "gives {kind} up"),
            Deed::Double(kind) => return write!(out, "{kind} is doubled"),
            Deed::StrayArrives => "the stray message arrives",
            Deed::StrayIsLost => "the stray message is lost",
            Deed::Freeze => "freezes",
            Deed::FreezeWhileReading => "freezes with a good answer in its hand",
            Deed::Thaw => "thaws",
            Deed::Crash => "crashes",
        };
        out.write_str(told)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Ask => "the ask",
            Kind::Renew => "the renewal",
            Kind::Release => "the release",
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Fate::Done => "done",
            Fate::AnswerLate => "carried out, the answer is late",
            Fate::AnswerLost => "carried out, the answer is lost",
            Fate::Late => "late",
            Fate::Lost => "lost",
        })
    }
}
