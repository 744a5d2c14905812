//! The rules of one valve, validated together, and the decision over a batch: all rules or nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::gcra::CompiledGcra;
use super::state::RuleState;
use super::window::CompiledWindow;
use super::{Kind, Rule, identity};
use crate::error::Error;
use crate::planted::fault;

/// The tick of what can never start, beyond any clock.
pub(super) const NEVER: u64 = u64::MAX;

/// The validated rules of one valve: what a store is given with every ask.
///
/// Cheap to clone; clones share the rules. The default is the empty set, which admits everything. The methods
/// that take a `rule` take its index, below [`len`](RuleSet::len), in the order the rules were given in.
#[derive(Debug, Clone, Default)]
pub struct RuleSet {
    rules: Arc<[CompiledRule]>,
    /// Given to no other set; 0 is the default's.
    number: u64,
}

/// A set of at most one GCRA rule in the units of its own denominator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuickRule {
    pub(crate) number: u64,
    pub(crate) n: u64,
    /// 0 if there is no rule.
    pub(crate) d: u32,
    pub(crate) tolerance: u64,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct CompiledRule {
    name: Arc<str>,
    key: Box<str>,
    limit: u32,
    interval: Duration,
    arithmetic: Arithmetic,
}

#[derive(Debug)]
enum Arithmetic {
    Gcra(CompiledGcra),
    Window(CompiledWindow),
}

/// What [`RuleSet::admit`] decided: the jobs of the batch that start now, from its front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// How many jobs start.
    pub granted: usize,
    /// Why the next one does not; `None` if all started.
    pub refusal: Option<RateRefusal>,
}

/// Why and until when a job is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateRefusal {
    /// The index of the rule that holds the job longest, the first of equals.
    pub rule: usize,
    /// The first tick at which this job alone would start: one tick earlier it would not.
    /// `u64::MAX` for a cost that no rule state allows, which [`RuleSet::check_cost`] rejects beforehand.
    pub not_before: u64,
}

impl RuleSet {
    /// The largest number of rules in a set.
    pub const MAX: usize = 16;

    /// Validates rules and compiles them for deciding.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], naming the rule and its field, such as `rule 2 (gcra/1s): burst`, if
    ///
    /// - there are more than [`RuleSet::MAX`] rules;
    /// - a limit or burst is 0;
    /// - an interval is zero, longer than 3,650 days or not a whole number of microseconds;
    /// - a burst takes longer than 3,650 days to earn, or `(burst + 1) * d` exceeds 2^53, d being the
    ///   denominator of interval / limit in microseconds;
    /// - a name is empty, longer than 64 bytes, contains control characters, or is given twice to GCRA rules
    ///   or to windows of the same interval.
    pub fn new(rules: Vec<Rule>) -> Result<RuleSet, Error> {
        if rules.len() > RuleSet::MAX {
            return Err(Error::invalid(
                "rules",
                format!("{} are too many; use at most {}", rules.len(), RuleSet::MAX),
            ));
        }
        let mut compiled = Vec::with_capacity(rules.len());
        for (position, rule) in rules.iter().enumerate() {
            compiled.push(compile(position, rule, &compiled)?);
        }
        Ok(RuleSet { rules: compiled.into(), number: NUMBERS.fetch_add(1, Ordering::Relaxed) })
    }

    /// What tells this set, and its clones, from every other of the process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule, so that everything is admitted.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the rule is called in errors and events: the given name, or kind and interval as in `gcra/1s`.
    ///
    /// # Panics
    ///
    /// If there is no such rule.
    pub fn name(&self, rule: usize) -> &Arc<str> {
        &self.rules[rule].name
    }

    /// What identifies the rule's state in a store, unique in the set.
    ///
    /// Kind and interval, and among equals the order (`gcra/1s`, `gcra/1s#2`); for a named rule kind and
    /// name, for a named window kind, interval and name.
    ///
    /// # Panics
    ///
    /// If there is no such rule.
    pub fn key(&self, rule: usize) -> &str {
        &self.rules[rule].key
    }

