//! Costs that cannot be: refused at once, without a hint, and without touching any rule.

use valve::{Error, Rule, Valve};

use super::{Scene, seconds};

#[test]
fn an_impossible_cost_gets_no_hint() {
    let scene = Scene::new(Rule::fixed_window(3, seconds(2)));
    too_large(&scene.valve, 4, 3, "window/2s");
    scene.jobs(4);
    scene.to(10_000);
    scene.check_starts([0, 0, 0, 2_000]);
}

#[test]
fn an_oversized_cost_never_runs() {
    let scene = Scene::new(Rule::fixed_window(10, seconds(60)));
    scene.job(|job| job.cost(5));
    scene.clock.settle();
    let oversized = scene.job(|job| job.cost(100));
    scene.job(|job| job.cost(5));
    scene.jobs(1);
    scene.to(200_000);
    assert!(matches!(oversized.join().unwrap(), Err(Error::CostTooLarge { cost: 100, max: 10, .. })));
    scene.check_starts([0, 0, 60_000]);
}

#[test]
fn one_rule_too_small_spends_no_other() {
    let scene = Scene::with(|valve, _| {
        valve.rule(Rule::gcra(10, seconds(1)).burst(10)).rule(Rule::fixed_window(3, seconds(1)))
    });
    too_large(&scene.valve, 5, 3, "window/1s");
    scene.jobs(3);
    scene.clock.settle();
    scene.check_starts([0, 0, 0]);
    // The other rule has its whole burst of ten less these three, as the next windows show.
    scene.jobs(7);
    scene.to(3_000);
    scene.check_starts([0, 0, 0, 1_000, 1_000, 1_000, 2_000, 2_000, 2_000, 3_000]);
    let stats = scene.valve.stats();
    assert_eq!((stats.started, stats.running, stats.queued), (10, 0, 0));
    assert_eq!((stats.refused, stats.timed_out, stats.cancelled), (0, 0, 0));
}

#[test]
fn refused_costs_change_nothing() {
    let scene = Scene::new(Rule::fixed_window(2, seconds(1)));
    for cost in [0, 3, u32::MAX, 0, 3, u32::MAX, 0, 1 << 31, 4, 0] {
        assert!(scene.valve.job().cost(cost).run(|_| ()).is_err(), "cost {cost}");
    }
    let granted = (0..10).filter(|_| scene.valve.try_acquire().is_ok()).count();
    assert_eq!(granted, 2);
}

#[test]
fn a_cost_of_zero_is_refused() {
    let unlimited = Valve::builder("no rule").build().unwrap();
    let scene = Scene::new(Rule::gcra(1, seconds(1)));
    for valve in [&unlimited, &scene.valve] {
        let job = || valve.job().cost(0);
        let ends = [
            job().run(|_| unreachable!("it has no cost")),
            job().try_run(|_| unreachable!("it has no cost")),
            job().acquire().map(drop),
            job().acquire_owned().map(drop),
            job().try_acquire().map(drop),
        ];
        for end in ends {
            match end {
                Err(Error::Invalid { field, reason, .. }) => {
                    assert_eq!(field, "cost");
                    assert!(reason.contains("at least 1"), "says no cure: {reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(valve.stats().started, 0);
    }
    scene.take();
}

/// Refused by every kind of call, at once, naming the rule; and the error says nothing of waiting.
#[track_caller]
fn too_large(valve: &Valve, cost: u32, max: u32, rule: &str) {
    let job = || valve.job().cost(cost);
    let ends = [
        job().run(|_| unreachable!("it can never start")),
        job().acquire().map(drop),
        job().try_acquire().map(drop),
    ];
    for end in ends {
        match end {
            Err(Error::CostTooLarge { cost: said, max: most, rule: name, .. }) => {
                assert_eq!((said, most, name.as_str()), (cost, max, rule));
            }
            other => panic!("{other:?}"),
        }
    }
}
