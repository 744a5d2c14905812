//! What the rules promise of instants: from when spacing counts, when a waiting job asks again, and what a start is.

use valve::testing::ManualClock;
use valve::{MemoryStore, Rule, Valve};

use crate::support::{
    Call, Jobs, MILLISECOND, Random, Reply, SECOND, Scripted, Start, Step, call, closest, micros,
    most_in_any, ms, saturate, secs, start_now, us, wait_of, with_and_without_lock,
};

/// The arithmetic of a GCRA rule and a window once more, in whole numbers over the limit.
struct Reference {
    limit: u64,
    interval: u64,
    burst: u64,
    /// The TAT times the limit.
    tat: u64,
    window: (u64, u64),
    counted: (u64, u64),
}

impl Reference {
    /// Whether a start at this time is allowed, which then counts.
    fn allows(&mut self, at: u64, cost: u32) -> bool {
        let cost = u64::from(cost);
        let tat = self.tat.max(at * self.limit) + cost * self.interval;
        let (window_limit, window_interval) = self.window;
        let (window, count) = match self.counted {
            (window, count) if window == at / window_interval => (window, count + cost),
            _ => (at / window_interval, cost),
        };
        (self.tat, self.counted) = (tat, (window, count));
        tat <= at * self.limit + self.burst * self.interval && count <= window_limit
    }
}

/// V14: whatever makes starts late, a slow store and slow callers included, none is early.
#[test]
fn no_start_is_before_its_rule_allows() {
    let mut started = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (limit, burst) = (random.cost(30), random.cost(4));
        let window_limit = burst + random.cost(60);
        let clock = ManualClock::new();
        let store = if seed % 2 == 0 { Scripted::local(&clock) } else { Scripted::remote(&clock) };
        let late = |random: &mut Random| us(random.below(40 * MILLISECOND));
        if seed % 2 == 1 {
            store.then(Step { before: late(&mut random), after: late(&mut random), ..Step::AT_ONCE });
        }
        let valve = Valve::builder("id")
            .rule(Rule::gcra(limit, secs(1)).burst(burst))
            .rule(Rule::fixed_window(window_limit, secs(2)))
            .store(store)
            .build()
            .unwrap();
        let jobs = Jobs::new(&clock);
        for thread in 0..4 {
            let (jobs, valve, clock) = (jobs.clone(), valve.clone(), clock.clone());
            let mut random = Random::new(1_000 * seed + thread);
            clock.clone().spawn("caller", move || {
                for _ in 0..10 {
                    clock.sleep(us(random.below(200 * MILLISECOND)));
                    jobs.run(&valve, Call { cost: random.cost(burst), ..call("job") });
                }
            });
        }
        clock.advance(secs(3_600));
        let mut reference = Reference {
            limit: limit.into(),
            interval: SECOND,
            burst: burst.into(),
            tat: 0,
            window: (window_limit.into(), 2 * SECOND),
            counted: (0, 0),
        };
        for (at, cost) in jobs.units() {
            assert!(
                reference.allows(at, cost),
                "seed {seed}: a job of cost {cost} started early, at {at} us"
            );
        }
        assert!(jobs.starts().iter().all(|start| start.seen >= start.at), "seed {seed}");
        started += jobs.starts().len();
    }
    assert_eq!(started, 40 * 40);
}

/// V15: a start that came late pushes the next one back by as much.
#[test]
fn spacing_is_measured_from_the_actual_start() {
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1))) {
        let jobs = Jobs::new(&clock);
        jobs.spawn(&valve, call("first"));
        clock.advance(ms(107));
        jobs.spawn(&valve, call("7 ms late"));
        jobs.spawn(&valve, call("third"));
        clock.advance(secs(1));
        assert_eq!(jobs.stamps(), [0, 107 * MILLISECOND, 207 * MILLISECOND]);
    }
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1))) {
        start_now(&valve, 1);
        clock.advance(ms(107));
        start_now(&valve, 1);
        assert_eq!(wait_of(&valve.try_acquire().unwrap_err()), ms(100));
    }
}

