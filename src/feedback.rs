//! What a provider's answer says about when to call again: [`Feedback`].
//!
//! Pure but for one read of the wall clock, which it makes only for a response that says a date and not its own.

mod fields;
mod quotas;
mod value;

use self::fields::Reading;
use crate::clock::Clock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest pause: a month, which no provider's answer should exceed.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(31 * 24 * 3600);

/// What an answer of the provider says about when to call again: nothing, or how long to pause.
///
/// Made from a response's status and header fields, from a duration, or, with the feature `http`, by `From` a response
/// of the `http` crate. What it found is [`pause_for`](Feedback::pause_for).
///
/// # What is read
///
/// | field | counts | as |
/// |---|---|---|
/// | `Retry-After` | with status 403, 420, 429 and 5xx | seconds, or a date in one of the three forms of HTTP |
/// | `RateLimit: "name";r=0;t=30` | with `r=0` | the seconds in `t`; without it, `w` of the same name in `RateLimit-Policy` |
/// | `RateLimit: remaining=0, reset=30` | with `remaining=0` | like the next |
/// | `RateLimit-Reset` | with `RateLimit-Remaining: 0` | seconds, or seconds or milliseconds of the Unix epoch |
/// | `X-RateLimit-Reset`, `X-Rate-Limit-Reset` | with such a `-Remaining: 0` | the same |
///
/// `Retry-After` with another status is about that one resource or request: 202 says when to look again, 301 how long
/// to wait before the redirection. Quotas count with any status, since the last call that a quota allows succeeds; but not in
/// a response that a cache gives a second time, which an `Age` above 0 shows.
///
/// Dates and epochs are judged against the response's own `Date`, so a wrong clock on this side changes nothing; without one,
/// against the wall clock of this machine. A number is an epoch if that puts it within 366 days of now. Any other number is
/// seconds, however many, in `Retry-After`; in a quota it must be within 366 days, or is not believed.
///
/// Of several the longest counts, and no more than 31 days. What is not written as its definition says is not read: a sign, a
/// fraction, a date without `GMT`. What lies in the past is no pause.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use valve::Feedback;
///
/// let told = Feedback::from_response(429, [("Retry-After", "60")]);
/// assert_eq!(told.pause_for(), Some(Duration::from_secs(60)));
///
/// let told = Feedback::from_response(200, [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "5")]);
/// assert_eq!(told.pause_for(), Some(Duration::from_secs(5)));
///
/// assert_eq!(Feedback::from_response(429, [("Retry-After", "soon")]).pause_for(), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feedback {
    status: Option<u16>,
    pause: Option<Duration>,
}

impl Feedback {
    /// Reads a response: its status, and its header fields in any order and case, repeated or not. Values need not be UTF-8.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::Feedback;
    ///
    /// // The provider's clock is years behind, which does not matter.
    /// let headers = [
    ///     ("Date", "Thu, 25 Jun 2020 21:28:12 GMT"),
    ///     ("Retry-After", "Thu, 25 Jun 2020 21:30:12 GMT"),
    /// ];
    /// assert_eq!(Feedback::from_response(503, headers).pause_for(), Some(Duration::from_secs(120)));
    /// ```
    #[must_use]
    pub fn from_response(
        status: u16,
        headers: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
    ) -> Feedback {
        Feedback::read(status, headers, || Clock::System.wall())
    }

    /// Like [`from_response`](Feedback::from_response) for a response that came at `now`, which stands for the wall clock: of
    /// a test, or of a response that waited to be read. A time before 1970 counts as 1970.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use valve::Feedback;
    ///
    /// let now = UNIX_EPOCH + Duration::from_secs(1_700_000_005);
    /// let spent = |reset| [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", reset)];
    /// let pause = |reset| Feedback::from_response_at(200, spent(reset), now).pause_for();
    /// assert_eq!(pause("1700000035"), Some(Duration::from_secs(30)));
    /// assert_eq!(pause("1700000000"), None); // past
    /// ```
    #[must_use]
    pub fn from_response_at(
        status: u16,
        headers: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
        now: SystemTime,
    ) -> Feedback {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Feedback::read(status, headers, || u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
    }

    /// Says that everybody should pause for `length`, for what comes by another way than HTTP. Zero says nothing; more than
    /// 31 days are 31 days.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use valve::Feedback;
    ///
    /// assert_eq!(Feedback::pause(Duration::from_secs(3)).pause_for(), Some(Duration::from_secs(3)));
    /// assert_eq!(Feedback::pause(Duration::ZERO).pause_for(), None);
    /// ```
    #[must_use]
    pub fn pause(length: Duration) -> Feedback {
        Feedback { status: None, pause: credible(length) }
    }

    /// Gives the pause that was asked for, counted from when the response came: more than zero and at most 31 days, or none.
    #[must_use]
    pub fn pause_for(&self) -> Option<Duration> {
        self.pause
    }

    /// Whether the provider refused the call without having done anything: status 429 or 503.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self.status, Some(429 | 503))
    }

    /// `wall` is microseconds of the Unix epoch, asked for at most once.
    fn read(
        status: u16,
        headers: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
        wall: impl FnOnce() -> u64,
    ) -> Feedback {
        let mut reading = Reading::default();
        for (name, value) in headers {
            reading.take(name.as_ref(), value.as_ref());
        }
        Feedback { status: Some(status), pause: credible(reading.pause(status, wall)) }
    }
}

#[cfg(feature = "http")]
impl<B> From<&http::Response<B>> for Feedback {
    /// Reads the status and the header fields, not the body.
    fn from(response: &http::Response<B>) -> Feedback {
        Feedback::from_response(response.status().as_u16(), response.headers())
    }
}

#[cfg(feature = "http")]
impl From<&http::response::Parts> for Feedback {
    fn from(parts: &http::response::Parts) -> Feedback {
        Feedback::from_response(parts.status.as_u16(), &parts.headers)
    }
}

fn credible(length: Duration) -> Option<Duration> {
    Some(length.min(PAUSE_MAX)).filter(|length| !length.is_zero())
}

#[cfg(test)]
mod tests;
