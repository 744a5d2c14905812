//! The store of one process: exact, never blocking, and lock-free for the commonest valve.
//!
//! One lock per id. An id that only ever met one shape of rules, none or a single GCRA rule, keeps its whole state in one
//! atomic word meanwhile; the word is taken away for as long as a pause or anything else must be looked at.

mod slots;
#[cfg(test)]
mod tests;

use crate::clock::{Clock, Tick, duration, ticks_up};
use crate::error::StoreError;
use crate::planted::fault;
use crate::rule::{QuickRule, RuleSet, RuleState};
use crate::store::{
    Answer, Ask, Counts, Deadline, Lease, Notice, Quick, Refusal, Remote, Store, Token, Wake,
};
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use slots::Held;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Counts in this process's memory. Clones share them: give the same store to several valves of one id and they keep to
/// the limits together.
///
/// Its clock is the system's wall time at its creation, carried on by the monotonic clock: stepping the system's time
/// changes nothing. An id that nobody has open and that has nothing spent, held or paused is forgotten.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::{MemoryStore, Rule, Valve};
///
/// let store = MemoryStore::new();
/// let rule = || Rule::fixed_window(1, Duration::from_secs(3600));
/// let one = Valve::builder("api").rule(rule()).store(store.clone()).build()?;
/// let two = Valve::builder("api").rule(rule()).store(store).build()?;
///
/// one.try_acquire()?;
/// assert!(two.try_acquire().is_err());
/// # Ok::<(), valve::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    #[cfg(feature = "testing")]
    manual: Option<crate::testing::ManualClock>,
}

struct Shared {
    base: Base,
    ids: Mutex<Ids>,
}

/// What this store's clock is made of.
#[derive(Clone)]
struct Base {
    clock: Clock,
    /// The clock's time at creation, and the wall time then.
    tick: Tick,
    wall: u64,
}

impl Base {
    fn now(&self) -> u64 {
        self.wall + self.since()
    }

    /// Microseconds since the store began. That they may go back, as a remote clock may, every rule allows for.
    #[inline]
    fn since(&self) -> u64 {
        self.clock.reading().saturating_sub(self.tick)
    }
}

#[derive(Default)]
struct Ids {
    open: HashMap<Arc<str>, Arc<Id>>,
    /// Look for forgotten ids again when there are so many.
    sweep_at: usize,
}

/// How many ids there may be before the first look for forgotten ones.
const SWEEP_FROM: usize = 64;

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::on(Clock::System)
    }

    pub(crate) fn on(clock: Clock) -> MemoryStore {
        let base = Base { tick: clock.now(), wall: clock.wall(), clock };
        MemoryStore {
            shared: Arc::new(Shared { base, ids: Mutex::new(Ids::default()) }),
            #[cfg(feature = "testing")]
            manual: None,
        }
    }

    /// Settings for a store in tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { clock: None }
    }

    fn id(&self, name: &str) -> Arc<Id> {
        let mut ids = self.shared.ids.lock();
        if let Some(id) = ids.open.get(name) {
            return Arc::clone(id);
        }
        let mut forgotten = Vec::new();
        if ids.open.len() >= ids.sweep_at.max(SWEEP_FROM) {
            let now = self.shared.base.now();
            let idle: Vec<_> = ids
                .open
                .iter()
                .filter(|(_, id)| Arc::strong_count(id) == 1 && id.is_fresh(now, self.shared.base.wall))
                .map(|(name, _)| Arc::clone(name))
                .collect();
            forgotten.extend(idle.iter().filter_map(|name| ids.open.remove(name)));
            ids.sweep_at = ids.open.len() * 2;
        }
        let id = Arc::new(Id::new());
        ids.open.insert(name.into(), Arc::clone(&id));
        drop(ids);
        drop(forgotten);
        id
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryStore").field("ids", &self.shared.ids.lock().open.len()).finish()
    }
}

