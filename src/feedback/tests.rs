//! Tables of what responses say, and what of it counts.

use super::{Feedback, PAUSE_MAX};
use std::time::{Duration, UNIX_EPOCH};

/// Sat, 17 Jun 2023 12:00:00 GMT.
const NOW: u64 = 1_687_003_200;
const DAY: u64 = 24 * 3600;
const CAP: u64 = 31 * DAY;

#[track_caller]
fn check_pause(status: u16, headers: &[(&str, &[u8])], expected_ms: u64) {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let pause = Feedback::from_response_at(status, headers.iter().copied(), now).pause_for();
    let expected = Some(Duration::from_millis(expected_ms)).filter(|pause| !pause.is_zero());
    assert_eq!(pause, expected, "{status} {:?}", shown(headers));
}

#[track_caller]
fn check(status: u16, headers: &[(&str, &str)], expected_seconds: u64) {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    check_pause(status, &headers, expected_seconds * 1_000);
}

fn shown(headers: &[(&str, &[u8])]) -> Vec<String> {
    headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii())).collect()
}

#[track_caller]
fn check_retry_after(value: &str, expected_seconds: u64) {
    check(429, &[("Retry-After", value)], expected_seconds);
}

/// Every field that says when a quota is there again, with nothing remaining.
#[track_caller]
fn check_reset(value: &str, expected_seconds: u64) {
    for prefix in ["RateLimit", "X-RateLimit", "X-Rate-Limit"] {
        let (remaining, reset) = (format!("{prefix}-Remaining"), format!("{prefix}-Reset"));
        check(200, &[(&remaining, "0"), (&reset, value)], expected_seconds);
        check(429, &[(&reset, value), (&remaining, "0")], expected_seconds);
    }
    check(200, &[("RateLimit", &format!("limit=100, remaining=0, reset={value}"))], expected_seconds);
    check(200, &[("RateLimit", &format!("\"default\";r=0;t={value}"))], expected_seconds);
}

#[test]
fn retry_after_in_seconds_is_a_pause_of_that_length() {
    check_retry_after("120", 120);
    check_retry_after("1", 1);
    check_retry_after("0", 0);
    check_retry_after(" 007\t", 7);
    check_retry_after("2678400", CAP);
    check(429, &[("retry-after", "5")], 5);
    check(429, &[("RETRY-AFTER", "5")], 5);
}

#[test]
fn a_huge_retry_after_is_the_longest_pause() {
    for huge in ["2678401", "99999999", "999999999", "9999999999", "4294967295", "1000000000000"] {
        check_retry_after(huge, CAP);
    }
    for huge in
        ["18446744073709551615", "18446744073709551616", &"9".repeat(400), &format!("1{}", "0".repeat(399))]
    {
        check_retry_after(huge, CAP);
    }
    assert_eq!(Duration::from_secs(CAP), PAUSE_MAX);
}

#[test]
fn retry_after_in_each_form_of_date_is_judged_in_utc() {
    // Dates have no zone but GMT, and nothing here asks for the local one.
    for date in
        ["Sat, 17 Jun 2023 12:02:00 GMT", "Saturday, 17-Jun-23 12:02:00 GMT", "Sat Jun 17 12:02:00 2023"]
    {
        check_retry_after(date, 120);
        check(503, &[("Date", "Sat, 17 Jun 2023 12:01:50 GMT"), ("Retry-After", date)], 10);
    }
    check(
        429,
        &[("Date", "Thu, 25 Jun 2020 21:28:12 GMT"), ("Retry-After", "Thu, 25 Jun 2020 21:30:12 GMT")],
        120,
    );
    check_retry_after("Thu, 01 Jan 2099 00:00:00 GMT", CAP);
    check_retry_after("Fri, 31 Dec 9999 23:59:59 GMT", CAP);
    check_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", 0);
    check_retry_after("Thu, 01 Jan 1970 00:00:00 GMT", 0);
    check_retry_after("Sat, 17 Jun 2023 12:00:00 GMT", 0);
}

