//! Limits that change while calls wait: what holds for those who wait, what stays spent, and what never changes at all.

use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Blocked, Concurrency, Error, MemoryStore, Rule, Valve};

use crate::fleet::{Fleet, Kind, Reply, Step};
use crate::support::{Call, Jobs, MILLISECOND, SECOND, call, closest, ms, secs, start_now, us, wait_of};

fn local(limit: u32) -> Concurrency {
    Concurrency::unlimited().local(limit)
}

/// O74, with and without a second rule: the change comes between two starts.
#[test]
fn waiting_calls_follow_a_changed_rate() {
    for more in [false, true] {
        let rules = |limit| {
            let mut rules: Vec<Rule> = vec![Rule::gcra(limit, secs(1)).into()];
            if more {
                rules.push(Rule::fixed_window(1_000, secs(3600)).into());
            }
            rules
        };
        let clock = ManualClock::new();
        let builder =
            rules(10).into_iter().fold(Valve::builder("id").clock(&clock), valve::ValveBuilder::rule);
        let valve = builder.build().unwrap();
        let jobs = Jobs::new(&clock);
        for number in 0..26 {
            jobs.spawn(&valve, call(number.to_string()));
        }
        clock.advance(ms(500));
        assert_eq!(valve.stats().queued, 20);
        valve.set_rules(rules(1)).unwrap();
        clock.advance(secs(60));
        let stamps = jobs.stamps();
        assert_eq!(stamps[..6], [0, 100, 200, 300, 400, 500].map(|at| at * MILLISECOND));
        // The start at 500 ms has paid for what was then a tenth of a second.
        let after: Vec<_> = (0..20).map(|number| 600 * MILLISECOND + number * SECOND).collect();
        assert_eq!(stamps[6..], after);
        assert_eq!(jobs.order(), (0..26).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    }
}

/// The other way round: who waited for a second need not any more.
#[test]
fn waiting_calls_start_as_soon_as_a_wider_rate_lets_them() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(1, secs(10))).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    for name in ["one", "two", "three"] {
        jobs.spawn(&valve, call(name));
    }
    clock.advance(secs(1));
    assert_eq!(jobs.stamps(), [0]);
    valve.set_rules([Rule::gcra(10, secs(10)).burst(5).into()]).unwrap();
    clock.advance(secs(10));
    // Paid up to 10 s; the burst lets the next start 4 s earlier than that.
    assert_eq!(jobs.stamps(), [0, 6 * SECOND, 7 * SECOND]);
    valve.set_rules([]).unwrap();
    jobs.spawn(&valve, call("four"));
    clock.settle();
    assert_eq!(jobs.stamps().len(), 4);
}

/// What is spent stays spent under the name it was spent under, also while no rule of that name is in force.
#[test]
fn what_is_spent_stays_spent() {
    let clock = ManualClock::new();
    let window = |limit| Rule::from(Rule::fixed_window(limit, secs(60)));
    let valve = Valve::builder("id").rule(window(3)).clock(&clock).build().unwrap();
    start_now(&valve, 2);
    valve.set_rules([window(5)]).unwrap();
    start_now(&valve, 3);
    assert!(valve.try_acquire().is_err());
    valve.set_rules([]).unwrap();
    for _ in 0..10 {
        start_now(&valve, 1);
    }
    valve.set_rules([window(6)]).unwrap();
    start_now(&valve, 1);
    let refused = valve.try_acquire().map(drop).unwrap_err();
    assert_eq!(wait_of(&refused), secs(60) - clock.now());
    // Fewer than are spent already: nothing until the window ends, and no underflow.
    valve.set_rules([window(2)]).unwrap();
    assert!(valve.try_acquire().is_err());
    clock.advance(secs(60) - us(1));
    assert!(valve.try_acquire().is_err());
    clock.advance(us(1));
    start_now(&valve, 2);
    assert!(valve.try_acquire().is_err());
    // Another name, or another interval, is another count.
    valve.set_rules([Rule::fixed_window(2, secs(60)).named("else").into()]).unwrap();
    start_now(&valve, 2);
    valve.set_rules([Rule::fixed_window(2, secs(120)).into()]).unwrap();
    start_now(&valve, 2);
}