/// V16: the price of V15.
#[test]
fn small_delays_add_up() {
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1))) {
        start_now(&valve, 1);
        let mut last = 0;
        for _ in 0..100 {
            let wait = wait_of(&valve.try_acquire().unwrap_err());
            clock.advance(wait + ms(1));
            last = start_now(&valve, 1);
        }
        assert_eq!(last, 10_100 * MILLISECOND);
    }
}

/// V17: after any stall the gaps are what they were, and a burst is no greater.
#[test]
fn lateness_is_not_made_good() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let burst = if seed % 2 == 0 { 1 } else { random.cost(6) };
        for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1)).burst(burst)) {
            let jobs = Jobs::new(&clock);
            let mut starts = Vec::new();
            for _ in 0..5 {
                let now = micros(clock.now());
                starts.extend(saturate(&clock, &valve, 1, now + random.below(2 * SECOND)));
                clock.advance(us(random.below(3 * SECOND)));
                jobs.crowd(&valve, 3, 1, micros(clock.now()) + random.below(2 * SECOND));
                clock.advance(secs(4));
            }
            starts.extend(jobs.units());
            starts.sort_unstable();
            let most = most_in_any(&starts, SECOND);
            assert!(most <= u64::from(10 + burst - 1), "seed {seed}: {most} in a second with burst {burst}");
            assert!(burst > 1 || closest(&starts) >= 100 * MILLISECOND, "seed {seed}: {starts:?}");
        }
    }
}

/// V18.
#[test]
fn a_rate_is_asked_again_exactly_at_its_hint() {
    let clock = ManualClock::new();
    let store = Scripted::local(&clock);
    let valve = Valve::builder("id")
        .rule(Rule::gcra(10, secs(1)))
        .concurrency(2)
        .store(store.clone())
        .build()
        .unwrap();
    let jobs = Jobs::new(&clock);
    for number in 0..5 {
        jobs.spawn(&valve, call(number.to_string()));
    }
    clock.advance(secs(10));
    let mut sent = store.sent();
    sent.dedup();
    let expected: Vec<_> = (0..5).map(|step| step * 100 * MILLISECOND).collect();
    assert_eq!(sent, expected);
    assert_eq!(jobs.stamps(), expected);
}

/// V19: an answer after 30 ms that says "100 ms" is followed by an ask 70 ms later, one after 150 ms by an ask at once.
#[test]
fn the_time_of_a_remote_ask_comes_off_its_hint() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    let refused_after = |length| Step { reply: Reply::Refused(ms(100)), after: ms(length), ..Step::AT_ONCE };
    store.next([refused_after(30), refused_after(150)]);
    let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store.clone()).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, call("job"));
    clock.advance(secs(10));
    assert_eq!(store.sent(), [0, 100 * MILLISECOND, 250 * MILLISECOND]);
    assert_eq!(jobs.stamps(), [250 * MILLISECOND]);
}

/// V20: four valves wake for each unit of budget, and one of them gets it.
#[test]
fn waking_is_not_permission() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(&clock).build();
    let jobs = Jobs::new(&clock);
    for _ in 0..4 {
        let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store.clone()).build().unwrap();
        for number in 0..3 {
            jobs.spawn(&valve, call(number.to_string()));
        }
    }
    clock.advance(secs(10));
    let expected: Vec<_> = (0..12).map(|step| step * 100 * MILLISECOND).collect();
    assert_eq!(jobs.stamps(), expected);
}

/// V21: the first answer is 99 ms on its way, so both jobs send their requests within a millisecond.
#[test]
fn the_start_is_the_grant_not_the_closure() {
    let clock = ManualClock::new();
    let store = Scripted::remote(&clock);
    store.next([Step { after: ms(99), ..Step::AT_ONCE }]);
    let valve = Valve::builder("id").rule(Rule::gcra(10, secs(1))).store(store).build().unwrap();
    let jobs = Jobs::new(&clock);
    jobs.spawn(&valve, call("first"));
    jobs.spawn(&valve, call("second"));
    clock.advance(secs(1));
    let start = |name: &str, at: u64, seen: u64| Start {
        name: name.to_owned(),
        cost: 1,
        at: at * MILLISECOND,
        seen: seen * MILLISECOND,
    };
    assert_eq!(jobs.starts(), [start("first", 0, 99), start("second", 100, 100)]);
}
