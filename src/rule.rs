//! Rate rules as pure arithmetic: what may start at which tick, in whole microseconds and exact fractions.
//!
//! Nothing here reads a clock, locks, waits or knows who asks. A caller says what time it is and keeps the
//! [`RuleState`]s; [`RuleSet::admit`] decides.

mod gcra;
mod identity;
mod set;
mod state;
mod window;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::planted::fault;

pub(crate) use set::QuickRule;
pub use set::{RateRefusal, RuleSet, Verdict};
pub use state::RuleState;

/// One rate rule: at most so much cost per so much time.
///
/// A rule only describes; it is checked when it becomes part of a [`RuleSet`], which is what building a valve
/// does. Rules that several processes share are recognised by kind and interval, or by the name given with
/// `named`; each process goes by its own limit, interval and burst.
///
/// | | [`Rule::gcra`] | [`Rule::fixed_window`] |
/// |---|---|---|
/// | spreads starts over the interval | yes | no: a whole limit may start at once |
/// | most cost in *any* half-open interval | `limit + burst - 1` | just under twice `limit` |
/// | most cost in an interval aligned to the clock | `limit + burst - 1` | `limit` |
/// | largest cost of one job | `burst` | `limit` |
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Rule, RuleSet};
///
/// let rules = vec![
///     Rule::gcra(10, Duration::from_secs(1)).burst(5).into(),
///     Rule::fixed_window(5_000, Duration::from_secs(3_600)).named("hourly").into(),
/// ];
/// let set = RuleSet::new(rules)?;
/// assert_eq!(&**set.name(0), "gcra/1s");
/// assert_eq!(&**set.name(1), "hourly");
///
/// let nothing = RuleSet::new(vec![Rule::gcra(0, Duration::from_secs(1)).into()]);
/// assert!(nothing.is_err());
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    kind: Kind,
    limit: u32,
    interval: Duration,
    name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gcra { burst: u32 },
    FixedWindow,
}

impl Rule {
    /// Spaces starts evenly: `limit` units of cost per `interval`, by the generic cell rate algorithm.
    ///
    /// A start of cost c keeps the line busy for c * interval / limit, exactly, also where that is not a whole
    /// number of microseconds. Idle time saves up at most `burst - 1` units, and time that passes unused
    /// because a start came late is not made good by closer starts. After the ITU-T I.371 virtual scheduling
    /// algorithm.
    ///
    /// `limit` is at least 1 and may exceed the interval's microseconds; `interval` is a whole number of
    /// microseconds, at least one and at most 3,650 days. The burst is 1 unless set.
    pub fn gcra(limit: u32, interval: Duration) -> Gcra {
        let burst = if fault("V04") { 2 } else { 1 };
        Gcra(Rule { kind: Kind::Gcra { burst }, limit, interval, name: None })
    }

    /// Counts cost in windows `[k * interval, (k + 1) * interval)` of the store's clock, at most `limit` in each.
    ///
    /// Windows are aligned to the clock, not to the first call, and nothing unused carries over. Around a
    /// boundary up to twice the limit can start together, half on each side: use [`Rule::gcra`] where that is
    /// too much.
    ///
    /// `limit` is at least 1; `interval` is a whole number of microseconds, at least one and at most 3,650
    /// days.
    pub fn fixed_window(limit: u32, interval: Duration) -> FixedWindow {
        FixedWindow(Rule { kind: Kind::FixedWindow, limit, interval, name: None })
    }
}

/// A [`Rule::gcra`] being described; becomes a [`Rule`] by `into()`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a rule does nothing until it is part of a valve"]
pub struct Gcra(Rule);

impl Gcra {
    /// Sets how many units of cost an idle rule lets start at once, and with it the largest cost of one job.
    ///
    /// At least 1. `burst * interval / limit` is at most 3,650 days, and `(burst + 1)` times the denominator
    /// of `interval / limit` in microseconds at most 2^53, so that every store can compute exactly.
    ///
    /// Default: 1, because then no interval holds more than the limit, which is what most providers mean.
    pub fn burst(mut self, burst: u32) -> Self {
        self.0.kind = Kind::Gcra { burst };
        self
    }

    /// Names the rule: in errors and events, and for the processes that share its state.
    ///
    /// 1 to 64 bytes without control characters; unique among the GCRA rules of a valve. A changed interval
    /// under the same name keeps what was spent.
    ///
    /// Default: kind and interval, such as `gcra/1s`, so that a changed limit keeps what was spent.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.0.name = Some(name.into());
        self
    }
}

impl From<Gcra> for Rule {
    fn from(gcra: Gcra) -> Rule {
        gcra.0
    }
}

/// A [`Rule::fixed_window`] being described; becomes a [`Rule`] by `into()`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a rule does nothing until it is part of a valve"]
pub struct FixedWindow(Rule);

impl FixedWindow {
    /// Names the rule: in errors and events, and for the processes that share its count.
    ///
    /// 1 to 64 bytes without control characters; unique among the windows of one interval of a valve. Windows
    /// of different intervals never share a count, whatever their names.
    ///
    /// Default: kind and interval, such as `window/1h`, so that a changed limit keeps what was spent.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.0.name = Some(name.into());
        self
    }
}

impl From<FixedWindow> for Rule {
    fn from(window: FixedWindow) -> Rule {
        window.0
    }
}
