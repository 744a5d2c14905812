//! A store around the one in memory that breaks one rule of the contract.

use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use valve::testing::ManualClock;
use valve::{
    Answer, Ask, Counts, Deadline, Executed, Lease, MemoryStore, Notice, Refusal, Remote, Rule, RuleSet,
    Store, StoreError, StoreErrorKind, Token, Wake,
};

macro_rules! faults {
    ($($fault:ident,)*) => {
        /// What is broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Fault { None, $($fault,)* }

        impl Fault {
            pub(super) const ALL: &[Fault] = &[$(Fault::$fault,)*];
        }
    };
}

faults! {
    OpensAreApart, IdsAreOne, IdsAreCut, AnswersAreMixed, RefusalsLinger, StampsGoBack, StampsStand, FailsLate,
    OneAtATime, SkipsTheRefused, CostsAreOne, RefusalsCost, FirstRuleIsSpent, HintsAreShort, HintsAreMilliseconds,
    LimitsOfTheFirst,
    PausesLeakNoRules, PausesEndEarly, PausesCost, PausesReplace, PausesAdd, ResumeOfTheFirstOnly, ResumeShortens,
    PausesAreLocal,
    SlotsAreForOne, SlotsAreLeftOut, RefusedHold, SlotLimitOfTheFirst, ReleasesAll, ReleasesLater, ReleasesIfGranted,
    SlotlessSpend, LeasesStay, LeasesEndEarly, RenewsNothing, RenewsAnything, Revives, HeldIsMixed, PausesStopRenewals,
    FencesRepeat, FencesIgnoreTheFloor,
    NoticesGoAround, NoticesLie, Races,
}

pub(super) struct Broken {
    inner: MemoryStore,
    fault: Fault,
    shared: Arc<Mutex<Shared>>,
}

/// What a fault needs to remember.
#[derive(Default)]
struct Shared {
    opened: usize,
    watchers: Vec<Wake>,
    taken: Vec<Token>,
    pauses: usize,
    paused: bool,
    last_at: u64,
    first_fence: Option<NonZeroU64>,
    first_rules: Option<RuleSet>,
    first_limit: Option<u32>,
    later: Vec<Token>,
    inside: AtomicUsize,
}

impl Broken {
    pub(super) fn new(inner: MemoryStore, fault: Fault) -> Broken {
        Broken { inner, fault, shared: Arc::default() }
    }
}

impl Store for Broken {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        let mut shared = self.shared.lock();
        shared.opened += 1;
        let inner = match self.fault {
            Fault::OpensAreApart => self.inner.open(&format!("{id} {}", shared.opened))?,
            Fault::IdsAreOne => self.inner.open("one")?,
            Fault::IdsAreCut => self.inner.open(&id[id.len().saturating_sub(10_000)..])?,
            _ => self.inner.open(id)?,
        };
        let first = shared.opened == 1;
        Ok(Arc::new(View {
            inner,
            fault: self.fault,
            shared: Arc::clone(&self.shared),
            first,
            paused: Mutex::new(false),
        }))
    }

    fn remote(&self) -> Option<Remote> {
        None
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.shared.lock().watchers.push(wake.clone());
        self.inner.watch(wake)
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.inner.clock()
    }
}

struct View {
    inner: Arc<dyn Counts>,
    fault: Fault,
    shared: Arc<Mutex<Shared>>,
    /// Whether it is the first that was opened.
    first: bool,
    /// Whether it was this one that paused.
    paused: Mutex<bool>,
}

impl View {
    /// Spends or takes something that nobody asked for.
    fn also(&self, ask: &Ask<'_>) -> Answer {
        let mut answer = Answer::default();
        self.inner.admit(ask, &mut answer).unwrap();
        answer
    }

    /// Those who never asked for anything are told of something.
    fn tell_all(&self, notice: Notice) {
        let watchers = self.shared.lock().watchers.clone();
        for wake in watchers {
            wake.notify(notice);
        }
    }