/// A GCRA rule's debt is time, whatever the new limit makes of it, and another denominator keeps it too.
#[test]
fn a_debt_is_kept_when_its_rule_changes() {
    let clock = ManualClock::new();
    let valve = Valve::builder("id").rule(Rule::gcra(7, secs(1)).burst(7)).clock(&clock).build().unwrap();
    start_now(&valve, 6);
    for limit in [3, 1_000, 11, 7, 1] {
        valve.set_rules([Rule::gcra(limit, secs(1)).into()]).unwrap();
        // Paid up to six sevenths of a second.
        let wait = wait_of(&valve.try_acquire().map(drop).unwrap_err());
        assert_eq!(wait, us(857_143), "{limit} a second");
    }
    clock.advance(us(857_142));
    assert!(valve.try_acquire().is_err());
    clock.advance(us(1));
    start_now(&valve, 1);
    assert_eq!(wait_of(&valve.try_acquire().map(drop).unwrap_err()), secs(1));
}

/// Nothing of a set that has anything wrong with it.
#[test]
fn an_invalid_set_changes_nothing() {
    let clock = ManualClock::new();
    let valve =
        Valve::builder("id").rule(Rule::gcra(1, secs(1))).concurrency(1).clock(&clock).build().unwrap();
    let jobs = Jobs::new(&clock);
    for name in ["one", "two", "three"] {
        jobs.spawn(&valve, Call { lasts: ms(1_500), ..call(name) });
    }
    clock.advance(ms(100));
    let good = || Rule::from(Rule::gcra(1_000, secs(1)));
    let bad: [Vec<Rule>; 5] = [
        vec![good(), Rule::gcra(0, secs(1)).into()],
        vec![good(), Rule::fixed_window(1, Duration::ZERO).into()],
        vec![good(), Rule::gcra(1, secs(1)).burst(0).into()],
        vec![good(), Rule::gcra(1, Duration::MAX).into()],
        (0..17).map(|number| Rule::gcra(1_000, secs(1)).named(number.to_string()).into()).collect(),
    ];
    for rules in bad {
        let refused = valve.set_rules(rules.clone());
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{rules:?}: {refused:?}");
    }
    for limits in
        [local(0), local(9).global(0, secs(1)), local(9).global(1, ms(1)), local(0).global(9, secs(1))]
    {
        let refused = valve.set_concurrency(limits);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{limits:?}: {refused:?}");
    }
    clock.advance(secs(60));
    assert_eq!(jobs.stamps(), [0, 1_500, 3_000].map(|at| at * MILLISECOND));
}

/// Ended at once, wherever they wait; the others go on in their order.
#[test]
fn costs_that_can_never_start_end_at_once() {
    let clock = ManualClock::new();
    let rule = |burst| Rule::from(Rule::gcra(10, secs(1)).burst(burst));
    let valve = Valve::builder("id").rule(rule(10)).clock(&clock).build().unwrap();
    start_now(&valve, 10);
    let jobs = Jobs::new(&clock);
    for (name, cost) in [("head", 8), ("small", 2), ("large", 3), ("least", 1), ("last", 10)] {
        jobs.spawn(&valve, Call { cost, ..call(name) });
    }
    clock.advance(ms(1));
    valve.set_rules([rule(2)]).unwrap();
    clock.settle();
    let ended = jobs.ends();
    let mut names: Vec<_> = ended.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["head", "large", "last"]);
    for (name, end) in &ended {
        let fits = |cost: u32| matches!(cost, 8 | 3 | 10);
        assert!(
            matches!(end, Err(Error::CostTooLarge { max: 2, cost, .. }) if fits(*cost)),
            "{name}: {end:?}"
        );
    }
    assert_eq!(clock.now(), ms(1));
    clock.advance(secs(60));
    assert_eq!(jobs.order(), ["small", "least"]);
    assert_eq!(jobs.stamps(), [SECOND, SECOND + 100 * MILLISECOND]);
    assert!(matches!(valve.job().cost(3).try_acquire(), Err(Error::CostTooLarge { max: 2, .. })));
    // Nothing was spent by those that ended.
    valve.set_rules([rule(10)]).unwrap();
    clock.advance(secs(60));
    start_now(&valve, 10);
}

