//! Which header fields are read, and what all of a response's together mean.

use super::quotas::Quotas;
use super::value::{Doubtful, SECOND, Said, Value, date, whole};
use std::time::Duration;

/// What has been read of one response so far.
#[derive(Default)]
pub(super) struct Reading {
    /// The response's own, in seconds of the epoch.
    date: Option<u64>,
    from_cache: bool,
    retry: Said,
    quotas: Quotas,
    /// Other names, same meaning: a provider that sends both kinds may count differently in each.
    x_quotas: Quotas,
}

impl Reading {
    #[inline]
    pub(super) fn take(&mut self, name: &str, value: &[u8]) {
        if let Some(field) = Field::of(name) {
            self.take_field(field, value);
        }
    }

    fn take_field(&mut self, field: Field, value: &[u8]) {
        match field {
            Field::Date => self.date = self.date.or_else(|| date(value)),
            Field::Age => self.from_cache |= whole(value).is_some_and(|seconds| seconds > 0),
            Field::RetryAfter => {
                let number = whole(value).map(Value::Number);
                self.retry.add(number.or_else(|| date(value).map(Value::Date)));
            }
            Field::RateLimit => self.quotas.rate_limit(value),
            Field::Policy => self.quotas.policy(value),
            Field::Remaining => self.quotas.remaining(value),
            Field::Reset => self.quotas.reset(value),
            Field::XRemaining => self.x_quotas.remaining(value),
            Field::XReset => self.x_quotas.reset(value),
        }
    }

    /// `wall` is microseconds of the epoch, for a response without a date of its own.
    pub(super) fn pause(&self, status: u16, wall: impl FnOnce() -> u64) -> Duration {
        let retry = Some(&self.retry).filter(|said| heeds_retry_after(status) && !said.is_nothing());
        let quotas = [&self.quotas, &self.x_quotas].map(|quotas| quotas.spent().filter(|_| !self.from_cache));
        if retry.is_none() && quotas.iter().all(Option::is_none) {
            return Duration::ZERO;
        }
        let now = self.date.map_or_else(wall, |seconds| seconds.saturating_mul(SECOND));
        let retry = retry.map_or(0, |said| said.longest(now, Doubtful::Length));
        let quotas = quotas.iter().flatten().map(|spent| spent.longest(now));
        Duration::from_micros(quotas.fold(retry, u64::max))
    }
}

/// Whether `Retry-After` is about calls in general and not about this one resource.
fn heeds_retry_after(status: u16) -> bool {
    // 403 and 420 is what some providers say instead of 429.
    matches!(status, 403 | 420 | 429 | 500..=599)
}

#[derive(Clone, Copy)]
enum Field {
    Date,
    Age,
    RetryAfter,
    RateLimit,
    Policy,
    Remaining,
    Reset,
    XRemaining,
    XReset,
}

impl Field {
    /// By length first, which leaves at most one comparison to most fields.
    #[inline]
    fn of(name: &str) -> Option<Field> {
        let (known, field) = match name.len() {
            3 => ("age", Field::Age),
            4 => ("date", Field::Date),
            9 => ("ratelimit", Field::RateLimit),
            11 => ("retry-after", Field::RetryAfter),
            15 => ("ratelimit-reset", Field::Reset),
            16 => ("ratelimit-policy", Field::Policy),
            17 => ("x-ratelimit-reset", Field::XReset),
            18 => ("x-rate-limit-reset", Field::XReset),
            19 => ("ratelimit-remaining", Field::Remaining),
            21 => ("x-ratelimit-remaining", Field::XRemaining),
            22 => ("x-rate-limit-remaining", Field::XRemaining),
            _ => return None,
        };
        name.eq_ignore_ascii_case(known).then_some(field)
    }
}