impl Store for MemoryStore {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { base: self.shared.base.clone(), id: self.id(id), matched: Matched::default() }))
    }

    fn remote(&self) -> Option<Remote> {
        None
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        let id = self.id(wake.id());
        let mut state = id.state.lock();
        state.wakes.retain(|other| !other.is_stale());
        state.wakes.push(wake);
        Ok(())
    }

    fn notifies(&self) -> bool {
        true
    }

    #[cfg(feature = "testing")]
    fn clock(&self) -> Option<&crate::testing::ManualClock> {
        self.manual.as_ref()
    }
}

/// Settings of a [`MemoryStore`] in tests.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub struct MemoryStoreBuilder {
    clock: Option<crate::testing::ManualClock>,
}

#[cfg(any(test, feature = "testing"))]
impl MemoryStoreBuilder {
    /// The clock the store runs on. Default: the system's.
    #[must_use]
    pub fn clock(self, clock: &crate::testing::ManualClock) -> MemoryStoreBuilder {
        MemoryStoreBuilder { clock: Some(clock.clone()) }
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let Some(clock) = self.clock else { return MemoryStore::new() };
        let store = MemoryStore::on(clock.clock());
        #[cfg(feature = "testing")]
        let store = MemoryStore { manual: Some(clock), ..store };
        store
    }
}

/// One id.
struct Id {
    /// The TAT of the only rule, in units of 1/d microseconds since the store began; [`TAKEN`] while `state` has it.
    word: AtomicU64,
    state: Mutex<State>,
}

const TAKEN: u64 = u64::MAX;

/// The largest denominator whose TATs, and everything added to them, fit the word: twenty years of microseconds each.
const DENOMINATOR_MAX: u32 = 3_600;
const _: () = assert!(DENOMINATOR_MAX as u64 <= (1 << 62) / (4 * crate::clock::LONGEST));

#[derive(Default)]
struct State {
    shape: Shape,
    rules: Vec<Spent>,
    paused_until: u64,
    held: Held,
    wakes: Vec<Wake>,
    /// Somebody was refused a slot and waits.
    wanted: bool,
}

/// What was spent under one rule.
struct Spent {
    key: Box<str>,
    state: RuleState,
    /// Its rule's interval, as of the last ask.
    interval: Tick,
}

/// Which rules the word may stand for. It moves down this list and never back: whoever found that its rules are the
/// ones in the word may rely on it for ever, for another rule set only takes the word away.
#[derive(Default, PartialEq)]
enum Shape {
    #[default]
    Unknown,
    /// No rule, or a GCRA rule of this key and denominator.
    Single {
        key: Box<str>,
        d: u32,
    },
    Many,
}

impl Id {
    fn new() -> Id {
        Id { word: AtomicU64::new(TAKEN), state: Mutex::new(State::default()) }
    }

    /// Nothing is spent, held, paused or watched: forgetting it changes nothing.
    fn is_fresh(&self, now: u64, wall: u64) -> bool {
        let mut state = self.state.lock();
        self.take_word(&mut state, wall);
        let idle = now >= state.paused_until && state.held.count(now) == 0 && !state.held.must_remember(now);
        idle && state.rules.iter().all(|rule| rule.state.is_fresh(now, rule.interval))
    }

    /// Brings what the word holds into the state, so that the state is all there is while it is locked.
    fn take_word(&self, state: &mut State, wall: u64) {
        let units = self.word.swap(TAKEN, Ordering::AcqRel);
        match &state.shape {
            Shape::Single { key, d } if units != TAKEN && *d != 0 => {
                let spent = RuleState::from_units(units, wall, *d);
                if let Some(rule) = state.rules.iter_mut().find(|rule| rule.key == *key) {
                    rule.state = spent;
                }
            }
            _ => {}
        }
    }
}