#[test]
fn two_digits_of_a_year_are_within_1970_to_2069() {
    check_retry_after("Thursday, 01-Jan-70 00:00:00 GMT", 0);
    check_retry_after("Sunday, 06-Nov-94 08:49:37 GMT", 0);
    check_retry_after("Tuesday, 01-Jan-69 00:00:00 GMT", CAP);
}

#[test]
fn a_leap_second_is_the_second_after_59() {
    let date = ("Date", "Sat, 31 Dec 2016 23:59:00 GMT");
    check(429, &[date, ("Retry-After", "Sat, 31 Dec 2016 23:59:60 GMT")], 60);
    check(429, &[date, ("Retry-After", "Saturday, 31-Dec-16 23:59:60 GMT")], 60);
    check(429, &[date, ("Retry-After", "Sat Dec 31 23:59:60 2016")], 60);
    check(
        429,
        &[("Date", "Sat, 31 Dec 2016 23:59:60 GMT"), ("Retry-After", "Sun, 01 Jan 2017 00:00:10 GMT")],
        10,
    );
    check_retry_after("Sat, 31 Dec 2026 23:59:61 GMT", 0);
    check_retry_after("Thu, 31 Dec 2026 12:00:60 GMT", 0);
    check_retry_after("23:59:60", 0);
    check_retry_after(&format!("23:59:60{}", " ".repeat(40)), 0);
}

#[test]
fn a_wrong_local_clock_does_not_matter_to_a_response_with_a_date() {
    for date in
        ["Sat, 17 Jun 2023 07:00:00 GMT", "Tue, 17 Jun 2003 07:00:00 GMT", "Fri, 17 Jun 2050 07:00:00 GMT"]
    {
        let retry = date.replace("07:00:00", "07:00:09");
        check(429, &[("Retry-After", &retry), ("date", date)], 9);
    }
    // 05:00 by the provider's clock.
    let headers = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1686978009")];
    check(200, &[headers[0], headers[1], ("Date", "Sat, 17 Jun 2023 05:00:00 GMT")], 9);
}

#[test]
fn a_date_that_cannot_be_read_leaves_the_local_clock() {
    let retry = ("Retry-After", "Sat, 17 Jun 2023 12:00:30 GMT");
    check(429, &[("Date", "yesterday"), retry], 30);
    check(429, &[("Date", ""), ("Date", "Sat, 17 Jun 2023 12:00:20 GMT"), retry], 10);
}

