//! One GCRA rule: spacing, bursts, idle time, lateness, fractions of a tick.

use std::time::Duration;

use super::*;

const HOUR: u64 = 3_600 * SECOND;

/// V04.
#[test]
fn without_a_burst_an_idle_hour_saves_nothing() {
    let ten_per_second = Rule::gcra(10, Duration::from_secs(1));
    let starts = [(HOUR, 1), (HOUR + 100 * MS, 1), (HOUR + 200 * MS, 1)];
    check_starts([ten_per_second.into()], &[(HOUR / MS, 1, 3)], &starts);
}

/// O01, and the second half of O02.
#[test]
fn idle_time_is_not_saved_beyond_the_burst() {
    let seconds = |list: &[u64]| -> Vec<(u64, usize)> { list.iter().map(|at| (at * SECOND, 1)).collect() };
    check_starts([gcra(1, 1_000, 1)], &[(0, 1, 1), (30_000, 1, 5)], &seconds(&[0, 30, 31, 32, 33, 34]));
    check_starts([gcra(1, 1_000, 1)], &[(0, 1, 3), (6_000, 1, 3)], &seconds(&[0, 1, 2, 6, 7, 8]));
}

/// O20.
#[test]
fn an_empty_queue_does_not_forget_the_last_start() {
    let jobs = [(0, 1, 4), (3_000, 1, 1), (4_000, 1, 1)];
    let starts: Vec<_> = (0..6).map(|second| (second * SECOND, 1)).collect();
    check_starts([gcra(1, 1_000, 1)], &jobs, &starts);
}

/// V05.
#[test]
fn a_saturated_hour_never_holds_more_than_the_limit_in_one_interval() {
    let starts = starts(&set([gcra(10, 1_000, 1)]), &[(0, 1, 36_001)]);
    assert_eq!(most_in_any_window(&starts, SECOND), 10);
    assert_eq!(starts.last(), Some(&(HOUR, 1)));
}

/// V06.
#[test]
fn spacing_is_never_below_a_fractional_interval_over_limit() {
    let starts = starts(&set([gcra(3, 1_000, 1)]), &[(0, 1, 1_000)]);
    let shortest = starts.windows(2).map(|pair| pair[1].0 - pair[0].0).min();
    assert_eq!(shortest, Some(333_334));
    check_asks(
        [gcra(3, 1_000, 1)],
        &[(0, 1, Starts), (333_333, 1, Waits(333_334)), (333_334, 1, Starts), (333_335, 1, Waits(666_668))],
    );
}

/// V07.
#[test]
fn an_idle_rule_starts_its_burst_and_then_keeps_the_pace() {
    let mut expected = vec![(0, 5)];
    expected.extend((1..=9).map(|step| (step * 100 * MS, 1)));
    check_starts([gcra(10, 1_000, 5)], &[(0, 1, 14)], &expected);
    let flood = starts(&set([gcra(10, 1_000, 5)]), &[(0, 1, 1_000)]);
    assert_eq!(most_in_any_window(&flood, SECOND), 14);
}

/// V08.
#[test]
fn a_start_exactly_one_interval_later_belongs_to_the_next_window() {
    let flood = starts(&set([gcra(10, 1_000, 5)]), &[(0, 1, 30)]);
    assert_eq!(flood[14], (SECOND, 1), "the 15th start");
    let from_there = flood[14..].iter().filter(|&&(tick, _)| tick < 2 * SECOND).count();
    assert_eq!(from_there, 10, "a window that begins at the 15th start counts it");
}

/// V15.
#[test]
fn the_next_start_is_measured_from_the_actual_one() {
    check_asks(
        [gcra(10, 1_000, 1)],
        &[(0, 1, Starts), (107 * MS, 1, Starts), (207 * MS - 1, 1, Waits(207 * MS)), (207 * MS, 1, Starts)],
    );
}