/// One valve's view of an id.
struct Opened {
    base: Base,
    id: Arc<Id>,
    matched: Matched,
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        let mut state = self.id.state.lock();
        let now = self.base.now();
        self.id.take_word(&mut state, self.base.wall);
        let freed = state.held.end(ask.releases);
        *answer = Answer { at: if fault("V01") { 0 } else { now }, ..Answer::default() };
        if now < state.paused_until && !fault("V22") {
            let pause = Some(duration(state.paused_until - now));
            answer.refusal = Some(Refusal { pause, ..Refusal::default() });
        } else {
            state.decide(ask, now, answer);
        }
        self.give_word(&mut state, ask.rules, now);
        let wakes = state.wakes_if(freed);
        drop(state);
        notify(wakes, Notice::Released);
        Ok(())
    }

    fn renew(&self, leases: &[Lease], _deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        let mut state = self.id.state.lock();
        let now = self.base.now();
        held.clear();
        held.extend(leases.iter().map(|lease| state.held.renew(lease.token, now, now + ticks_up(lease.ttl))));
        Ok(())
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let mut state = self.id.state.lock();
        let freed = state.held.end(tokens);
        let wakes = state.wakes_if(freed);
        drop(state);
        notify(wakes, Notice::Released);
        Ok(())
    }

    fn pause(&self, length: Duration, _deadline: Deadline) -> Result<Duration, StoreError> {
        let mut state = self.id.state.lock();
        self.id.take_word(&mut state, self.base.wall);
        let now = self.base.now();
        let until = now + ticks_up(length);
        state.paused_until = if fault("V24") { until } else { state.paused_until.max(until) };
        let left = duration(state.paused_until - now);
        let wakes = state.wakes.clone();
        drop(state);
        notify(wakes, Notice::Paused);
        Ok(left)
    }

    fn resume(&self, _deadline: Deadline) -> Result<(), StoreError> {
        let mut state = self.id.state.lock();
        if !fault("V25") {
            state.paused_until = 0;
        }
        let wakes = state.wakes.clone();
        drop(state);
        notify(wakes, Notice::Resumed);
        Ok(())
    }

    /// Every grant by a rule is a swap of the word. One before ours is read by it; one after it finds what ours, or whoever
    /// had the lock after us, has left there.
    fn part_quick(&self) -> bool {
        let mut state = self.id.state.lock();
        self.id.take_word(&mut state, self.base.wall);
        true
    }

    #[inline]
    fn quick(&self, rules: u64, cost: u32) -> Quick {
        let Some(rule) = self.matched.read(rules) else { return Quick::Unable };
        let word = &self.id.word;
        let mut tat = word.load(Ordering::Acquire);
        if tat == TAKEN {
            return Quick::Unable;
        }
        let now = self.base.since();
        if rule.d == 0 {
            return Quick::Granted(self.base.wall + now);
        }
        let (arrival, spend) = (now * u64::from(rule.d), u64::from(cost) * rule.n);
        let limit = arrival + rule.tolerance;
        loop {
            let from = if fault("V16") { tat } else { tat.max(arrival) };
            let after = from + spend;
            if after > limit {
                return Quick::Refused((after - limit).div_ceil(u64::from(rule.d)));
            }
            match word.compare_exchange_weak(tat, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Quick::Granted(self.base.wall + now),
                Err(TAKEN) => return Quick::Unable,
                Err(newer) => tat = newer,
            }
        }
    }
}

/// The rule that the id's word stands for as this valve sees it, read without a lock: a seqlock whose sequence is the
/// number of the rule set. Numbers only grow here, so none comes back while a reader looks.
#[derive(Default)]
struct Matched {
    number: AtomicU64,
    n: AtomicU64,
    d: AtomicU64,
    tolerance: AtomicU64,
}

impl Matched {
    #[inline]
    fn read(&self, number: u64) -> Option<QuickRule> {
        if self.number.load(Ordering::Acquire) != number || number == 0 {
            return None;
        }
        let n = self.n.load(Ordering::Relaxed);
        let d = u32::try_from(self.d.load(Ordering::Relaxed)).ok()?;
        let tolerance = self.tolerance.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.number.load(Ordering::Relaxed) == number).then_some(QuickRule { number, n, d, tolerance })
    }

    /// Under the id's lock.
    fn write(&self, rule: &QuickRule) {
        if self.number.load(Ordering::Relaxed) >= rule.number {
            return;
        }
        self.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.n.store(rule.n, Ordering::Relaxed);
        self.d.store(u64::from(rule.d), Ordering::Relaxed);
        self.tolerance.store(rule.tolerance, Ordering::Relaxed);
        self.number.store(rule.number, Ordering::Release);
    }
}