#[test]
fn what_is_not_a_number_or_an_http_date_says_nothing() {
    let wrong = [
        "",
        " ",
        "-1",
        "+5",
        "+5x",
        "5x",
        "1.5",
        "1e3",
        "0x10",
        "10 s",
        "1_000",
        "\u{0661}",
        "soon",
        "tomorrow",
        "\"60\"",
        "NaN",
        "inf",
        "-9223372036854775808",
        "1 Jan 2099 00:00:00",
        "Thu, 01 Jan 2099 00:00:00 XYZ",
        "Thu, 01 Jan 2099 00:00:00",
        "Thu, 01 Jan 2099 00:00:00 +0000",
        "Thu, 01 Jan 2099 24:00:00 GMT",
        "Thu, 00 Jan 2099 00:00:00 GMT",
        "Thu, 32 Jan 2099 00:00:00 GMT",
        "Fri, 30 Feb 2099 00:00:00 GMT",
        "Fri, 01 Jan 2099 00:00:00 GMT",
        "2099-01-01T00:00:00Z",
        "Thu, 01 Jan 12099 00:00:00 GMT",
    ];
    for value in wrong {
        check_retry_after(value, 0);
        check_reset(value, 0);
        // Beside what can be read it changes nothing.
        check(429, &[("Retry-After", value), ("Retry-After", "7")], 7);
        check(429, &[("Retry-After", "7"), ("Retry-After", value)], 7);
    }
    // In the field `RateLimit` a comma ends a member.
    for value in ["1,5", "60, 60"] {
        check_retry_after(value, 0);
        check(429, &[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", value)], 0);
    }
}

#[test]
fn what_is_not_text_says_nothing() {
    for value in [&b"\xff"[..], b"6\xff0", b"\xc3\x28", b"60\0", b"\0", b"Thu, 01 Jan 2099 00:00:00 GM\xd4"] {
        check_pause(429, &[("Retry-After", value), ("Date", value)], 0);
        check_pause(429, &[("X-RateLimit-Remaining", b"0"), ("X-RateLimit-Reset", value)], 0);
        check_pause(429, &[("X-RateLimit-Remaining", value), ("X-RateLimit-Reset", b"5")], 0);
        check_pause(429, &[("RateLimit", value), ("RateLimit-Policy", value)], 0);
    }
    check_pause(429, &[("RateLimit", b"\"gr\xfc\xdfe\";r=0;t=4")], 4_000);
}

#[test]
fn of_repeated_fields_the_longest_counts() {
    let date = "Sat, 17 Jun 2023 12:00:40 GMT";
    check(429, &[("Retry-After", "5"), ("Retry-After", "60"), ("Retry-After", "7")], 60);
    check(429, &[("Retry-After", "5"), ("Retry-After", date)], 40);
    check(429, &[("Retry-After", date), ("Retry-After", "55")], 55);
    check(
        200,
        &[("X-RateLimit-Remaining", "9"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "3")],
        3,
    );
    let resets = [("X-RateLimit-Reset", "3"), ("X-RateLimit-Reset", "1687003204")];
    check(200, &[("X-RateLimit-Remaining", "0"), resets[0], resets[1]], 4);
    // One that is not believed hides none that is.
    check(200, &[("X-RateLimit-Remaining", "0"), resets[1], ("X-RateLimit-Reset", "1800000000")], 4);
}

#[test]
fn of_several_sources_the_longest_counts() {
    let spent = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "30")];
    let fields = [("RateLimit-Remaining", "0"), ("RateLimit-Reset", "40")];
    check(429, &[("Retry-After", "20"), spent[0], spent[1], fields[0], fields[1]], 40);
    check(429, &[("Retry-After", "50"), spent[0], spent[1], fields[0], fields[1]], 50);
    check(429, &[("Retry-After", "20"), spent[0], spent[1], ("RateLimit", "\"a\";r=0;t=25")], 30);
    check(429, &[spent[0], spent[1], fields[0], fields[1], ("RateLimit", "\"a\";r=0;t=45")], 45);
}

#[test]
fn retry_after_counts_where_it_is_about_calls_in_general() {
    for status in [403, 420, 429, 500, 502, 503, 504, 529, 599] {
        check(status, &[("Retry-After", "9")], 9);
    }
    for status in [0, 100, 200, 202, 301, 304, 400, 401, 404, 409, 413, 423, 428, 430, 600, 65_535] {
        check(status, &[("Retry-After", "9")], 0);
    }
}

