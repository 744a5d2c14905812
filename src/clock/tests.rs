//! Durations as whole microseconds.

use super::*;

#[test]
fn durations_round_up_to_the_tick_and_are_cut_at_ten_years() {
    #[track_caller]
    fn check(length: Duration, ticks: Tick) {
        assert_eq!(ticks_up(length), ticks, "{length:?}");
    }
    check(Duration::ZERO, 0);
    check(Duration::from_nanos(1), 1);
    check(Duration::from_nanos(1_000), 1);
    check(Duration::from_nanos(1_001), 2);
    check(Duration::new(7, 999_999_001), 8_000_000);
    check(duration(LONGEST), LONGEST);
    check(duration(LONGEST - 1), LONGEST - 1);
    check(duration(LONGEST) - Duration::from_nanos(1), LONGEST);
    check(duration(LONGEST) + Duration::from_nanos(1), LONGEST);
    check(Duration::MAX, LONGEST);
}
