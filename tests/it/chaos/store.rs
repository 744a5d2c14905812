//! What a `ChaosStore` does to single calls: how each fault looks to the caller, and what the store inside sees of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::{ChaosStore, ManualClock};
use valve::{
    Answer, Ask, Counts, Deadline, Executed, Lease, MemoryStore, Remote, Rule, RuleSet, Slots, Store,
    StoreError, StoreErrorKind, Token, Valve,
};

use crate::support::ms;

const TIMEOUT: Duration = Duration::from_millis(100);
const TTL: Duration = Duration::from_secs(60);

/// A store inside, and one around it that is about to have trouble. The one inside counts what reaches it.
struct Pair {
    clock: ManualClock,
    inner: ChaosStore,
    outer: ChaosStore,
}

fn pair(seed: u64) -> Pair {
    let clock = ManualClock::new();
    let inner = ChaosStore::new(MemoryStore::builder().clock(&clock).build(), 0);
    let outer = ChaosStore::new(inner.clone(), seed).served_by(Remote::new(1, TIMEOUT).unwrap());
    Pair { clock, inner, outer }
}

impl Pair {
    /// Makes calls on a participant, and lets all that follows happen; what came of them, and how long they took.
    fn calls<T: Send + 'static>(
        &self,
        calls: impl FnOnce(&dyn Counts) -> T + Send + 'static,
    ) -> (T, Duration) {
        let (clock, counts) = (self.clock.clone(), self.outer.open("id").unwrap());
        let caller = self.clock.spawn("caller", move || {
            let begun = clock.now();
            let result = calls(&*counts);
            (result, clock.now() - begun)
        });
        self.clock.advance(Duration::from_secs(3));
        caller.join().unwrap()
    }

    fn held(&self) -> usize {
        let counts = self.inner.open("id").unwrap();
        let free = admit(&*counts, 10, 1_000, &[]).unwrap().granted;
        counts
            .release(&[1_000, 1_001, 1_002, 1_003, 1_004, 1_005, 1_006, 1_007, 1_008, 1_009].map(Token))
            .unwrap();
        10 - free
    }
}

/// Asks for `count` of 10 slots, under names that begin at `first`.
fn admit(counts: &dyn Counts, count: usize, first: u128, releases: &[Token]) -> Result<Answer, StoreError> {
    let rules = RuleSet::new(Vec::new()).unwrap();
    let tokens: Vec<_> = (0..count as u128).map(|number| Token(first + number)).collect();
    let costs = vec![1; count];
    let mut ask = Ask::new(&rules, &costs);
    ask.slots = Some(Slots::new(10, TTL, &tokens));
    ask.releases = releases;
    let mut answer = Answer::default();
    counts.admit(&ask, &mut answer).map(|()| answer)
}

/// Asks for a slot while this is wrong: how the caller is answered and when, and how many slots are then held.
#[track_caller]
fn check(
    wrong: impl FnOnce(ChaosStore) -> ChaosStore,
    answer: Result<(), (StoreErrorKind, Executed)>,
    held: usize,
) {
    let mut pair = pair(1);
    pair.outer = wrong(pair.outer.clone());
    let (result, took) =
        pair.calls(|counts| admit(counts, 1, 0, &[]).map(|answer| assert_eq!(answer.granted, 1)));
    assert_eq!(result.map_err(|error| (error.kind(), error.executed())), answer);
    let at_deadline = matches!(answer, Err((StoreErrorKind::Timeout, _)));
    assert_eq!(took, if at_deadline { TIMEOUT } else { Duration::ZERO });
    assert_eq!(pair.held(), held);
    assert_eq!(pair.outer.asks(), 1);
}

#[test]
fn each_fault_looks_as_it_does_on_a_network() {
    let no_reply = Err((StoreErrorKind::Timeout, Executed::Unknown));
    check(|store| store, Ok(()), 1);
    check(|store| store.errors(1_000), Err((StoreErrorKind::Unreachable, Executed::No)), 0);
    check(|store| store.lost_replies(1_000), no_reply, 1);
    check(|store| store.late(1_000), no_reply, 0);
    check(|store| store.late(1_000).not_after(false), no_reply, 1);
    let down = |store: ChaosStore| {
        store.set_down(true);
        store
    };
    check(down, Err((StoreErrorKind::Unreachable, Executed::No)), 0);
    let healed = |store: ChaosStore| {
        store.set_down(true);
        store.heal();
        store
    };
    check(|store| healed(store.errors(1_000).lost_replies(1_000).late(1_000).delays(ms(500))), Ok(()), 1);
}

#[test]
fn releases_count_however_late_they_come() {
    let pair = pair(1);
    let (taken, _) = pair.calls(|counts| admit(counts, 2, 0, &[]).unwrap().granted);
    assert_eq!((taken, pair.held()), (2, 2));
    pair.outer.clone().late(1_000);
    let (result, took) = pair.calls(|counts| {
        let own = counts.release(&[Token(0)]);
        (own, admit(counts, 1, 5, &[Token(1)]))
    });
    assert!(result.0.is_err() && result.1.is_err());
    assert_eq!((took, pair.held()), (2 * TIMEOUT, 0));
}

#[test]
fn a_doubled_release_reaches_the_store_twice() {
    let pair = pair(1);
    pair.outer.clone().doubled_releases(1_000);
    let (result, _) = pair.calls(|counts| {
        counts.release(&[Token(0)])?;
        admit(counts, 1, 5, &[Token(1)])
    });
    assert_eq!(result.unwrap().granted, 1);
    assert_eq!((pair.outer.releases(), pair.inner.releases()), (1, 3));
}