/// What runs goes on; nothing starts until fewer run than the new limit allows.
#[test]
fn a_smaller_limit_lets_nothing_start_until_fewer_run() {
    for global in [false, true] {
        let limit =
            |limit| if global { Concurrency::unlimited().global(limit, secs(3)) } else { local(limit) };
        let clock = ManualClock::new();
        let valve = Valve::builder("id").clock(&clock).build().unwrap();
        valve.set_concurrency(limit(5)).unwrap();
        let jobs = Jobs::new(&clock);
        for number in 1..=5 {
            jobs.spawn(&valve, Call { lasts: ms(number * 100), ..call("early") });
        }
        clock.settle();
        valve.set_concurrency(limit(2)).unwrap();
        assert_eq!((clock.now(), valve.stats().running), (ms(0), 5));
        for _ in 0..3 {
            jobs.spawn(&valve, Call { lasts: ms(1_000), ..call("late") });
        }
        clock.advance(ms(399));
        assert_eq!(jobs.starts().len(), 5);
        assert!(valve.try_acquire().is_err());
        clock.advance(secs(60));
        // The fourth of the early ones leaves one running.
        assert_eq!(jobs.stamps()[5..], [400, 500, 1_400].map(|at| at * MILLISECOND), "global {global}");
        assert_eq!(valve.stats().running, 0);
    }
}

#[test]
fn a_greater_limit_starts_those_who_wait_at_once() {
    for global in [false, true] {
        for remote in [false, true] {
            let fleet = Fleet::new();
            let limit =
                |limit| if global { Concurrency::unlimited().global(limit, secs(3)) } else { local(limit) };
            let store = if remote { fleet.remote() } else { fleet.local() };
            let valve = fleet.builder(&store).build().unwrap();
            valve.set_concurrency(limit(1)).unwrap();
            let jobs: Vec<_> = (0..200).map(|_| fleet.spawn_lasting(&valve, secs(1))).collect();
            fleet.clock.advance(ms(1));
            let started = || jobs.iter().filter(|job| job.start().is_some()).count();
            assert_eq!(started(), 1);
            valve.set_concurrency(limit(150)).unwrap();
            fleet.clock.settle();
            assert_eq!(started(), 150, "global {global}, remote {remote}");
            valve.set_concurrency(Concurrency::unlimited()).unwrap();
            fleet.clock.settle();
            assert_eq!(started(), 200, "global {global}, remote {remote}");
            fleet.clock.advance(secs(2));
            assert_eq!((valve.stats().running, fleet.held()), (0, 0));
        }
    }
}

/// The way without a lock, on one thread: the call after the change is the first to obey it.
#[test]
fn the_next_call_obeys_the_change() {
    let clock = ManualClock::new();
    let rule = |limit| Rule::from(Rule::gcra(limit, secs(1)).burst(3));
    let valve = Valve::builder("id").rule(rule(1)).clock(&clock).build().unwrap();
    start_now(&valve, 1);
    valve.set_rules([rule(1), Rule::gcra(1, secs(60)).into()]).unwrap();
    start_now(&valve, 1);
    let refused = valve.try_acquire().map(drop);
    assert!(matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::Rate { .. }, .. })), "{refused:?}");
    valve.set_rules([]).unwrap();
    let held: Vec<_> = (0..3).map(|_| valve.try_acquire().unwrap()).collect();
    valve.set_concurrency(local(3)).unwrap();
    let refused = valve.try_acquire().map(drop);
    assert!(
        matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::LocalConcurrency, .. })),
        "{refused:?}"
    );
    valve.set_concurrency(local(4)).unwrap();
    let fourth = valve.try_acquire().unwrap();
    assert!(valve.try_acquire().is_err());
    drop((held, fourth));
    assert_eq!(valve.stats().running, 0);
    valve.set_rules([rule(1)]).unwrap();
    // What was spent under the first rule is spent; of its three two were.
    start_now(&valve, 1);
    assert!(valve.try_acquire().is_err());
    valve.set_rules([Rule::gcra(1, secs(1)).burst(2).into()]).unwrap();
    assert!(matches!(valve.job().cost(3).try_acquire(), Err(Error::CostTooLarge { .. })));
}