    /// The cost the rule lets start per interval.
    ///
    /// # Panics
    ///
    /// If there is no such rule.
    pub fn limit(&self, rule: usize) -> u32 {
        self.rules[rule].limit
    }

    /// The rule's interval, a whole number of microseconds.
    ///
    /// # Panics
    ///
    /// If there is no such rule.
    pub fn interval(&self, rule: usize) -> Duration {
        self.rules[rule].interval
    }

    /// A GCRA rule's burst; `None` for a window.
    ///
    /// # Panics
    ///
    /// If there is no such rule.
    pub fn burst(&self, rule: usize) -> Option<u32> {
        match &self.rules[rule].arithmetic {
            Arithmetic::Gcra(gcra) => Some(gcra.burst()),
            Arithmetic::Window(_) => None,
        }
    }

    /// The largest cost that can ever start, and the first rule that sets it; `None` without rules.
    ///
    /// A GCRA rule allows its burst, a window its limit.
    pub fn largest_cost(&self) -> Option<(u32, usize)> {
        let capacities = self.rules.iter().enumerate().map(|(index, rule)| (rule.capacity(), index));
        capacities.min()
    }

    /// Checks that a job of this cost can ever start.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for 0, [`Error::CostTooLarge`] above [`largest_cost`](RuleSet::largest_cost).
    pub fn check_cost(&self, cost: u32) -> Result<(), Error> {
        if cost == 0 {
            return Err(Error::invalid("cost", "0 is not a cost; use at least 1"));
        }
        match self.largest_cost() {
            Some((max, rule)) if cost > max => {
                Err(Error::CostTooLarge { cost, max, rule: self.name(rule).to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Decides over jobs of the given `costs`, in order, at the tick `now`: the longest prefix that fits starts.
    ///
    /// A job starts if every rule allows it, and is then spent under every rule; a refused one leaves all
    /// `states` as they were. `states` belong to the rules in their order. A state of another kind of rule
    /// counts as fresh. Costs are expected to have passed [`check_cost`](RuleSet::check_cost); one that is too
    /// large is refused for ever, one of 0 spends nothing.
    ///
    /// `now` may be earlier than before. A GCRA rule then still waits for its TAT. A later window becomes the
    /// current one, count included, also when nothing starts: the one way in which a refusal changes a state.
    ///
    /// # Panics
    ///
    /// If there are not as many states as rules.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::{Rule, RuleSet, RuleState};
    ///
    /// let set = RuleSet::new(vec![Rule::gcra(10, Duration::from_secs(1)).burst(2).into()])?;
    /// let mut states = [RuleState::default()];
    /// let verdict = set.admit(&mut states, 0, [1, 1, 1]);
    /// assert_eq!(verdict.granted, 2);
    /// assert_eq!(verdict.refusal.map(|refusal| refusal.not_before), Some(100_000));
    /// # Ok::<(), valve::Error>(())
    /// ```
    pub fn admit(&self, states: &mut [RuleState], now: u64, costs: impl IntoIterator<Item = u32>) -> Verdict {
        assert_eq!(states.len(), self.len(), "a rule set decides over one state for each of its rules");
        self.step_back(states, now);
        let mut granted = 0;
        for cost in costs {
            let cost = if fault("V13") { 1 } else { cost };
            let refusal = self.refusal(states, now, cost);
            if refusal.is_some() {
                if fault("V12") {
                    self.spend(&mut states[..1], now, cost);
                }
                return Verdict { granted, refusal };
            }
            self.spend(states, now, cost);
            granted += 1;
        }
        Verdict { granted, refusal: None }
    }

    /// The set as a store may decide by it without a lock, if it is one GCRA rule or none. The default set, which has no
    /// number of its own, cannot be told from others.
    pub(crate) fn quick(&self) -> Option<QuickRule> {
        let number = self.number;
        match &*self.rules {
            _ if number == 0 => None,
            [] => Some(QuickRule { number, n: 0, d: 0, tolerance: 0 }),
            [CompiledRule { arithmetic: Arithmetic::Gcra(gcra), .. }] => {
                let tolerance = gcra.tolerance_units();
                Some(QuickRule { number, n: gcra.n(), d: gcra.d(), tolerance })
            }
            _ => None,
        }
    }

    /// The arithmetic of a GCRA rule, for a store that does it elsewhere; `None` for a window.
    #[cfg(feature = "redis")]
    pub(crate) fn gcra(&self, rule: usize) -> Option<&CompiledGcra> {
        match &self.rules[rule].arithmetic {
            Arithmetic::Gcra(gcra) => Some(gcra),
            Arithmetic::Window(_) => None,
        }
    }

    fn step_back(&self, states: &mut [RuleState], now: u64) {
        for (compiled, state) in self.rules.iter().zip(states) {
            if let Arithmetic::Window(window) = &compiled.arithmetic {
                window.step_back(state, now);
            }
        }
    }

    fn refusal(&self, states: &[RuleState], now: u64, cost: u32) -> Option<RateRefusal> {
        let checked = if fault("V11") { 1 } else { self.len() };
        let mut latest: Option<RateRefusal> = None;
        for (rule, (compiled, state)) in self.rules.iter().zip(states).enumerate().take(checked) {
            if let Err(not_before) = compiled.spend(state, now, cost) {
                if latest.is_none_or(|latest| not_before > latest.not_before) {
                    latest = Some(RateRefusal { rule, not_before });
                }
            }
        }
        latest
    }

    fn spend(&self, states: &mut [RuleState], now: u64, cost: u32) {
        for (compiled, state) in self.rules.iter().zip(states) {
            if let Ok(spent) = compiled.spend(state, now, cost) {
                *state = spent;
            }
        }
    }
}

impl CompiledRule {
    fn spend(&self, state: &RuleState, now: u64, cost: u32) -> Result<RuleState, u64> {
        match &self.arithmetic {
            Arithmetic::Gcra(gcra) => gcra.spend(state, now, cost),
            Arithmetic::Window(window) => window.spend(state, now, cost),
        }
    }

    fn capacity(&self) -> u32 {
        match &self.arithmetic {
            Arithmetic::Gcra(gcra) => gcra.burst(),
            Arithmetic::Window(window) => window.limit,
        }
    }
}

fn compile(position: usize, rule: &Rule, earlier: &[CompiledRule]) -> Result<CompiledRule, Error> {
    let invalid = |field: &str, reason: String| identity::invalid(position, rule, field, reason);
    if let Some(name) = &rule.name {
        identity::check_name(name).map_err(|reason| invalid("name", reason))?;
    }
    if rule.limit == 0 {
        return Err(invalid("limit", "0 would let nothing start; use at least 1".to_owned()));
    }
    let interval_us =
        identity::whole_microseconds(rule.interval).map_err(|reason| invalid("interval", reason))?;
    let arithmetic = match rule.kind {
        Kind::Gcra { burst } => {
            let gcra = CompiledGcra::new(rule.limit, interval_us, burst);
            Arithmetic::Gcra(gcra.map_err(|reason| invalid("burst", reason))?)
        }
        Kind::FixedWindow => Arithmetic::Window(CompiledWindow { limit: rule.limit, interval_us }),
    };
    let taken: Vec<&str> = earlier.iter().map(|rule| &*rule.key).collect();
    let named = identity::identify(rule, interval_us, &taken).map_err(|reason| invalid("name", reason))?;
    Ok(CompiledRule {
        name: named.name.into(),
        key: named.key.into(),
        limit: rule.limit,
        interval: rule.interval,
        arithmetic,
    })
}
