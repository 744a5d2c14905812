//! What single values mean: whole numbers, HTTP dates, and how long from now they say.

use std::time::UNIX_EPOCH;

/// Microseconds in a second.
pub(super) const SECOND: u64 = 1_000_000;

/// How far from now a quota's end, or an epoch, may be and still be believed: a year.
const NEAR: u64 = 366 * 24 * 3600 * SECOND;

/// Smaller numbers are no epoch: in seconds this is 2001, when epochs had not been seen in header fields.
const EPOCH_SECONDS_MIN: u64 = 1_000_000_000;
/// The same instant in milliseconds, as seconds far beyond every date that HTTP can say.
const EPOCH_MILLIS_MIN: u64 = 1_000_000_000_000;

/// Digits and nothing else but blanks around them, as HTTP and structured fields write a whole number; one that is too large
/// is the largest.
pub(super) fn whole(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, append))
}

/// Seconds of the Unix epoch, from any of the three forms of RFC 9110, section 5.6.7.
pub(super) fn date(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    // `httpdate` has no leap seconds; HTTP has.
    if let Some(at) = text.find(LEAP_SECOND) {
        let mut second_before = [b' '; 40];
        second_before.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        second_before[at + LEAP_SECOND.len() - 2..][..2].copy_from_slice(b"59");
        return Some(seconds_of(std::str::from_utf8(&second_before).ok()?)? + 1);
    }
    seconds_of(text)
}

const LEAP_SECOND: &str = "23:59:60";

fn seconds_of(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// What becomes of a number that is neither near as an epoch nor as a length.
#[derive(Clone, Copy)]
pub(super) enum Doubtful {
    /// It is a length all the same.
    Length,
    Ignored,
}

/// How many values are kept; no honest response has more of one kind.
const SAID_MAX: usize = 8;

/// What was said about how long, kept until the time is known, without which a number may be this or that.
#[derive(Clone, Copy, Default)]
pub(super) struct Said([Option<Value>; SAID_MAX]);

#[derive(Clone, Copy)]
pub(super) enum Value {
    Number(u64),
    /// Seconds of the epoch.
    Date(u64),
}

impl Said {
    pub(super) fn add(&mut self, value: Option<Value>) {
        if let (Some(free), Some(_)) = (self.0.iter_mut().find(|place| place.is_none()), value) {
            *free = value;
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.0[0].is_none()
    }

    /// The longest of them, in microseconds from `now`; what is past is 0.
    pub(super) fn longest(&self, now: u64, doubtful: Doubtful) -> u64 {
        self.0.iter().flatten().map(|value| value.wait(now, doubtful)).max().unwrap_or(0)
    }
}

impl Value {
    fn wait(self, now: u64, doubtful: Doubtful) -> u64 {
        let (number, unit) = match self {
            Value::Date(seconds) => return seconds.saturating_mul(SECOND).saturating_sub(now),
            Value::Number(millis @ EPOCH_MILLIS_MIN..) => (millis, SECOND / 1_000),
            Value::Number(seconds) => (seconds, SECOND),
        };
        let at = number.saturating_mul(unit);
        if number >= EPOCH_SECONDS_MIN && at.abs_diff(now) <= NEAR {
            return at.saturating_sub(now);
        }
        match (number.saturating_mul(SECOND), doubtful) {
            (NEAR.., Doubtful::Ignored) => 0,
            (length, _) => length,
        }
    }
}
