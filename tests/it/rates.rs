//! What the rules promise of amounts: how many units may start in how much time, by the store's stamps.

use valve::testing::ManualClock;
use valve::{Blocked, Error, MemoryStore, Rule, Valve};

use crate::support::{
    Call, Jobs, MILLISECOND, Random, SECOND, call, closest, micros, most_in_any, ms, saturate, secs, stamp,
    start_now, units_in, us, wait_of, with_and_without_lock,
};

fn valve(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> Valve {
    rules.into_iter().fold(Valve::builder("id").clock(clock), valve::ValveBuilder::rule).build().unwrap()
}

/// Lets `jobs` call at once and waits a virtual day: their stamps.
fn flood(clock: &ManualClock, valve: &Valve, jobs: usize) -> Vec<u64> {
    let log = Jobs::new(clock);
    for number in 0..jobs {
        log.spawn(valve, call(number.to_string()));
    }
    clock.advance(secs(24 * 3_600));
    log.stamps()
}

/// V01: not when a job was asked for, nor when it ends.
#[test]
fn units_count_at_the_stamp_of_their_grant() {
    let clock = ManualClock::new();
    let valve = valve(&clock, [Rule::fixed_window(5, secs(30)).into()]);
    let jobs = Jobs::new(&clock);
    clock.advance(secs(10));
    jobs.spawn(&valve, Call { cost: 3, lasts: secs(89), ..call("until 99 s") });
    clock.advance(secs(5));
    jobs.spawn(&valve, Call { cost: 2, ..call("fits beside it") });
    jobs.spawn(&valve, Call { cost: 5, ..call("waits for the next window") });
    clock.advance(secs(84));
    assert_eq!(jobs.stamps(), [10 * SECOND, 15 * SECOND, 30 * SECOND]);
    assert_eq!(jobs.ends().last().unwrap().0, "until 99 s");
    assert_eq!(start_now(&valve, 5), 99 * SECOND);
}

/// V02.
#[test]
fn a_rate_does_not_bound_what_is_running() {
    let clock = ManualClock::new();
    let valve = valve(&clock, [Rule::gcra(10, secs(1)).into()]);
    let jobs = Jobs::new(&clock);
    for number in 0..30 {
        jobs.spawn(&valve, Call { lasts: secs(60), ..call(number.to_string()) });
    }
    clock.advance(secs(1) - us(1));
    assert_eq!(valve.stats().running, 10);
    clock.advance(secs(1));
    assert_eq!(valve.stats().running, 20);
}

/// V04: the default burst is 1, also for a valve that was never used.
#[test]
fn without_a_burst_idle_time_earns_nothing() {
    for used_before in [false, true] {
        let clock = ManualClock::new();
        let valve = valve(&clock, [Rule::gcra(10, secs(1)).into()]);
        if used_before {
            valve.run(|| ()).unwrap();
        }
        clock.advance(secs(3_600));
        let hour = 3_600 * SECOND;
        assert_eq!(flood(&clock, &valve, 2), [hour, hour + 100 * MILLISECOND], "used before: {used_before}");
    }
}

/// V05: saturated for a virtual hour by one caller, and for some minutes by callers who wait.
#[test]
fn burst_one_keeps_the_limit_in_any_interval() {
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1))) {
        let starts = saturate(&clock, &valve, 1, 3_600 * SECOND);
        assert_eq!(starts.len(), 36_000);
        assert_eq!(most_in_any(&starts, SECOND), 10);
    }
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (limit, interval) = (random.cost(40), SECOND * (1 + random.below(20)));
        for (clock, valve) in with_and_without_lock(Rule::gcra(limit, us(interval))) {
            let jobs = Jobs::new(&clock);
            jobs.crowd(&valve, 3, 1, 3 * interval);
            clock.advance(us(4 * interval));
            let most = most_in_any(&jobs.units(), interval);
            assert_eq!(most, u64::from(limit), "seed {seed}: {limit} in {interval} us");
        }
    }
}

/// V06: waiting the hint grants, one tick less does not, and the hint is the exact fraction rounded up.
#[test]
fn spacing_is_never_under_the_exact_fraction() {
    check_spacing(10, SECOND, 100_000);
    check_spacing(3, SECOND, 333_334);
    check_spacing(7, SECOND, 142_858);
    check_spacing(300, SECOND, 3_334);
    check_spacing(11, 60 * SECOND, 5_454_546);
    check_spacing(999_999, SECOND, 2);
}