impl Opened {
    /// Puts the state back into the word, if it is of one shape and nothing else need be looked at.
    fn give_word(&self, state: &mut State, rules: &RuleSet, now: u64) {
        let quick = rules.quick().filter(|rule| rule.d <= DENOMINATOR_MAX);
        let mine = quick.as_ref().map_or(Shape::Many, |rule| Shape::Single {
            key: if rule.d == 0 { "".into() } else { rules.key(0).into() },
            d: rule.d,
        });
        if state.shape == Shape::Unknown {
            state.shape = mine;
        } else if state.shape != mine {
            state.shape = Shape::Many;
        }
        let Shape::Single { key, d } = &state.shape else { return };
        if now < state.paused_until || !state.held.is_empty() {
            return;
        }
        let units = match state.rules.iter().find(|rule| rule.key == *key) {
            Some(rule) => rule.state.to_units(self.base.wall, *d),
            None => Some(0),
        };
        let Some(units) = units else { return };
        if let Some(rule) = &quick {
            self.matched.write(rule);
        }
        self.id.word.store(units, Ordering::Release);
    }
}

impl State {
    /// Slots first: a job without one must not spend.
    fn decide(&mut self, ask: &Ask<'_>, now: u64, answer: &mut Answer) {
        let free = match &ask.slots {
            None => ask.costs.len(),
            Some(slots) => (slots.limit as usize + usize::from(fault("V50")))
                .saturating_sub(self.held.count(now))
                .min(ask.costs.len()),
        };
        let mut places = [0; RuleSet::MAX];
        let mut spent = [RuleState::default(); RuleSet::MAX];
        let rules = ask.rules.len();
        for (rule, place) in places.iter_mut().enumerate().take(rules) {
            *place = self.place_of(ask.rules, rule);
            spent[rule] = self.rules[*place].state;
        }
        let verdict = ask.rules.admit(&mut spent[..rules], now, ask.costs[..free].iter().copied());
        for (place, spent) in places.iter().zip(spent).take(rules) {
            self.rules[*place].state = spent;
        }
        answer.granted = verdict.granted;
        if let Some(slots) = &ask.slots {
            let taken = if fault("V51") { slots.tokens.len() } else { verdict.granted };
            answer.fence =
                self.held.take(&slots.tokens[..taken], now, now + ticks_up(slots.ttl), slots.floor);
        }
        let rate = verdict.refusal.map(|refusal| (refusal.rule, duration(refusal.not_before - now)));
        let slots = rate.is_none() && verdict.granted < ask.costs.len();
        self.wanted |= slots && ask.waits;
        answer.refusal = (rate.is_some() || slots).then_some(Refusal { rate, pause: None, slots });
    }

    /// Where the state of a rule is, made if it is new. A valve has few rules, and their states stay while it lives.
    fn place_of(&mut self, rules: &RuleSet, rule: usize) -> usize {
        let (key, interval) = (rules.key(rule), ticks_up(rules.interval(rule)));
        let known = self.rules.iter().position(|spent| *spent.key == *key);
        let place = known.unwrap_or_else(|| {
            self.rules.push(Spent { key: key.into(), state: RuleState::default(), interval });
            self.rules.len() - 1
        });
        self.rules[place].interval = interval;
        place
    }

    /// Whom to tell of freed slots.
    fn wakes_if(&mut self, freed: bool) -> Vec<Wake> {
        if freed && std::mem::take(&mut self.wanted) { self.wakes.clone() } else { Vec::new() }
    }
}

fn notify(wakes: Vec<Wake>, notice: Notice) {
    for wake in wakes {
        wake.notify(notice);
    }
}
