//! Makes a response of any bytes and holds what `Feedback` reads of it to what is promised of every response: the body of the fuzz target
//! `feedback`, and of a test that draws the bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use valve::Feedback;

const NAMES: [&str; 16] = [
    "Retry-After",
    "Date",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-Rate-Limit-Remaining",
    "X-Rate-Limit-Reset",
    "Age",
    "retry-after",
    "ratelimit",
    "x-ratelimit-reset",
    "Server",
    "",
];

const LONGEST: Duration = Duration::from_secs(31 * 24 * 3600);

/// Of more values of one kind, the last may be left out.
const VALUES_MAX: usize = 8;

type Line<'a> = (&'static str, &'a [u8]);

/// Two bytes of status, five of time, then lines: each a byte that picks the name, and a value up to the end of the line.
pub(crate) fn check(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<7>() else { return };
    let [high, low, time @ ..] = *head;
    let status = u16::from_be_bytes([high, low]) % 700;
    let seconds = time.into_iter().fold(0, |seconds, byte| seconds << 8 | u64::from(byte));
    let now = UNIX_EPOCH + Duration::from_secs(seconds);
    let lines: Vec<Line<'_>> = rest.split(|byte| *byte == b'\n').filter_map(line).collect();

    // The machine's clock instead of `now`: whatever it shows.
    within_the_cap(&Feedback::from_response(status, lines.iter().copied()));
    let pause = pause(status, &lines, now);
    let reversed: Vec<Line<'_>> = lines.iter().rev().copied().collect();
    let dates = lines.iter().filter(|(name, _)| *name == "Date").count();
    let commas = rest.iter().filter(|byte| **byte == b',').count();
    if dates <= 1 && lines.len() + commas <= VALUES_MAX {
        assert_eq!(self::pause(status, &reversed, now), pause, "the order of fields counts");
    }
    for retry_after in
        ["5", "-1", "Thu, 01 Jan 2099 00:00:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", "4102444800"]
    {
        let mut longer = lines.clone();
        longer.push(("Retry-After", retry_after.as_bytes()));
        assert!(self::pause(status, &longer, now) >= pause, "{retry_after} shortens a pause");
    }
}

fn line(bytes: &[u8]) -> Option<Line<'_>> {
    let (name, value) = bytes.split_first()?;
    Some((NAMES[usize::from(*name) % NAMES.len()], value))
}

fn pause(status: u16, lines: &[Line<'_>], now: SystemTime) -> Option<Duration> {
    let told = Feedback::from_response_at(status, lines.iter().copied(), now);
    within_the_cap(&told);
    told.pause_for()
}

fn within_the_cap(told: &Feedback) {
    assert!(told.pause_for().is_none_or(|pause| !pause.is_zero() && pause <= LONGEST), "{told:?}");
}