#[track_caller]
fn check_spacing(limit: u32, interval: u64, spacing: u64) {
    let exact = spacing * u64::from(limit) >= interval && (spacing - 1) * u64::from(limit) < interval;
    assert!(exact, "the table is wrong: {interval} / {limit}");
    for (clock, valve) in with_and_without_lock(Rule::gcra(limit, us(interval))) {
        for _ in 0..5 {
            start_now(&valve, 1);
            assert_eq!(wait_of(&valve.try_acquire().unwrap_err()), us(spacing));
            clock.advance(us(spacing - 1));
            assert_eq!(wait_of(&valve.try_acquire().unwrap_err()), us(1));
            clock.advance(us(1));
        }
        let jobs = Jobs::new(&clock);
        jobs.crowd(&valve, 2, 1, micros(clock.now()) + 20 * spacing);
        clock.advance(us(30 * spacing));
        assert!(jobs.starts().len() > 20);
        assert_eq!(closest(&jobs.units()), spacing, "{limit} in {interval} us");
    }
}

/// V07: the table of the promise, then any limits, costs and arrivals.
#[test]
fn a_burst_adds_its_size_less_one() {
    let clock = ManualClock::new();
    let flooded = flood(&clock, &valve(&clock, [Rule::gcra(10, secs(1)).burst(5).into()]), 40);
    let expected: Vec<_> = [0; 5].into_iter().chain((1..36).map(|step| step * 100 * MILLISECOND)).collect();
    assert_eq!(flooded, expected);
    let starts: Vec<_> = flooded.into_iter().map(|at| (at, 1)).collect();
    assert_eq!((units_in(&starts, 0, SECOND), most_in_any(&starts, SECOND)), (14, 14));

    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (limit, burst) = (random.cost(20), random.cost(10));
        let bound = u64::from(limit + burst - 1);
        for (clock, valve) in with_and_without_lock(Rule::gcra(limit, secs(1)).burst(burst)) {
            let mut starts = Vec::new();
            for _ in 0..100 {
                let cost = random.cost(burst);
                if let Ok(permit) = valve.job().cost(cost).try_acquire() {
                    starts.push((stamp(permit.admitted_at()), cost));
                }
                clock.advance(us(random.below(2 * SECOND / u64::from(limit))));
            }
            let most = most_in_any(&starts, SECOND);
            assert!(most <= bound, "seed {seed}: {most} units in a second of at most {bound}");
        }
    }
}

/// V08: what starts as a window ends belongs to the next.
#[test]
fn the_interval_is_half_open() {
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1)).burst(5)) {
        let starts: Vec<_> = flood(&clock, &valve, 24).into_iter().map(|at| (at, 1)).collect();
        assert_eq!(starts[14].0, SECOND);
        assert_eq!(units_in(&starts, 0, SECOND), 14);
        assert_eq!(units_in(&starts, 1, SECOND + 1), 10);
        assert_eq!(units_in(&starts, SECOND, 2 * SECOND), 10);
    }
    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1)).burst(5)) {
        assert_eq!(saturate(&clock, &valve, 1, SECOND).len(), 14);
        assert_eq!(start_now(&valve, 1), SECOND);
    }
}

/// V09: windows begin at multiples of the interval, whenever the first call comes.
#[test]
fn fixed_windows_are_aligned_to_the_clock() {
    check_window(5, SECOND, 700 * MILLISECOND, SECOND);
    check_window(1, SECOND, 0, SECOND);
    check_window(3, SECOND, SECOND - 1, SECOND);
    check_window(3, SECOND, SECOND, 2 * SECOND);
    check_window(2, 7 * SECOND, 8 * SECOND, 14 * SECOND);
    check_window(4, 3_600 * SECOND, 5_000 * SECOND, 7_200 * SECOND);
}

#[track_caller]
fn check_window(limit: u32, interval: u64, first_call: u64, next_window: u64) {
    let clock = ManualClock::new();
    let valve = valve(&clock, [Rule::fixed_window(limit, us(interval)).into()]);
    clock.advance(us(first_call));
    let limit = limit as usize;
    let stamps = flood(&clock, &valve, 2 * limit + 1);
    assert!(stamps[..limit].iter().all(|at| *at == first_call), "{stamps:?}");
    assert!(stamps[limit..2 * limit].iter().all(|at| *at == next_window), "{stamps:?}");
    assert_eq!(stamps[2 * limit], next_window + interval);
}

