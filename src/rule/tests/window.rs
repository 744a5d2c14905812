//! One fixed window: alignment, boundaries, what carries over and what does not.

use super::*;

/// V09.
#[test]
fn windows_are_aligned_to_the_clock_and_not_to_the_first_call() {
    check_starts([window(5, 1_000)], &[(700, 1, 6)], &[(700 * MS, 5), (SECOND, 1)]);
}

/// V10 and O19: the price of a window, and its limit.
#[test]
fn two_adjoining_windows_may_pass_twice_the_limit_together() {
    check_starts([window(5, 1_000)], &[(999, 1, 5), (1_000, 1, 5)], &[(999 * MS, 5), (SECOND, 5)]);
    let expected = [(999 * MS, 5), (SECOND, 5), (2 * SECOND, 5), (3 * SECOND, 1)];
    check_starts([window(5, 1_000)], &[(999, 1, 16)], &expected);
}

/// O02.
#[test]
fn unused_windows_never_carry_over() {
    let expected = [(10 * SECOND, 5), (11 * SECOND, 5), (12 * SECOND, 2)];
    check_starts([window(5, 1_000)], &[(10_000, 1, 12)], &expected);
}

/// V13.
#[test]
fn a_cost_that_no_longer_fits_waits_for_the_next_window() {
    check_starts([window(5, 1_000)], &[(0, 2, 3)], &[(0, 2), (SECOND, 1)]);
}

/// O21.
#[test]
fn a_window_begins_with_its_first_tick_and_ends_before_its_last() {
    check_asks(
        [window(1, 100)],
        &[
            (0, 1, Starts),
            (MS, 1, Waits(100 * MS)),
            (100 * MS - 1, 1, Waits(100 * MS)),
            (100 * MS, 1, Starts),
        ],
    );
}

/// O24.
#[test]
fn a_hint_is_the_next_window_and_not_one_interval_after_the_last_start() {
    check_asks(
        [window(2, 60_000)],
        &[
            (0, 1, Starts),
            (10 * SECOND, 1, Starts),
            (20 * SECOND, 1, Waits(60 * SECOND)),
            (60 * SECOND, 1, Starts),
        ],
    );
}

#[test]
fn after_a_clock_stepped_back_the_later_count_belongs_to_the_current_window() {
    let (late, early) = (10_500 * MS, 3_200 * MS);
    check_asks(
        [window(2, 1_000)],
        &[(late, 1, Starts), (early, 1, Starts), (early, 1, Waits(4 * SECOND)), (4 * SECOND, 2, Starts)],
    );
    check_asks(
        [window(2, 1_000)],
        &[(late, 2, Starts), (early, 1, Waits(4 * SECOND)), (4 * SECOND, 2, Starts)],
    );
}

#[test]
fn a_lowered_limit_counts_what_started_under_the_higher_one() {
    let (high, low) = (set([window(10, 1_000)]), set([window(4, 1_000)]));
    let mut states = fresh(&high);
    assert_eq!(high.admit(&mut states, 0, [6]).granted, 1);
    let refusal = low.admit(&mut states, 1, [1]).refusal;
    assert_eq!(refusal, Some(RateRefusal { rule: 0, not_before: SECOND }));
    assert_eq!(high.admit(&mut states, 2, [4]).granted, 1);
}