#[test]
fn the_same_seed_gives_the_same_trouble() {
    let course = |seed| {
        let pair = pair(seed);
        pair.outer.clone().delays(ms(60)).errors(100).late(100).lost_replies(100);
        let clock = pair.clock.clone();
        let calls = move |counts: &dyn Counts| {
            let call = || (counts.resume(Deadline::never()).err().map(|error| error.kind()), clock.now());
            (0..20).map(|_| call()).collect::<Vec<_>>()
        };
        pair.calls(calls).0
    };
    assert_eq!(course(1), course(1));
    assert_ne!(course(1), course(2));
}

#[test]
fn nothing_begins_or_returns_in_a_freeze() {
    let pair = pair(1);
    pair.outer.clone().delays(ms(1));
    let (clock, counts) = (pair.clock.clone(), pair.outer.open("id").unwrap());
    let early = pair.clock.spawn("early", move || {
        let result = admit(&*counts, 1, 0, &[]).map(|answer| answer.at);
        let later = counts.resume(Deadline::never()).map(|()| clock.now());
        (result, later)
    });
    pair.clock.settle();
    pair.outer.freeze(ms(1_000));
    pair.outer.freeze(ms(10));
    pair.clock.advance(ms(999));
    assert_eq!(pair.held(), 1, "what was on its way has arrived");
    pair.clock.advance(ms(1_000));
    let (admitted_at, resumed) = early.join().unwrap();
    assert!(admitted_at.unwrap() <= 1_000);
    assert!(resumed.unwrap() >= ms(1_000));
}

#[test]
fn without_faults_every_answer_is_that_of_the_store_inside() {
    let story = |counts: &dyn Counts| {
        let mut told = vec![format!("{:?}", admit(counts, 2, 0, &[]))];
        told.push(format!("{:?}", admit(counts, 9, 10, &[Token(1)])));
        let leases = [0, 1, 10].map(|token| Lease { token: Token(token), ttl: TTL });
        let mut held = Vec::new();
        told.push(format!("{:?}", counts.renew(&leases, Deadline::never(), &mut held)));
        told.push(format!("{held:?} {:?}", counts.release(&[Token(10), Token(99)])));
        told.push(format!("{:?}", counts.pause(ms(500), Deadline::never())));
        told.push(format!("{:?}", admit(counts, 1, 30, &[])));
        told.push(format!("{:?}", counts.resume(Deadline::never())));
        let rules = RuleSet::new(vec![Rule::gcra(1, ms(700)).into()]).unwrap();
        let mut answer = Answer::default();
        told.push(format!("{:?}", counts.admit(&Ask::new(&rules, &[1, 1]), &mut answer).map(|()| answer)));
        told
    };
    let (through, took) = pair(1).calls(story);
    let plain = MemoryStore::builder().clock(&ManualClock::new()).build();
    assert_eq!(through, story(&*plain.open("id").unwrap()));
    assert_eq!(took, Duration::ZERO);
}

/// How long a waiter waits for a slot that another valve frees after 10 ms.
fn waits(lost_notices: u32, down: bool) -> Duration {
    let Pair { clock, outer, .. } = pair(1);
    let outer = outer.lost_notices(lost_notices);
    let valve = || Valve::builder("id").global_concurrency(1, TTL).store(outer.clone()).build().unwrap();
    let (holder, waiter) = (valve(), valve());
    let (at, its) = (clock.clone(), outer.clone());
    let holds = clock.spawn("holder", move || {
        let permit = holder.acquire().unwrap();
        at.sleep(ms(10));
        drop(permit);
        at.sleep(ms(1));
        its.set_down(false);
    });
    let started = Arc::new(Mutex::new(Duration::MAX));
    let (at, note) = (clock.clone(), Arc::clone(&started));
    let waits = clock.spawn("waiter", move || waiter.run(|| *note.lock() = at.now()));
    clock.settle();
    outer.set_down(down);
    clock.advance(Duration::from_secs(3));
    holds.join().unwrap();
    waits.join().unwrap().unwrap();
    *started.lock()
}

#[test]
fn a_lost_notice_is_made_up_for_by_asking_again() {
    assert_eq!(waits(0, false), ms(11), "the release is sent within 1 ms, and tells");
    // This store says that it tells nothing: the valve asks often.
    assert!((ms(50)..=ms(60)).contains(&waits(1_000, false)), "{:?}", waits(1_000, false));
    // This one says that it tells, and loses nearly all: the valve asks once a second.
    assert!((ms(990)..=ms(1_000)).contains(&waits(999, false)), "{:?}", waits(999, false));
    assert!(!pair(1).outer.lost_notices(1_000).notifies());
    assert!(pair(1).outer.lost_notices(999).notifies());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this is about the machine's clock")]
fn on_the_machines_clock_a_lost_reply_takes_until_the_deadline() {
    let store =
        ChaosStore::new(MemoryStore::new(), 1).served_by(Remote::new(1, ms(20)).unwrap()).lost_replies(1_000);
    let counts = store.open("id").unwrap();
    let begun = std::time::Instant::now();
    let error = admit(&*counts, 1, 0, &[]).unwrap_err();
    assert_eq!(error.executed(), Executed::Unknown);
    assert!(begun.elapsed() >= ms(20));
    store.heal();
    assert_eq!(admit(&*counts, 10, 10, &[]).unwrap().granted, 9);
}
