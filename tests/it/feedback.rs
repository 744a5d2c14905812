//! What is promised of `Feedback` whatever a response says, on responses by seed.

mod any_bytes;

use proptest::collection::vec;
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};
use valve::Feedback;

/// A value of a header field: nearly right more often than not, since noise alone would never come past the first byte.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let near_now = (1_680_000_000_u64..1_700_000_000).prop_map(|epoch| epoch.to_string());
    let pieces = prop_oneof![
        Just("0".to_owned()),
        (0..100_000_u64).prop_map(|seconds| seconds.to_string()),
        near_now.clone(),
        near_now.prop_map(|epoch| epoch + "250"),
        any::<i64>().prop_map(|number| number.to_string()),
        "[0-9]{1,30}",
        "-?[0-9]{1,3}\\.[0-9]{1,3}",
        "0x[0-9a-f]{1,9}",
        "(Sat|Sun|Mon), [0-3][0-9] (Jan|Feb|Jun|Dec) [0-9]{4} [0-2][0-9]:[0-5][0-9]:[0-6][0-9] (GMT|UTC)?",
        "(Saturday|Sunday), [0-3][0-9]-(Jun|Dec)-[0-9]{2} 23:59:[0-6][0-9] GMT",
        "(Sat|Thu) (Jun|Jan) [ 123][0-9] 12:00:[0-6][0-9] (20)?[0-9]{2}",
        "(\"[a-c]\"|[a-c]|limit|remaining|reset)(=[0-9]{1,3})?(;(r|t|w|q)=-?[0-9]{0,3}){0,3}",
        "[\"\\\\,;= rt0-9]{0,12}",
    ];
    let noise = vec(any::<u8>(), 0..20);
    let text = (pieces.clone(), proptest::option::of(pieces)).prop_map(|(first, second)| {
        second.map_or(first.clone(), |second| format!("{first}, {second}")).into_bytes()
    });
    prop_oneof![9 => text, 1 => noise]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn any_response_is_no_pause_or_one_within_the_cap(
        status in prop_oneof![Just(429_u16), Just(503), Just(200), any::<u16>()],
        seconds in prop_oneof![1_680_000_000_u64..1_700_000_000, 0..1_u64 << 40],
        lines in vec((any::<u8>(), value()), 0..9),
    ) {
        let mut bytes = status.to_be_bytes().to_vec();
        bytes.extend(&seconds.to_be_bytes()[3..]);
        for (name, value) in lines {
            bytes.push(name);
            bytes.extend(value);
            bytes.push(b'\n');
        }
        any_bytes::check(&bytes);
    }

    #[test]
    fn any_bytes_are_no_pause_or_one_within_the_cap(bytes in vec(any::<u8>(), 0..200)) {
        any_bytes::check(&bytes);
    }

    #[test]
    fn what_retry_after_says_in_seconds_is_the_pause_for_any_number_of_seconds(seconds in 1..=2_678_400_u64) {
        let told = Feedback::from_response(429, [("Retry-After", seconds.to_string())]);
        prop_assert_eq!(told.pause_for(), Some(Duration::from_secs(seconds)));
    }

    #[test]
    fn a_date_is_as_far_away_as_the_responses_own_date_says(
        date in 0..4_000_000_000_u64,
        wait in 1..=2_678_400_u64,
        clock in 0..4_000_000_000_u64,
    ) {
        let text = |seconds| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        let headers = [("Date", text(date)), ("Retry-After", text(date + wait))];
        let told = Feedback::from_response_at(429, headers, UNIX_EPOCH + Duration::from_secs(clock));
        prop_assert_eq!(told.pause_for(), Some(Duration::from_secs(wait)));
    }
}
