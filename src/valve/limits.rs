//! The limits a valve has now: they may change while it runs.

use super::core::{After, Core, Phase, RUNNING, SLOW, State, UNLIMITED};
use super::stripes::Stripes;
use crate::clock::{Tick, ticks_up};
use crate::error::Error;
use crate::planted::fault;
use crate::rule::{Rule, RuleSet};
use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// How many jobs may run at once: of one valve, of the fleet, or both. For
/// [`Valve::set_concurrency`](crate::Valve::set_concurrency), which also checks it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{Concurrency, Valve};
///
/// let valve = Valve::builder("api").concurrency(1).build()?;
/// let held = valve.acquire()?;
/// valve.set_concurrency(Concurrency::unlimited().local(2))?;
/// assert!(valve.try_acquire().is_ok());
/// assert!(valve.set_concurrency(Concurrency::unlimited().local(0)).is_err());
/// # drop(held);
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Concurrency {
    pub(super) local: Option<u32>,
    pub(super) global: Option<(u32, Duration)>,
}

impl Concurrency {
    /// No limit of either kind, to begin with.
    #[must_use]
    pub fn unlimited() -> Concurrency {
        Concurrency::default()
    }

    /// At most so many jobs of this valve, `1 ..= u32::MAX`: see
    /// [`ValveBuilder::concurrency`](crate::ValveBuilder::concurrency). Default: no limit, as there.
    #[must_use]
    pub fn local(self, limit: u32) -> Concurrency {
        Concurrency { local: Some(limit), ..self }
    }

    /// At most so many jobs of all valves that share the id and the store, `1 ..= u32::MAX`, each with a lease of 100 ms ..=
    /// 24 h: see [`ValveBuilder::global_concurrency`](crate::ValveBuilder::global_concurrency). Default: no limit, as there.
    #[must_use]
    pub fn global(self, limit: u32, lease_ttl: Duration) -> Concurrency {
        Concurrency { global: Some((limit, lease_ttl)), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.local == Some(0) {
            return Err(Error::invalid(
                "concurrency",
                "0 would never let a job start; leave it out for no limit",
            ));
        }
        let Some((limit, ttl)) = self.global else { return Ok(()) };
        if limit == 0 {
            let reason = "a limit of 0 would never let a job start; leave it out for no limit";
            return Err(Error::invalid("global_concurrency", reason));
        }
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Err(Error::invalid("lease_ttl", format!("{ttl:?} is not in 100 ms ..= 24 h")));
        }
        Ok(())
    }
}

/// Shorter leases would be lost to ordinary hiccups of a network.
const TTL_MIN: Duration = Duration::from_millis(100);
/// Longer ones would keep a dead worker's slot for more than a day.
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The limits in force, under the valve's lock.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) rules: RuleSet,
    pub(super) local: u64,
    pub(super) global: Option<Global>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Global {
    pub(super) limit: u32,
    pub(super) ttl: Duration,
}

impl Global {
    pub(super) fn ttl_ticks(&self) -> Tick {
        ticks_up(self.ttl)
    }
}

/// What the lock-free path goes by. Changed under the lock with the slow bit set; a call that read just before may mix old
/// and new, each of which was in force a moment ago.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Fast {
    /// How many jobs run (or are being asked for), the bit [`SLOW`], and how many have ended: one word, so that a release and
    /// a waiter that sets the bit always see each other, and so that an ended job costs one write.
    pub(super) word: AtomicU64,
    /// The number of the rule set if its jobs are counted in the stripes: there is one rule, which the store decides by a
    /// swap, and no limit. Else 0.
    pub(super) striped: AtomicU64,
    pub(super) stripes: Stripes,
    /// 0 if this path is closed.
    pub(super) local: AtomicU64,
    /// The greatest cost any rule can admit.
    pub(super) cost_max: AtomicU64,
    /// The number of the rule set.
    pub(super) rules: AtomicU64,
}

impl Fast {
    /// What of the word runs or is being asked for.
    pub(super) fn running(&self) -> u64 {
        self.word.load(Ordering::Acquire) & RUNNING
    }