/// A fleet's limit may come, change its lease length and go while jobs run: each keeps what it started with.
#[test]
fn leases_outlive_the_limit_they_were_taken_under() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.builder(&store).build().unwrap();
    let free = fleet.spawn_lasting(&valve, secs(5));
    fleet.clock.advance(ms(1));
    valve.set_concurrency(Concurrency::unlimited().global(3, ms(300))).unwrap();
    let short = fleet.spawn_lasting(&valve, secs(5));
    fleet.clock.advance(ms(1));
    valve.set_concurrency(Concurrency::unlimited().global(3, secs(3))).unwrap();
    let long = fleet.spawn_lasting(&valve, secs(5));
    fleet.clock.advance(ms(1));
    assert_eq!(fleet.held(), 2);
    valve.set_concurrency(Concurrency::unlimited()).unwrap();
    fleet.clock.advance(secs(4));
    assert_eq!(fleet.held(), 2, "they are not renewed any more");
    // No later than the shorter third asks, and in one call.
    let sent = store.sent(Kind::Renew);
    assert!(sent.windows(2).all(|pair| pair[1] - pair[0] <= ms(100)));
    fleet.clock.advance(secs(2));
    assert!(free.result().is_ok() && short.result().is_ok() && long.result().is_ok());
    assert_eq!((fleet.held(), valve.stats().running, fleet.clock.timers()), (0, 0, 0));
}

/// An ask that was under way when the limits changed: what it grants is granted, what it is told counts no more.
#[test]
fn an_answer_to_the_old_limits_holds_nobody_up() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let window = |limit| Rule::from(Rule::fixed_window(limit, secs(3600)));
    let valve = fleet.builder(&store).rule(window(1)).build().unwrap();
    store.next(Kind::Admit, [Step::AT_ONCE, Step { before: ms(5), reply: Reply::Decided, after: ms(5) }]);
    let jobs: Vec<_> = (0..3).map(|_| fleet.spawn_lasting(&valve, ms(1))).collect();
    fleet.clock.advance(ms(7));
    assert_eq!(jobs.iter().filter(|job| job.start().is_some()).count(), 1);
    // The refusal until the next hour is decided, but not here yet.
    valve.set_rules([window(3)]).unwrap();
    fleet.clock.advance(ms(10));
    assert!(jobs.iter().all(|job| job.result().is_ok()), "held up by an answer to rules that are no more");
}

/// A pause, the order and the other valves of the id are none of a change's business.
#[test]
fn a_change_concerns_limits_only() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(&clock).build();
    let build = || Valve::builder("id").rule(Rule::gcra(1, secs(1))).store(store.clone()).build().unwrap();
    let (one, other) = (build(), build());
    one.pause(secs(10)).unwrap();
    let jobs = Jobs::new(&clock);
    for (name, priority) in [("low", 0), ("high", 9), ("next", 0)] {
        jobs.spawn(&one, Call { priority, ..call(name) });
    }
    clock.advance(secs(1));
    one.set_rules([Rule::gcra(10, secs(1)).into()]).unwrap();
    one.set_concurrency(local(1)).unwrap();
    clock.advance(secs(9) - us(1));
    assert_eq!(jobs.starts(), []);
    clock.advance(secs(1));
    assert_eq!(jobs.order(), ["high", "low", "next"]);
    assert_eq!(closest(&jobs.units()), 100 * MILLISECOND);
    // The other valve asks for its own rule, of the same name, whose debt both pay.
    clock.advance(secs(10));
    start_now(&other, 1);
    assert_eq!(wait_of(&other.try_acquire().map(drop).unwrap_err()), secs(1));
    // Closed valves take changes too, and start nothing.
    one.close();
    one.set_concurrency(local(5)).unwrap();
    one.set_rules([]).unwrap();
    assert!(matches!(one.try_acquire(), Err(Error::Closed)));
}