    /// Asks in another way than was meant.
    fn admit_askew(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        let mut askew = ask.clone();
        let mut shared = self.shared.lock();
        let ones = vec![1; ask.costs.len()];
        let rules;
        match self.fault {
            Fault::CostsAreOne => askew.costs = &ones,
            Fault::OneAtATime => askew.costs = &ask.costs[..ask.costs.len().min(1)],
            Fault::LimitsOfTheFirst if ask.rules.len() == 1 => {
                rules = shared.first_rules.get_or_insert_with(|| ask.rules.clone()).clone();
                if rules.key(0) == ask.rules.key(0) && rules.largest_cost() >= ask.rules.largest_cost() {
                    askew.rules = &rules;
                }
            }
            Fault::SlotLimitOfTheFirst => {
                if let Some(slots) = &mut askew.slots {
                    slots.limit = *shared.first_limit.get_or_insert(slots.limit);
                }
            }
            Fault::SlotsAreLeftOut => askew.slots = None,
            Fault::LeasesStay => {
                if let Some(slots) = &mut askew.slots {
                    slots.ttl *= 1_000;
                }
            }
            Fault::LeasesEndEarly => {
                if let Some(slots) = &mut askew.slots {
                    slots.ttl -= Duration::from_micros(1);
                }
            }
            Fault::FencesIgnoreTheFloor => {
                if let Some(slots) = &mut askew.slots {
                    slots.floor = 0;
                }
            }
            Fault::ReleasesLater => {
                let earlier = std::mem::replace(&mut shared.later, ask.releases.to_vec());
                askew.releases = &earlier;
                return self.inner.admit(&askew, answer);
            }
            Fault::ReleasesIfGranted if !ask.releases.is_empty() => {
                self.inner.admit(&askew, answer)?;
                if answer.granted == 0 {
                    // It never happened.
                    let leases: Vec<_> = ask.releases.to_vec();
                    shared.taken.extend(leases);
                }
                return Ok(());
            }
            _ => {}
        }
        drop(shared);
        self.inner.admit(&askew, answer)
    }

    /// Spoils an answer, or what it left behind.
    fn spoil(&self, ask: &Ask<'_>, answer: &mut Answer) {
        let mut shared = self.shared.lock();
        let refused = answer.refusal.is_some();
        match self.fault {
            Fault::StampsGoBack => {
                shared.pauses += 1;
                answer.at -= u64::from(shared.pauses % 3 == 0 && ask.rules.is_empty() && answer.at > 0);
            }
            Fault::StampsStand if ask.rules.is_empty() => {
                shared.last_at = shared.last_at.max(answer.at / 8_192 * 8_192);
                answer.at = shared.last_at;
            }
            Fault::SkipsTheRefused
                if refused && ask.costs.len() > answer.granted + 1 && ask.slots.is_none() =>
            {
                let rest = &ask.costs[answer.granted + 1..];
                answer.granted += self.also(&Ask::new(ask.rules, rest)).granted;
            }
            Fault::RefusalsCost if refused && ask.costs.len() > 1 => {
                self.also(&Ask::new(ask.rules, &[1]));
            }
            Fault::FirstRuleIsSpent if refused && ask.rules.len() > 1 => {
                if let Some(burst) = ask.rules.burst(0) {
                    let rule: Rule =
                        Rule::gcra(ask.rules.limit(0), ask.rules.interval(0)).burst(burst).into();
                    self.also(&Ask::new(&RuleSet::new(vec![rule]).unwrap(), &[1]));
                }
            }
            Fault::HintsAreShort => {
                if let Some((_, hint)) = answer.refusal.as_mut().and_then(|refusal| refusal.rate.as_mut()) {
                    *hint -= Duration::from_micros(1);
                }
            }
            Fault::HintsAreMilliseconds => {
                if let Some((_, hint)) = answer.refusal.as_mut().and_then(|refusal| refusal.rate.as_mut()) {
                    *hint = Duration::from_millis(hint.as_micros().div_ceil(1_000) as u64);
                }
            }
            Fault::SlotsAreForOne if ask.slots.is_some() && answer.granted > 1 => {
                let slots = ask.slots.unwrap();
                self.inner.release(&slots.tokens[1..answer.granted]).unwrap();
            }
            Fault::RefusedHold if refused && ask.slots.is_some() => {
                let mut more = ask.clone();
                let mut slots = ask.slots.unwrap();
                slots.limit = u32::MAX;
                slots.tokens = &slots.tokens[answer.granted..];
                (more.slots, more.costs) = (Some(slots), &ask.costs[answer.granted..]);
                self.also(&more);
            }
            Fault::SlotlessSpend if refused && ask.slots.is_some() && !ask.rules.is_empty() => {
                self.also(&Ask::new(ask.rules, &[1]));
            }
            Fault::FencesRepeat if answer.fence.is_some() => {
                answer.fence = Some(*shared.first_fence.get_or_insert(answer.fence.unwrap()));
            }
            _ => {}
        }
        let granted = ask.slots.map_or(&[][..], |slots| &slots.tokens[..answer.granted]);
        shared.taken.extend(granted);
    }
}