#[test]
fn quotas_count_with_any_status_once_nothing_remains() {
    for status in [200, 304, 403, 404, 429, 503] {
        check(status, &[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9")], 9);
    }
    for remaining in ["1", "5000", "-1", "-0", "0.0", "", "none"] {
        check(429, &[("X-RateLimit-Remaining", remaining), ("X-RateLimit-Reset", "9")], 0);
        check(429, &[("RateLimit-Remaining", remaining), ("RateLimit-Reset", "9")], 0);
        check(429, &[("RateLimit", &format!("limit=9, remaining={remaining}, reset=9"))], 0);
        check(429, &[("RateLimit", &format!("\"a\";r={remaining};t=9"))], 0);
    }
    check(429, &[("X-RateLimit-Reset", "9")], 0);
    check(429, &[("X-RateLimit-Remaining", "0")], 0);
    check(429, &[("X-RateLimit-Remaining", "0"), ("RateLimit-Reset", "9")], 0);
    check(200, &[("X-Rate-Limit-Remaining", "00"), ("X-RateLimit-Reset", "9")], 9);
}

#[test]
fn a_reset_is_seconds_or_an_epoch_in_seconds_or_milliseconds() {
    check_reset("30", 30);
    check_reset("0", 0);
    check_reset("1687003235", 35);
    check_reset("1687003235000", 35);
    check_reset("1687003200", 0);
    check_reset("1687003199", 0);
    check_reset("1687003199999", 0);
    check_reset("1689595200", 30 * DAY);
    check_reset("1689854400", CAP);
    check_pause(200, &[("X-RateLimit-Remaining", b"0"), ("X-RateLimit-Reset", b"1687003200250")], 250);
    // The seconds of a quota that lasts a year.
    check_reset("31622399", CAP);
}

#[test]
fn no_epoch_is_a_pause_of_54_years() {
    for (value, expected_seconds) in
        [("1687003199", 0), ("1687003210", 10), ("1687003210000", 10), ("1687003199000", 0)]
    {
        check_retry_after(value, expected_seconds);
        check_reset(value, expected_seconds);
    }
    // Nothing says what these are.
    for value in
        ["31622400", "999999999", "1000000000", "1600000000", "1800000000", "4102444800", "1800000000000"]
    {
        check_reset(value, 0);
    }
    for value in ["1687003210000000", "1687003210000000000", "18446744073709551615", &"9".repeat(400)] {
        check_reset(value, 0);
    }
    let now = UNIX_EPOCH + Duration::from_secs(5);
    let headers = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1687003235")];
    assert_eq!(Feedback::from_response_at(200, headers, now).pause_for(), None, "a clock that was never set");
}

#[test]
fn any_spent_quota_of_a_list_counts() {
    for (field, expected_seconds) in [
        (r#""default";r=0;t=30"#, 30),
        (r#""default";r=50;t=30"#, 0),
        ("default;r=0;t=30", 30),
        ("default;l=100;r=0;t=30", 30),
        (r#""burst";r=0;t=2, "daily";r=0;t=7200"#, 7200),
        (r#""burst";r=0;t=2,"daily";r=9;t=7200"#, 2),
        (r#""a,b;c\"d\\";r=0;t=4 , "e";r=1;t=9"#, 4),
        (r#""a"; r=0; t=4;pk=:cHsdsRa894==:"#, 4),
        (r#""a";t=4;r=0"#, 4),
        (r#""a";r=9;t=9;r=0;t=3"#, 3),
        (r#""a";r=0;t=-4"#, 0),
        (r#""a";r=0;t=1.5"#, 0),
        (r#""a";r=0;t"#, 0),
        (r#""a";r=0"#, 0),
        ("limit=100, remaining=0, reset=30", 30),
        ("limit=100;w=60,remaining=0;x=\",\",reset=30;y", 30),
        ("remaining=0", 0),
        ("reset=30", 0),
        // Mistakes: the field counts as absent.
        (r#""a";r=0;t=30, "b"#, 0),
        (r#""a";r=0;t=30,"#, 0),
        (r#""a";r=0;t=30,,"b";r=0;t=3"#, 0),
        (r#"a"b;r=0;t=30, ""#, 0),
        ("=0, remaining=0, reset=30", 0),
        ("\"", 0),
        (";r=0;t=5", 0),
    ] {
        check(200, &[("RateLimit", field)], expected_seconds);
    }
    check(200, &[("RateLimit", "limit=9, remaining=0"), ("ratelimit", "reset=8")], 8);
    check(200, &[("RateLimit", "\"a\";r=0;t=8"), ("RateLimit", "\"b\";r=0;t=9")], 9);
}

#[test]
fn a_spent_quota_without_an_end_lasts_for_its_policys_window() {
    let policies = (
        "RateLimit-Policy",
        r#""burst";q=10;w=2, "daily";q=1000;w=86400, "slots";q=4;w=9;qu="concurrent-requests""#,
    );
    check(200, &[("RateLimit", r#""burst";r=0"#), policies], 2);
    check(200, &[policies, ("RateLimit", r#""daily";r=0, "burst";r=0;t=1"#)], DAY);
    check(200, &[policies, ("RateLimit", r#""burst";r=1"#)], 0);
    check(200, &[policies, ("RateLimit", r#""slots";r=0"#)], 0);
    check(200, &[policies, ("RateLimit", r#""other";r=0"#)], 0);
    check(200, &[policies], 0);
    check(200, &[("RateLimit-Policy", "100;w=60"), ("RateLimit", "limit=100, remaining=0, reset=5")], 5);
    check(200, &[("RateLimit", r#""a";r=0"#), ("RateLimit-Policy", r#""a";q=1;w=99999999999"#)], 0);
    let many: Vec<_> = (0..50).map(|number| format!("\"{number}\";r=0;w=5")).collect();
    let many = many.join(", ");
    check(200, &[("RateLimit", &many), ("RateLimit-Policy", &many)], 5);
}

#[test]
fn a_cached_response_says_nothing_of_quotas() {
    let spent = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "30")];
    check(200, &[("Age", "1"), spent[0], spent[1]], 0);
    check(200, &[spent[0], spent[1], ("Age", "0")], 30);
    check(200, &[spent[0], spent[1], ("Age", "-1")], 30);
    check(503, &[("Age", "100"), ("Retry-After", "20"), spent[0], spent[1]], 20);
}

#[test]
fn no_fields_are_no_pause() {
    for status in [0, 200, 429, 503, u16::MAX] {
        check(status, &[], 0);
        check(status, &[("", ""), ("\u{e9}", "1"), ("Retry_After", "5"), ("Retry-After ", "5")], 0);
    }
}

#[test]
fn a_duration_is_a_pause_within_the_cap() {
    for (length, expected) in [
        (Duration::ZERO, None),
        (Duration::from_nanos(1), Some(Duration::from_nanos(1))),
        (Duration::from_secs(60), Some(Duration::from_secs(60))),
        (PAUSE_MAX, Some(PAUSE_MAX)),
        (Duration::MAX, Some(PAUSE_MAX)),
    ] {
        assert_eq!(Feedback::pause(length).pause_for(), expected);
        assert!(!Feedback::pause(length).is_refusal());
    }
}

#[test]
fn a_refusal_is_429_or_503() {
    let nothing: [(&str, &str); 0] = [];
    for status in [0, 200, 403, 428, 429, 430, 500, 502, 503, 504] {
        assert_eq!(
            Feedback::from_response(status, nothing).is_refusal(),
            [429, 503].contains(&status),
            "{status}"
        );
    }
}

#[test]
fn without_a_date_the_wall_clock_of_the_machine_counts() {
    let far = [("Retry-After", "Thu, 01 Jan 2099 00:00:00 GMT")];
    assert_eq!(Feedback::from_response(429, far).pause_for(), Some(PAUSE_MAX));
    let past = [("Retry-After", "Sat, 17 Jun 2023 12:00:00 GMT")];
    assert_eq!(Feedback::from_response(429, past).pause_for(), None);
    let before_1970 = UNIX_EPOCH.checked_sub(Duration::from_secs(DAY)).unwrap();
    let early = [("Retry-After", "Thu, 01 Jan 1970 00:00:07 GMT")];
    assert_eq!(
        Feedback::from_response_at(429, early, before_1970).pause_for(),
        Some(Duration::from_secs(7)),
        "a time before 1970 counts as 1970"
    );
}

#[cfg(feature = "http")]
#[test]
fn a_response_of_the_http_crate_is_read_with_its_parts() {
    let response = http::Response::builder()
        .status(429)
        .header("retry-after", "30")
        .header("retry-after", http::HeaderValue::from_bytes(b"\xff").unwrap())
        .body(())
        .unwrap();
    let expected = Feedback::from_response(429, [("Retry-After", "30")]);
    assert_eq!(Feedback::from(&response), expected);
    assert_eq!(Feedback::from(&response.into_parts().0), expected);
    assert_eq!(expected.pause_for(), Some(Duration::from_secs(30)));
}
