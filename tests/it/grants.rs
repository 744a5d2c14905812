//! What becomes of a grant whose job has given up meanwhile: it is spent, nobody else's, and no bound suffers.

use std::time::Duration;

use valve::testing::ManualClock;
use valve::{CancelToken, Error, Rule, Valve};

use crate::support::{
    Call, Jobs, MILLISECOND, Random, SECOND, Scripted, Step, call, closest, most_in_any, ms, secs, us,
};

/// V33: granted at 0, given up at 10 ms, told at 50 ms. However a wait ends, it ends at once.
#[test]
fn a_job_cancelled_during_its_ask_pays_and_does_not_run() {
    check_end(Duration::MAX, |_, token| token.cancel(), |error| matches!(error, Error::Cancelled));
    check_end(ms(10), |_, _| {}, |error| matches!(error, Error::Timeout { .. }));
    check_end(Duration::MAX, |valve, _| valve.close(), |error| matches!(error, Error::Closed));
}

#[track_caller]
fn check_end(max_wait: Duration, end: impl FnOnce(&Valve, &CancelToken), ended: impl Fn(&Error) -> bool) {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.next([Step { after: ms(50), ..Step::AT_ONCE }]);
    let build = || {
        let builder = Valve::builder("id").rule(Rule::gcra(1, secs(1))).concurrency(1);
        builder.store(store.clone()).build().unwrap()
    };
    let valve = build();
    let jobs = Jobs::new(&clock);
    let given_up = Call { max_wait, cancellable: true, ..call("gives up") };
    let token = given_up.token.clone();
    jobs.spawn(&valve, given_up);
    clock.advance(ms(5));
    jobs.spawn(&valve, call("waits behind it"));
    clock.advance(ms(5));
    end(&valve, &token);
    clock.settle();
    match &jobs.ends()[..] {
        [(name, Err(error)), ..] if name == "gives up" => assert!(ended(error), "{error:?}"),
        other => panic!("it did not end at once: {other:?}"),
    }
    assert_eq!(store.granted(), [(0, 1)]);
    if let Err(Error::Closed) = valve.try_acquire() {
        jobs.spawn(&build(), call("waits on another valve"));
    }
    clock.advance(secs(10));
    assert_eq!(jobs.stamps(), [SECOND], "the one behind it starts when the rule allows, not in its place");
    assert_eq!(store.granted(), [(0, 1), (SECOND, 1)]);
    assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
}

/// V35 and O39.
#[test]
fn cancelled_grants_never_break_a_bound() {
    taken_over_by_nobody();
    fifty_cancelled_one_after_the_other();
    let wasted: usize = (0..15).map(cancelled_at_random).sum();
    assert!(wasted > 20, "{wasted} grants came too late: hardly a test");
}

/// The window has room for the dear job only where nothing was spent before it.
fn taken_over_by_nobody() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.then(Step { after: ms(50), ..Step::AT_ONCE });
    let valve =
        Valve::builder("id").rule(Rule::fixed_window(5, secs(1))).store(store.clone()).build().unwrap();
    let jobs = Jobs::new(&clock);
    let cheap = Call { cancellable: true, ..call("cheap") };
    let token = cheap.token.clone();
    jobs.spawn(&valve, cheap);
    jobs.spawn(&valve, Call { cost: 5, ..call("dear") });
    clock.advance(ms(10));
    token.cancel();
    clock.advance(secs(5));
    assert_eq!(store.granted(), [(0, 1), (SECOND, 5)]);
    assert_eq!(jobs.units(), [(SECOND, 5)]);
}

fn fifty_cancelled_one_after_the_other() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.then(Step { after: ms(50), ..Step::AT_ONCE });
    let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store.clone()).build().unwrap();
    let jobs = Jobs::new(&clock);
    for number in 0..50 {
        let job = Call { cancellable: true, ..call(number.to_string()) };
        let token = job.token.clone();
        jobs.spawn(&valve, job);
        // The answer of an ask that grants is on its way.
        while store.granted().len() == number {
            clock.advance(ms(10));
        }
        token.cancel();
    }
    assert_eq!(jobs.starts(), []);
    jobs.spawn(&valve, call("last"));
    clock.advance(secs(10));
    let granted = store.granted();
    assert_eq!((granted.len(), jobs.starts().len()), (51, 1));
    assert!(closest(&granted) >= 100 * MILLISECOND);
    assert!(most_in_any(&granted, SECOND) <= 10);
    assert_eq!(valve.stats().cancelled, 50);
}

/// Two valves on one slow store; half of the jobs are cancelled, half have a deadline. How many grants came too late.
fn cancelled_at_random(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let (limit, burst) = (random.cost(20), random.cost(5));
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let slow = Step {
        before: us(random.below(50 * MILLISECOND)),
        after: us(random.below(50 * MILLISECOND)),
        ..Step::AT_ONCE
    };
    store.then(slow);
    let valves = [0, 1].map(|_| {
        let builder = Valve::builder("id").rule(Rule::gcra(limit, secs(1)).burst(burst));
        builder.concurrency(3).store(store.clone()).build().unwrap()
    });
    let jobs = Jobs::new(&clock);
    for number in 0..40 {
        let valve = &valves[random.below(2) as usize];
        let gives_up = us(1 + random.below(300 * MILLISECOND));
        let mut job = Call {
            cost: random.cost(burst),
            priority: random.below(3) as i32,
            lasts: us(random.below(50 * MILLISECOND)),
            ..call(number.to_string())
        };
        if random.below(2) == 0 {
            job.cancellable = true;
            let (clock, token) = (clock.clone(), job.token.clone());
            clock.clone().spawn("canceller", move || {
                clock.sleep(gives_up);
                token.cancel();
            });
        } else {
            job.max_wait = 4 * gives_up;
        }
        jobs.spawn(valve, job);
        clock.advance(us(random.below(60 * MILLISECOND)));
    }
    clock.advance(secs(3_600));
    let (granted, started) = (store.granted(), jobs.units());
    let bound = u64::from(limit + burst - 1);
    assert!(most_in_any(&granted, SECOND) <= bound, "seed {seed}: {granted:?}");
    assert_eq!(jobs.ends().len(), 40, "seed {seed}");
    let mut spent = granted;
    for start in started {
        let paid = spent.iter().position(|grant| *grant == start);
        spent.remove(paid.unwrap_or_else(|| panic!("seed {seed}: {start:?} started on nobody's grant")));
    }
    for valve in valves {
        assert_eq!((valve.stats().running, valve.stats().queued), (0, 0), "seed {seed}");
    }
    spent.len()
}