/// V10.
#[test]
fn adjoining_windows_may_pass_twice_the_limit() {
    let clock = ManualClock::new();
    let valve = valve(&clock, [Rule::fixed_window(5, secs(1)).into()]);
    clock.advance(ms(999));
    for _ in 0..2 {
        for _ in 0..5 {
            start_now(&valve, 1);
        }
        assert!(valve.try_acquire().is_err());
        clock.advance(ms(1));
    }
    assert_eq!(valve.stats().started, 10);
}

/// V11.
#[test]
fn several_rules_hold_each_by_itself() {
    let gcra: Rule = Rule::gcra(10, secs(1)).burst(10).into();
    let window: Rule = Rule::fixed_window(12, secs(60)).into();
    for rules in [[gcra.clone(), window.clone()], [window, gcra]] {
        let clock = ManualClock::new();
        let stamps = flood(&clock, &valve(&clock, rules), 25);
        let minute = 60 * SECOND;
        let mut expected = vec![0; 10];
        expected.extend([100 * MILLISECOND, 200 * MILLISECOND]);
        expected.extend([minute; 10]);
        expected.extend([minute + 100 * MILLISECOND, minute + 200 * MILLISECOND, 2 * minute]);
        assert_eq!(stamps, expected);
    }
}

/// V12: a valve that shares the first rule alone sees what the refusals left of it, beside one without any refusal.
#[test]
fn a_refusal_leaves_every_rule_untouched() {
    let left_after = |refusals: usize| {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(&clock).build();
        let shared = || Rule::gcra(3, secs(1)).burst(3);
        let builder = || Valve::builder("id").rule(shared()).store(store.clone());
        let both = builder().rule(Rule::fixed_window(1, secs(60))).build().unwrap();
        let first_alone = builder().build().unwrap();
        start_now(&both, 1);
        for _ in 0..refusals {
            assert_eq!(wait_of(&both.try_acquire().unwrap_err()), secs(60));
        }
        for _ in 0..2 {
            start_now(&first_alone, 1);
        }
        wait_of(&first_alone.try_acquire().unwrap_err())
    };
    assert_eq!(left_after(0), us(333_334));
    assert_eq!(left_after(100), us(333_334));

    let clock = ManualClock::new();
    let window_first = [Rule::fixed_window(2, secs(60)).into(), Rule::gcra(1, secs(1)).into()];
    let valve = valve(&clock, window_first);
    start_now(&valve, 1);
    for _ in 0..100 {
        assert_eq!(wait_of(&valve.try_acquire().unwrap_err()), secs(1));
    }
    clock.advance(secs(1));
    start_now(&valve, 1);
}

/// V13.
#[test]
fn rates_count_cost() {
    let clock = ManualClock::new();
    let window = valve(&clock, [Rule::fixed_window(5, secs(1)).named("five").into()]);
    let jobs = Jobs::new(&clock);
    match window.job().cost(0).try_acquire() {
        Err(Error::Invalid { field, .. }) => assert_eq!(field, "cost"),
        other => panic!("{other:?}"),
    }
    match window.job().cost(6).run(|_| ()) {
        Err(Error::CostTooLarge { cost: 6, max: 5, rule, .. }) => assert_eq!(rule, "five"),
        other => panic!("{other:?}"),
    }
    for name in ["first", "second", "third"] {
        jobs.spawn(&window, Call { cost: 2, ..call(name) });
    }
    clock.advance(secs(3));
    assert_eq!(jobs.stamps(), [0, 0, SECOND]);

    for (clock, valve) in with_and_without_lock(Rule::gcra(10, secs(1)).burst(5)) {
        start_now(&valve, 3);
        match valve.job().cost(3).try_acquire() {
            Err(Error::WouldWait { retry_after, blocked_by: Blocked::Rate { rule, .. }, .. }) => {
                assert_eq!((retry_after, &*rule), (Some(ms(100)), "gcra/1s"));
            }
            other => panic!("{other:?}"),
        }
        start_now(&valve, 2);
        clock.advance(ms(300));
        start_now(&valve, 3);
        assert_eq!(wait_of(&valve.try_acquire().unwrap_err()), ms(100));
    }
}
