//! The estimate of how early to wake, on made-up times.

use super::*;

fn after(latenesses: &[Tick]) -> Lateness {
    let mut lateness = Lateness::default();
    for &late in latenesses {
        lateness.woke(1_000, 1_000 + late);
    }
    lateness
}

#[track_caller]
fn check(latenesses: &[Tick], now: Tick, early: Tick) {
    assert_eq!(after(latenesses).early(now), early);
}

#[test]
fn the_second_largest_of_the_recent_latenesses_counts() {
    let long_idle = 1_000_000;
    check(&[], long_idle, 0);
    check(&[150], long_idle, 0);
    check(&[150, 120, 130], long_idle, 130);
    check(&[150, 150, 10], long_idle, 150);
    check(&[8_000, 90, 100], long_idle, 100);
}

#[test]
fn one_timer_is_never_spun_for_longer_than_the_limit() {
    check(&[3_000, 5_000], 1_000_000, SPIN_MAX);
}

#[test]
fn old_latenesses_are_forgotten() {
    let mut many = vec![300; WAKES];
    many.extend([50; WAKES]);
    check(&many, 1_000_000, 50);
}

#[test]
fn spinning_is_paid_from_a_share_of_the_time_that_passed() {
    let mut lateness = after(&[200; WAKES]);
    assert_eq!(lateness.early(100 * SHARE), 100, "only so much has been saved up");
    lateness.spun(100);
    assert_eq!(lateness.early(100 * SHARE), 0);
    assert_eq!(lateness.early(160 * SHARE), 60);
    lateness.spun(1_000_000);
    assert_eq!(lateness.early(161 * SHARE), 1, "a debt is not carried on");
}

#[test]
fn a_long_rest_saves_up_no_more_than_the_bank_holds() {
    let mut lateness = after(&[400; WAKES]);
    lateness.early(3_600_000_000);
    lateness.spun(BANK_MAX - 10);
    assert_eq!(lateness.early(3_600_000_000), 10);
}
