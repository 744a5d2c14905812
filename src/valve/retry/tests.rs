//! The lengths of back-offs, up to the ends of their ranges.

use super::{Retry, random};
use crate::clock::LONGEST;
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_back_off_is_in_the_upper_half_of_its_range() {
    #[track_caller]
    fn check(retry: Retry, attempt: u32, least: Duration, most: Duration) {
        assert_eq!(retry.wait(attempt, 0), least);
        let waits: Vec<_> = (0..10_000).map(|time| retry.wait(attempt, random(time * 977, 3))).collect();
        assert!(waits.iter().all(|wait| (least..=most).contains(wait)), "attempt {attempt}: {retry:?}");
        // Spread over the whole of it.
        let (first, last) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*last - *first >= (most - least) * 9 / 10, "{first:?} to {last:?}");
    }
    let usual = Retry::times(9);
    check(usual, 1, SECOND / 20, SECOND / 10);
    check(usual, 2, SECOND / 10, SECOND / 5);
    check(usual, 10, SECOND * 256 / 10, SECOND * 512 / 10);
    check(usual, 11, SECOND * 30, SECOND * 60);
    check(usual, u32::MAX, SECOND * 30, SECOND * 60);
    check(usual.backoff(SECOND).max_backoff(SECOND / 2), 1, SECOND / 4, SECOND / 2);
    let ten_years = Duration::from_micros(LONGEST);
    check(usual.backoff(Duration::MAX).max_backoff(Duration::MAX), u32::MAX, ten_years / 2, ten_years);
}

#[test]
fn no_back_off_is_none() {
    for (retry, attempt) in [
        (Retry::times(9).backoff(Duration::ZERO), 1),
        (Retry::times(9).backoff(Duration::ZERO), u32::MAX),
        (Retry::times(9).max_backoff(Duration::ZERO), 1),
    ] {
        assert_eq!(retry.wait(attempt, u64::MAX), Duration::ZERO);
    }
    let one = Retry::times(9).backoff(Duration::from_nanos(1));
    assert_eq!(one.wait(1, u64::MAX), Duration::from_micros(1), "less than a tick is a tick");
}

/// Calls that fail at one instant, attempts of one call, and processes that count alike do not come back in step.
#[test]
fn those_that_fail_together_do_not_come_back_together() {
    let waits = |numbers: &mut dyn Iterator<Item = (u64, u64)>| {
        let waits = numbers.map(|(now, sequence)| Retry::times(1).wait(1, random(now, sequence)));
        waits.collect::<BTreeSet<_>>().len()
    };
    assert!(waits(&mut (0..100).map(|sequence| (5_000_000, sequence))) > 95);
    assert!(waits(&mut (0..100).map(|later| (5_000_000 + later, 7))) > 95);
}
