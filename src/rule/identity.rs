//! What a rule is called: the checks of its numbers and name, and the key under which processes share it.

use std::fmt::Display;
use std::time::Duration;

use super::{Kind, Rule};
use crate::error::Error;

/// The longest interval, and the longest time a burst may take to earn: sums of them with any clock reading
/// of the next two centuries stay exact in a double.
pub(super) const TEN_YEARS_US: u64 = 3_650 * 24 * 3_600 * 1_000_000;

const NAME_BYTES_MAX: usize = 64;

/// A rule's display name and its key in a store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) key: String,
}

/// Names a rule of a checked name and interval; `taken` are the keys of the rules before it.
///
/// Unnamed: `gcra/1s`, `gcra/1s#2`, `window/1h`. Named: `gcra:api`, `window/1h:api`. What comes before the
/// first `:` never contains a given name, so no two forms can meet.
pub(super) fn identify(rule: &Rule, interval_us: u64, taken: &[&str]) -> Result<Identity, String> {
    let base = unnamed(rule.kind, interval_us);
    let Some(name) = &rule.name else {
        let mut key = base.clone();
        for order in 2.. {
            if !taken.contains(&key.as_str()) {
                break;
            }
            key = format!("{base}#{order}");
        }
        return Ok(Identity { name: key.clone(), key });
    };
    // Another interval is another count: a shared one would let more through than either window allows.
    let key = match rule.kind {
        Kind::Gcra { .. } => format!("gcra:{name}"),
        Kind::FixedWindow => format!("{base}:{name}"),
    };
    if taken.contains(&key.as_str()) {
        return Err("an earlier rule of this kind has the same; give each its own".to_owned());
    }
    Ok(Identity { name: name.clone(), key })
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("it is empty; leave it out or give 1 to 64 bytes".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("{} bytes are too many; use at most {NAME_BYTES_MAX}", name.len()));
    }
    if name.contains(char::is_control) {
        return Err("it contains a control character; use printable text".to_owned());
    }
    Ok(())
}

pub(super) fn whole_microseconds(interval: Duration) -> Result<u64, String> {
    if interval.is_zero() {
        return Err("0 is too short; use at least 1us".to_owned());
    }
    if interval > Duration::from_micros(TEN_YEARS_US) {
        return Err(format!("{interval:?} is too long; use at most 3650 days"));
    }
    if interval.subsec_nanos() % 1_000 != 0 {
        return Err(format!(
            "{interval:?} has a fraction of a microsecond; use a whole number of microseconds"
        ));
    }
    Ok(interval.as_secs() * 1_000_000 + u64::from(interval.subsec_micros()))
}

/// The error about one field of one rule, naming the rule by place and by as much of its name as is valid.
pub(super) fn invalid(position: usize, rule: &Rule, field: impl Display, reason: impl Into<String>) -> Error {
    let label = match (&rule.name, whole_microseconds(rule.interval)) {
        (Some(name), _) if check_name(name).is_ok() => name.clone(),
        (_, Ok(interval_us)) => unnamed(rule.kind, interval_us),
        (_, Err(_)) => kind_text(rule.kind).to_owned(),
    };
    Error::invalid(format!("rule {} ({label}): {field}", position + 1), reason)
}

fn unnamed(kind: Kind, interval_us: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    let (unit_us, unit) =
        UNITS.into_iter().find(|(unit_us, _)| interval_us % unit_us == 0).unwrap_or((1, "us"));
    format!("{}/{}{unit}", kind_text(kind), interval_us / unit_us)
}

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Gcra { .. } => "gcra",
        Kind::FixedWindow => "window",
    }
}
