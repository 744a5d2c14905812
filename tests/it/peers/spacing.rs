//! When jobs start: what idling earns, how bursts and windows meet, and what does not drift.

use std::time::Duration;

use valve::Rule;

use super::{Scene, millis, most_in_any_window, seconds};

#[test]
fn a_quiet_half_minute_earns_nothing() {
    let scene = Scene::new(Rule::gcra(1, seconds(1)));
    scene.jobs(1);
    scene.to(30_000);
    scene.jobs(5);
    scene.to(60_000);
    scene.check_starts([0, 30_000, 31_000, 32_000, 33_000, 34_000]);
}

#[test]
fn unused_windows_never_carry_over() {
    let scene = Scene::new(Rule::fixed_window(5, seconds(1)));
    scene.to(10_000);
    scene.jobs(12);
    scene.to(20_000);
    scene.check_starts([[10_000; 5].as_slice(), &[11_000; 5], &[12_000; 2]].concat());

    let scene = Scene::new(Rule::gcra(1, seconds(1)));
    scene.jobs(3);
    scene.to(6_000);
    scene.jobs(3);
    scene.to(20_000);
    scene.check_starts([0, 1_000, 2_000, 6_000, 7_000, 8_000]);
}

#[test]
fn a_year_of_idling_overflows_nothing() {
    const HOUR_MS: u64 = 3_600_000;
    let scene = Scene::new(Rule::gcra(1_000_000_000, seconds(3_600)).burst(1_000_000_000));
    let instants = [0, 12 * HOUR_MS, (12 + 400 * 24) * HOUR_MS];
    for instant in instants {
        scene.to(instant);
        scene.jobs(1);
        scene.clock.settle();
    }
    scene.check_starts(instants);
    // The idle time is worth the burst and no more.
    assert!(scene.valve.job().cost(999_999_999).try_acquire().is_ok());
    assert!(scene.valve.job().cost(1).try_acquire().is_err());
}

#[test]
fn thousands_a_second_are_still_limited() {
    let scene = Scene::new(Rule::gcra(5_000, seconds(1)));
    scene.jobs(2);
    scene.clock.settle();
    assert_eq!(scene.starts.lock().len(), 1);
    scene.clock.advance(Duration::from_micros(199));
    assert_eq!(scene.starts.lock().len(), 1);
    scene.clock.advance(Duration::from_micros(1));
    assert_eq!(*scene.starts.lock(), [0, 200]);

    flood(&scene, 6_000);
    assert_eq!(most_in_any_window(&scene.starts.lock(), 1_000_000), 5_000);

    // Four billion a second: the clock's own tick is the limit then, and the burst.
    for burst in [1, 10] {
        let scene = Scene::new(Rule::gcra(u32::MAX, seconds(1)).burst(burst));
        for _ in 0..3 {
            let granted = (0..100).filter(|_| scene.valve.try_acquire().is_ok()).count();
            assert_eq!(granted, burst as usize);
            scene.clock.advance(Duration::from_micros(1));
        }
    }
}

#[test]
fn a_bucket_refills_to_its_last_unit() {
    let scene = Scene::new(Rule::gcra(65_535, seconds(1)).burst(65_535));
    for tenth in 0..10 {
        scene.to(tenth * 100);
        scene.take();
    }
    scene.to(2_000);
    scene.job(|job| job.cost(65_535));
    scene.jobs(1);
    scene.to(3_000);
    // The next unit is there one 65,535th of a second later, rounded up to the tick.
    assert_eq!(*scene.starts.lock(), [2_000_000, 2_000_016]);
}

#[test]
fn three_hundred_a_second_drift_nowhere() {
    let scene = Scene::new(Rule::gcra(300, seconds(1)));
    flood(&scene, 3_000);
    let starts = scene.starts.lock();
    assert_eq!(most_in_any_window(&starts, 1_000_000), 300);
    // 3,333 1/3 us, up to the tick, from each actual start: 9,998.7 ms, well within 1 % of 9,997.
    assert_eq!(starts.last(), Some(&(2_999 * 3_334)));
}

#[test]
fn a_second_batch_counts_the_first() {
    let scene = Scene::new(Rule::gcra(10, millis(1_010)));
    scene.jobs(11);
    scene.to(1_010);
    assert_eq!(scene.starts.lock().len(), 11);
    scene.to(1_060);
    scene.jobs(11);
    scene.to(10_000);
    assert_eq!(scene.starts.lock().len(), 22);
    assert_eq!(most_in_any_window(&scene.starts.lock(), 1_010_000), 10);
}

#[test]
fn a_full_burst_passes_limit_plus_burst_less_one() {
    for (burst, at_once, in_a_minute) in [(60, 60, 119), (1, 1, 60)] {
        let scene = Scene::new(Rule::gcra(60, seconds(60)).burst(burst));
        scene.jobs(200);
        scene.to(300_000);
        let starts = scene.starts.lock();
        assert_eq!(starts.len(), 200);
        assert_eq!(starts.iter().filter(|&&start| start == 0).count(), at_once);
        let steps: Vec<_> = starts[at_once - 1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|&step| step == 1_000_000), "{steps:?}");
        assert_eq!(starts.iter().filter(|&&start| start < 60_000_000).count(), in_a_minute);
        assert_eq!(most_in_any_window(&starts, 60_000_000), in_a_minute);
    }
}

#[test]
fn a_third_batch_waits_for_its_window() {
    let scene = Scene::new(Rule::fixed_window(5, seconds(1)));
    scene.to(999);
    scene.jobs(16);
    scene.to(10_000);
    scene.check_starts([[999; 5].as_slice(), &[1_000; 5], &[2_000; 5], &[3_000]].concat());
}

#[test]
fn an_empty_queue_remembers_its_last_start() {
    let scene = Scene::new(Rule::gcra(1, seconds(1)));
    scene.jobs(4);
    for last in [3_000, 4_000, 5_000] {
        scene.to(last);
        assert_eq!(scene.valve.stats().queued, 0);
        assert_eq!(scene.valve.stats().running, 0);
        scene.jobs(1);
    }
    scene.to(5_999);
    scene.check_starts([0, 1_000, 2_000, 3_000, 4_000, 5_000]);
}

#[test]
fn finishing_returns_no_budget() {
    let scene = Scene::with(|valve, _| valve.rule(Rule::gcra(10, seconds(1)).burst(10)).concurrency(10));
    for _ in 0..10 {
        let (valve, clock) = (scene.valve.clone(), scene.clock.clone());
        scene.clock.spawn("short job", move || valve.run(|| clock.sleep(millis(1))).unwrap());
    }
    scene.jobs(1);
    scene.to(1);
    assert_eq!(scene.valve.stats().running, 0, "all ten have finished");
    scene.check_starts([]);
    scene.to(1_000);
    scene.check_starts([100]);
}

/// So many jobs one after another, as fast as the rule allows.
fn flood(scene: &Scene, count: usize) {
    let (valve, clock, starts) = (scene.valve.clone(), scene.clock.clone(), scene.starts.clone());
    scene.clock.spawn("flood", move || {
        for _ in 0..count {
            valve.run(|| starts.lock().push(super::micros(clock.now()))).unwrap();
        }
    });
    scene.clock.advance(seconds(60));
}