/// V16.
#[test]
fn small_delays_add_up_in_a_saturated_queue() {
    let set = set([gcra(10, 1_000, 1)]);
    let mut states = fresh(&set);
    let mut now = MS;
    for _ in 1..101 {
        assert_eq!(set.admit(&mut states, now, [1]).granted, 1, "at {now}");
        let refusal = set.admit(&mut states, now, [1]).refusal.unwrap();
        now = refusal.not_before + MS;
    }
    assert_eq!(now, 10_101 * MS, "the 101st start, each 1 ms late");
}

/// V17.
#[test]
fn a_stall_is_not_made_good_by_closer_starts() {
    // The queue is full all the time; nobody asks between 500 and 1,500 ms.
    for (burst, at_once) in [(1, 1), (5, 5)] {
        let set = set([gcra(10, 1_000, burst)]);
        let mut states = fresh(&set);
        let mut starts = Vec::new();
        let mut now = 0;
        while now < 4 * SECOND {
            let verdict = set.admit(&mut states, now, [1; 100]);
            starts.extend(std::iter::repeat_n((now, 1), verdict.granted));
            let hint = verdict.refusal.unwrap().not_before;
            now = if (500 * MS + 1..1_500 * MS).contains(&hint) { 1_500 * MS } else { hint };
        }
        assert_eq!(most_in_any_window(&starts, SECOND), u64::from(10 + burst - 1), "burst {burst}");
        let after_the_stall: Vec<u64> =
            starts.iter().map(|&(tick, _)| tick).filter(|&tick| tick >= 1_500 * MS).collect();
        assert!(after_the_stall[..at_once].iter().all(|&tick| tick == 1_500 * MS), "burst {burst}");
        let spaced = after_the_stall[at_once - 1..].windows(2).all(|pair| pair[1] - pair[0] >= 100 * MS);
        assert!(spaced, "burst {burst}: {after_the_stall:?}");
    }
}

/// O03.
#[test]
fn a_billion_an_hour_is_not_refused_after_long_idle_times() {
    let year_and_more = 400 * 24 * HOUR;
    check_asks(
        [gcra(1_000_000_000, 3_600_000, 1_000_000_000)],
        &[(0, 1, Starts), (12 * HOUR, 1, Starts), (year_and_more, 1, Starts)],
    );
}

/// O05.
#[test]
fn a_high_rate_still_limits() {
    check_asks(
        [gcra(5_000, 1_000, 1)],
        &[(0, 1, Starts), (0, 1, Waits(200)), (199, 1, Waits(200)), (200, 1, Starts)],
    );
    // Four billion a second, 4,295 units a tick: a whole burst at once, and then what one tick earns.
    let set = set([gcra(u32::MAX, 1_000, 10_000)]);
    let mut states = fresh(&set);
    assert_eq!(set.admit(&mut states, 0, [1; 20_000]).granted, 10_000);
    assert_eq!(set.admit(&mut states, 1, [1; 20_000]).granted, 4_294);
    assert_eq!(set.admit(&mut states, 2, [1; 20_000]).granted, 4_295);
}

/// O07.
#[test]
fn an_odd_limit_is_refilled_completely() {
    let mut asks: Vec<_> = (0..10).map(|step| (step * 100 * MS, 1, Starts)).collect();
    asks.extend([(2 * SECOND, 65_535, Starts), (2 * SECOND, 1, Waits(2 * SECOND + 16))]);
    check_asks([gcra(65_535, 1_000, 65_535)], &asks);
}

/// O08.
#[test]
fn a_fractional_step_loses_less_than_a_tick_per_start() {
    let starts = starts(&set([gcra(300, 1_000, 1)]), &[(0, 1, 3_000)]);
    assert_eq!(most_in_any_window(&starts, SECOND), 300);
    assert_eq!(starts.last(), Some(&(2_999 * 3_334, 1)), "9,998.7 ms; 9,996.7 without ticks");
}

/// O09.
#[test]
fn one_per_hour_starts_after_exactly_one_hour() {
    check_asks(
        [gcra(1, 3_600_000, 1)],
        &[(0, 1, Starts), (HOUR - MS, 1, Waits(HOUR)), (HOUR - 1, 1, Waits(HOUR)), (HOUR, 1, Starts)],
    );
}

