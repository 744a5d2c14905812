//! How expiries become whole milliseconds.

use super::SetOptions;
use std::time::Duration;

#[test]
fn expiries_round_up_and_are_never_zero() {
    #[track_caller]
    fn check(expiry: Duration, px: u64) {
        let options = SetOptions::new(expiry);
        assert_eq!(options.px(), px, "{expiry:?}");
        assert_eq!(options.expiry(), Duration::from_millis(px), "{expiry:?}");
        assert_eq!(options.if_absent().px(), px, "{expiry:?}");
    }
    check(Duration::ZERO, 1);
    check(Duration::from_nanos(1), 1);
    check(Duration::from_micros(999), 1);
    check(Duration::from_millis(1), 1);
    check(Duration::from_nanos(1_000_001), 2);
    check(Duration::from_micros(1_500), 2);
    check(Duration::from_millis(2_147_483_647), 2_147_483_647);
    check(Duration::MAX, 10 * 365 * 24 * 3600 * 1_000);
}

#[test]
fn options_overwrite_unless_told_not_to() {
    let options = SetOptions::new(Duration::from_secs(1));
    assert!(!options.is_if_absent());
    assert!(options.if_absent().is_if_absent());
}