    fn set(&self, limits: &Limits, open: bool) {
        self.rules.store(limits.rules.number(), Ordering::Relaxed);
        let cost_max = limits.rules.largest_cost().map_or(u32::MAX, |(cost, _)| cost);
        self.cost_max.store(cost_max.into(), Ordering::Relaxed);
        self.local.store(if open { limits.local } else { 0 }, Ordering::Release);
    }
}

impl Limits {
    /// Any number of jobs may run.
    pub(super) fn is_unlimited(&self) -> bool {
        self.local == UNLIMITED && self.global.is_none()
    }

    pub(super) fn new(rules: RuleSet, concurrency: Concurrency) -> Limits {
        let global = concurrency.global.map(|(limit, ttl)| Global { limit, ttl });
        let local = concurrency
            .local
            .map_or(if fault("V02") { 10 } else { UNLIMITED }, |limit| u64::from(limit).min(UNLIMITED));
        Limits { rules, local, global }
    }
}

impl Core {
    /// Puts other rules in force. What is spent under a rule of the same name stays spent.
    pub(super) fn set_rules(&self, rules: Vec<Rule>) -> Result<(), Error> {
        let rules = RuleSet::new(rules)?;
        let mut after = After::default();
        let mut state = self.state.lock();
        if !fault("O74") {
            state.limits.rules = rules;
        }
        let too_large = |cost| state.limits.rules.check_cost(cost).err();
        let hopeless: Vec<_> =
            state.queue.costs().filter_map(|(place, cost)| Some((place, too_large(cost)?))).collect();
        for (place, error) in hopeless {
            if let Some(waiter) = state.queue.remove(place) {
                self.fail(waiter, error, &mut after);
            }
        }
        self.changed(&mut state, &mut after);
        self.drive(state);
        after.act(self);
        Ok(())
    }

    /// Puts other limits on concurrency in force. Jobs that run beyond a smaller one go on.
    pub(super) fn set_concurrency(&self, concurrency: Concurrency) -> Result<(), Error> {
        concurrency.check()?;
        self.check_mode(&concurrency)?;
        let mut after = After::default();
        let mut state = self.state.lock();
        let rules = state.limits.rules.clone();
        state.limits = Limits::new(rules, concurrency);
        self.changed(&mut state, &mut after);
        self.drive(state);
        after.act(self);
        Ok(())
    }

    /// Lets the lock-free path go by the limits in force. Under the lock, with the slow bit set.
    pub(super) fn set_fast(&self, state: &mut State) {
        let parted = self.close_stripes();
        let limits = &state.limits;
        state.leftover = limits.local != UNLIMITED && self.fast.stripes.running() != 0;
        self.fast.set(limits, limits.global.is_none() && !state.leftover);
        let by_swap = limits.rules.quick().is_some_and(|rule| rule.d != 0);
        // shuttle's threads share one of the system's, and with it its counters.
        if parted && by_swap && limits.is_unlimited() && state.phase == Phase::Open && !cfg!(shuttle) {
            self.fast.striped.store(limits.rules.number(), Ordering::Release);
        }
    }

    /// From here on the stripes count all who started or will start by them: who comes later finds this way closed. Whether
    /// the store can say so.
    pub(super) fn close_stripes(&self) -> bool {
        self.fast.striped.store(0, Ordering::Release);
        self.counts.part_quick()
    }

    /// Once the jobs that started before there was a limit have ended, the word counts all.
    pub(super) fn count_leftover(&self, state: &mut State) {
        if state.leftover && self.fast.stripes.running() == 0 {
            state.leftover = false;
            self.fast.set(&state.limits, state.limits.global.is_none());
        }
    }

    fn changed(&self, state: &mut State, after: &mut After) {
        if fault("live-limits-ignored") {
            return;
        }
        self.fast.word.fetch_or(SLOW, Ordering::AcqRel);
        self.set_fast(state);
        state.queue.forget();
        self.break_circle(state, after);
    }
}
