//! What a provider's header fields were taken for, and what they are.

use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use super::{millis, seconds};
use valve::testing::ManualClock;
use valve::{Blocked, Error, Feedback, Valve};

/// The pause that a refusal with this `Retry-After` asks for, if it comes so many seconds after 1970.
fn retry_after(now: u64, value: &str) -> Option<Duration> {
    Feedback::from_response_at(429, [("Retry-After", value)], UNIX_EPOCH + seconds(now)).pause_for()
}

#[test]
fn a_date_is_in_utc_whatever_the_local_time_zone() {
    const CHILD: &str = "VALVE_TEST_ZONE";
    // Thu, 25 Jun 2020 21:28:12 UTC.
    let pause = || retry_after(1_593_120_492, "Thu, 25 Jun 2020 21:30:12 GMT");
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(pause(), Some(seconds(120)));
        return;
    }
    let own_name = "peers::headers::a_date_is_in_utc_whatever_the_local_time_zone";
    for zone in ["UTC", "America/New_York", "Asia/Tokyo", "EST5EDT", "JST-9"] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own_name])
            .env("TZ", zone)
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{zone}: {said}");
    }
}

/// What is left of the pause, if there is one.
fn pause_left(valve: &Valve) -> Option<Duration> {
    match valve.try_acquire() {
        Ok(_) => None,
        Err(Error::WouldWait { retry_after, blocked_by: Blocked::Paused, .. }) => retry_after,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_that_is_negative_or_past_is_none_and_shortens_none() {
    for value in ["-1", "+5x", "Wed, 21 Oct 2015 07:28:00 GMT", "0"] {
        let clock = ManualClock::new();
        let valve = Valve::builder("peer").clock(&clock).build().unwrap();
        let told =
            Feedback::from_response_at(429, [("Retry-After", value)], UNIX_EPOCH + seconds(1_600_000_000));
        assert_eq!(valve.observe(&told), None, "{value}");
        assert_eq!(pause_left(&valve), None, "{value}");

        valve.observe(&Feedback::from_response(429, [("Retry-After", "5")]));
        clock.advance(millis(1));
        assert_eq!(valve.observe(&told), None, "{value}");
        assert_eq!(pause_left(&valve), Some(millis(4_999)), "{value}");
    }
}

#[test]
fn a_reset_slightly_past_is_no_number_of_seconds() {
    let pause = |reset: &str| {
        let headers = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", reset)];
        Feedback::from_response_at(200, headers, UNIX_EPOCH + seconds(1_700_000_005)).pause_for()
    };
    assert_eq!(pause("1700000000"), None);
    assert_eq!(pause("1700000005"), None);
    assert_eq!(pause("1700000035"), Some(seconds(30)));
    assert_eq!(pause("1700000035000"), Some(seconds(30)));
}

#[test]
fn what_is_nearly_a_date_is_no_pause() {
    let now = 1_700_000_000;
    for value in ["1 Jan 2099 00:00:00", "Thu, 01 Jan 2099 00:00:00 XYZ", "tomorrow", "1.5", "0x10", ""] {
        assert_eq!(retry_after(now, value), None, "{value}");
    }
    let longest = seconds(31 * 24 * 3_600);
    assert_eq!(retry_after(now, "Thu, 01 Jan 2099 00:00:00 GMT"), Some(longest));
}