/// O11. Asked at 1 ms the hint is 332.334 ms, which a caller that counts in ms rounds up to 333.
#[test]
fn waiting_the_hint_of_any_moment_grants() {
    let set = set([gcra(3, 1_000, 1)]);
    for ms in 1..=333 {
        let mut states = fresh(&set);
        assert_eq!(set.admit(&mut states, 0, [1]).granted, 1);
        let hint = set.admit(&mut states, ms * MS, [1]).refusal.unwrap().not_before - ms * MS;
        if ms == 1 {
            assert_eq!(hint.div_ceil(MS), 333);
        }
        assert_eq!(set.admit(&mut states, ms * MS + hint - 1, [1]).granted, 0, "asked at {ms} ms");
        assert_eq!(set.admit(&mut states, ms * MS + hint, [1]).granted, 1, "asked at {ms} ms");
    }
}

/// O12, O16, O13, O21 and O24: hints are exact, in whole intervals or parts of them.
#[test]
fn a_hint_is_the_time_until_enough_is_earned() {
    check_asks(
        [gcra(1, 2_000, 1)],
        &[
            (0, 1, Starts),
            (0, 1, Waits(2 * SECOND)),
            (500 * MS, 1, Waits(2 * SECOND)),
            (2 * SECOND, 1, Starts),
        ],
    );
    check_asks([gcra(2, 60_000, 2)], &[(0, 1, Starts), (0, 1, Starts), (0, 1, Waits(30 * SECOND))]);
    check_asks([gcra(3, 3_000, 3)], &[(0, 1, Starts), (0, 3, Waits(SECOND)), (SECOND, 3, Starts)]);
    check_asks([gcra(1, 100, 1)], &[(0, 1, Starts), (MS, 1, Waits(100 * MS)), (100 * MS, 1, Starts)]);
    check_asks(
        [gcra(2, 60_000, 2)],
        &[
            (0, 1, Starts),
            (10 * SECOND, 1, Starts),
            (20 * SECOND, 1, Waits(30 * SECOND)),
            (30 * SECOND, 1, Starts),
        ],
    );
}

/// O17.
#[test]
fn a_pause_between_two_batches_does_not_squeeze_a_window() {
    let set = set([gcra(10, 1_010, 1)]);
    let first = starts(&set, &[(0, 1, 11)]);
    let all_started = first.last().unwrap().0 / MS;
    let both = starts(&set, &[(0, 1, 11), (all_started + 50, 1, 11)]);
    assert_eq!(most_in_any_window(&both, 1_010 * MS), 10);
    assert_eq!(both[11], (1_111 * MS, 1), "the second batch waits for the first one's pace");
}

/// O18.
#[test]
fn a_full_burst_is_followed_by_the_refill_and_no_more() {
    let burst = starts(&set([gcra(60, 60_000, 60)]), &[(0, 1, 200)]);
    assert_eq!(most_in_any_window(&burst, 60 * SECOND), 119);
    assert_eq!(burst[59..62], [(0, 1), (SECOND, 1), (2 * SECOND, 1)]);
    let single = starts(&set([gcra(60, 60_000, 1)]), &[(0, 1, 200)]);
    assert_eq!(most_in_any_window(&single, 60 * SECOND), 60);
}

#[test]
fn a_clock_that_steps_back_gives_nothing_away() {
    check_asks(
        [gcra(1, 1_000, 1)],
        &[(60 * SECOND, 1, Starts), (0, 1, Waits(61 * SECOND)), (61 * SECOND - 1, 1, Waits(61 * SECOND))],
    );
}

#[test]
fn the_end_of_time_neither_panics_nor_wraps() {
    let end = u64::MAX;
    check_asks(
        [gcra(1, 1_000, 1)],
        &[(end - 5 * SECOND, 1, Starts), (end - 5 * SECOND, 1, Waits(end - 4 * SECOND))],
    );
    for rule in [gcra(7, 1_000, 3), window(7, 1_000)] {
        let set = set([rule]);
        let mut states = fresh(&set);
        let _ = set.admit(&mut states, end, [3, 3, 1]);
        assert_eq!(set.admit(&mut states, 0, [1]).granted, 0, "{states:?}");
    }
}