impl Counts for View {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        match self.fault {
            Fault::PausesLeakNoRules if ask.rules.is_empty() => {
                let paused = self.shared.lock().paused && ask.costs.len() > 1;
                self.inner.admit(ask, answer)?;
                if paused {
                    (answer.granted, answer.refusal) = (ask.costs.len(), None);
                }
                return Ok(());
            }
            Fault::PausesAreLocal if self.shared.lock().paused && !*self.paused.lock() => {
                self.inner.admit(ask, answer)?;
                (answer.granted, answer.refusal) = (ask.costs.len(), None);
                return Ok(());
            }
            Fault::FailsLate if ask.deadline.left().is_some_and(|left| left.is_zero()) => {
                self.inner.admit(ask, answer)?;
                return Err(StoreError::new(
                    StoreErrorKind::Timeout,
                    Executed::No,
                    "too late, or so it says",
                ));
            }
            Fault::PausesCost => {
                self.inner.admit(ask, answer)?;
                if answer.refusal.is_some_and(|refusal| refusal.pause.is_some()) && !ask.rules.is_empty() {
                    let left = answer.refusal.unwrap().pause.unwrap();
                    self.inner.resume(Deadline::never())?;
                    self.also(&Ask::new(ask.rules, &[1]));
                    self.inner.pause(left, Deadline::never())?;
                }
                return Ok(());
            }
            Fault::AnswersAreMixed => {
                let before = answer.fence;
                self.inner.admit(ask, answer)?;
                answer.fence = answer.fence.or(before);
                return Ok(());
            }
            Fault::RefusalsLinger => {
                let before = answer.refusal;
                self.inner.admit(ask, answer)?;
                let none: Option<Refusal> = None;
                answer.refusal =
                    if ask.rules.is_empty() { answer.refusal.or(before) } else { answer.refusal.or(none) };
                return Ok(());
            }
            Fault::Races => {
                // Two that decide at once do not see each other.
                let others = self.shared.lock().inside.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                self.inner.admit(ask, answer)?;
                if others > 0 {
                    (answer.granted, answer.refusal) = (ask.costs.len(), None);
                }
                self.shared.lock().inside.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
            _ => {}
        }
        self.admit_askew(ask, answer)?;
        self.spoil(ask, answer);
        Ok(())
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        match self.fault {
            Fault::PausesStopRenewals if self.shared.lock().paused => {
                held.clear();
                held.resize(leases.len(), false);
                return Ok(());
            }
            Fault::RenewsNothing => {
                let short: Vec<_> =
                    leases.iter().map(|lease| Lease { ttl: Duration::from_millis(90), ..*lease }).collect();
                return self.inner.renew(&short, deadline, held);
            }
            Fault::HeldIsMixed => {
                let mut fresh = Vec::new();
                self.inner.renew(leases, deadline, &mut fresh)?;
                held.extend(fresh);
                return Ok(());
            }
            Fault::ReleasesIfGranted => {
                self.inner.renew(leases, deadline, held)?;
                let kept = &self.shared.lock().taken;
                for (lease, held) in leases.iter().zip(held) {
                    *held |= kept.ends_with(&[lease.token]);
                }
                return Ok(());
            }
            _ => {}
        }
        self.inner.renew(leases, deadline, held)?;
        let taken = self.shared.lock().taken.clone();
        for (lease, held) in leases.iter().zip(held) {
            let ended = taken.contains(&lease.token) && !*held;
            match self.fault {
                Fault::RenewsAnything => *held = true,
                Fault::Revives if ended && lease.ttl < Duration::from_secs(1) => {
                    let (no_rules, tokens) = (RuleSet::default(), [lease.token]);
                    let mut ask = Ask::new(&no_rules, &[1]);
                    ask.slots = Some(valve::Slots::new(u32::MAX, lease.ttl, &tokens));
                    self.also(&ask);
                    *held = true;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let taken = self.shared.lock().taken.clone();
        let all = self.fault == Fault::ReleasesAll && !tokens.is_empty();
        self.inner.release(if all { &taken } else { tokens })
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        let before = self.shared.lock().paused;
        self.shared.lock().paused = true;
        *self.paused.lock() = true;
        match self.fault {
            Fault::PausesReplace => self.inner.resume(Deadline::never())?,
            Fault::NoticesGoAround => self.tell_all(Notice::Paused),
            _ => {}
        }
        let longer = match self.fault {
            Fault::PausesEndEarly => length.saturating_sub(Duration::from_micros(1)),
            Fault::PausesAdd if before => length + Duration::from_secs(100),
            _ => length,
        };
        self.inner
            .pause(longer, deadline)
            .map(|left| if self.fault == Fault::PausesEndEarly { length } else { left })
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        match self.fault {
            Fault::ResumeOfTheFirstOnly if !*self.paused.lock() && self.shared.lock().paused => return Ok(()),
            Fault::ResumeShortens if !self.first => {
                self.inner.resume(deadline)?;
                return self.inner.pause(Duration::from_micros(1), Deadline::never()).map(drop);
            }
            Fault::NoticesLie => self.tell_all(Notice::Released),
            _ => {}
        }
        self.shared.lock().paused = false;
        self.inner.resume(deadline)
    }
}
