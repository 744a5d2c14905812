//! Quotas that are spent, and until when: the fields `RateLimit`, `RateLimit-Policy`, and those with a `-Remaining` and a `-Reset`.
//!
//! `RateLimit` has had two forms in the drafts of draft-ietf-httpapi-ratelimit-headers: up to 07 one quota as a dictionary, then a list of
//! named quotas with parameters. Both are structured fields (RFC 9651), of which this reads as much as they use.

use super::value::{Doubtful, Said, Value, whole};

/// How many named quotas of one response are remembered; a provider has two or three.
const NAMED_MAX: usize = 8;

/// What one family of fields says.
#[derive(Clone, Default)]
pub(super) struct Quotas {
    /// Whether a `-Remaining` was 0.
    nothing_remains: bool,
    resets: Said,
    /// The ends of the named quotas that are spent.
    named: Said,
    /// The spent ones that did not say until when.
    endless: [Option<Name>; NAMED_MAX],
    /// How long each policy's window is, in seconds.
    windows: [Option<(Name, u64)>; NAMED_MAX],
}

/// A hash of the name: to keep the name itself would need memory from the heap.
type Name = u64;

impl Quotas {
    pub(super) fn remaining(&mut self, value: &[u8]) {
        self.nothing_remains |= whole(value) == Some(0);
    }

    pub(super) fn reset(&mut self, value: &[u8]) {
        self.resets.add(whole(value).map(Value::Number));
    }

    /// A field with a mistake anywhere counts as absent, as RFC 9651, section 4.2, has it.
    pub(super) fn rate_limit(&mut self, value: &[u8]) {
        let mut read = self.clone();
        let whole_field = each_member(value, |member| match (member.name, member.value) {
            (b"remaining", Some(value)) => read.remaining(value),
            (b"reset", Some(value)) => read.reset(value),
            (name, None) if member.parameters.r.and_then(whole) == Some(0) => match member.parameters.t {
                Some(seconds) => read.named.add(whole(seconds).map(Value::Number)),
                None => remember(&mut read.endless, hash(name)),
            },
            _ => {}
        });
        if whole_field.is_some() {
            *self = read;
        }
    }

    pub(super) fn policy(&mut self, value: &[u8]) {
        let mut windows = self.windows;
        let whole_field = each_member(value, |member| {
            // Of concurrent requests nothing comes back with time.
            let comes_back = member.parameters.qu != Some(b"\"concurrent-requests\"");
            if let Some(seconds) = member.parameters.w.filter(|_| comes_back).and_then(whole) {
                remember(&mut windows, (hash(member.name), seconds));
            }
        });
        if whole_field.is_some() {
            self.windows = windows;
        }
    }

    /// Whatever is spent, if anything is and said until when.
    pub(super) fn spent(&self) -> Option<Spent> {
        let mut named = self.named;
        for name in self.endless.iter().flatten() {
            let windows = self.windows.iter().flatten().filter(|(policy, _)| policy == name);
            windows.for_each(|(_, seconds)| named.add(Some(Value::Number(*seconds))));
        }
        let resets = if self.nothing_remains { self.resets } else { Said::default() };
        (!named.is_nothing() || !resets.is_nothing()).then_some(Spent([named, resets]))
    }
}

/// Until when what is spent stays spent.
pub(super) struct Spent([Said; 2]);

impl Spent {
    /// In microseconds from `now`.
    pub(super) fn longest(&self, now: u64) -> u64 {
        self.0.iter().map(|said| said.longest(now, Doubtful::Ignored)).max().unwrap_or(0)
    }
}

fn remember<T>(places: &mut [Option<T>], item: T) {
    if let Some(free) = places.iter_mut().find(|place| place.is_none()) {
        *free = Some(item);
    }
}

/// FNV-1a. Nothing is at stake if two names of one provider share a hash.
fn hash(name: &[u8]) -> Name {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// One member of a list or dictionary.
struct Member<'a> {
    /// The key of a dictionary, or an item without its quotes.
    name: &'a [u8],
    /// Only in a dictionary.
    value: Option<&'a [u8]>,
    parameters: Parameters<'a>,
}

/// The last of each name, as RFC 9651, section 3.1.2, has it; strings with their quotes.
#[derive(Default)]
struct Parameters<'a> {
    r: Option<&'a [u8]>,
    t: Option<&'a [u8]>,
    w: Option<&'a [u8]>,
    qu: Option<&'a [u8]>,
}

/// Calls `read` with each member, up to a mistake; `None` says that there was one.
fn each_member<'a>(field: &'a [u8], mut read: impl FnMut(Member<'a>)) -> Option<()> {
    let mut rest = field.trim_ascii();
    while !rest.is_empty() {
        let (member, after) = rest.split_at(end_of(rest, b',')?);
        read(split_member(member.trim_ascii())?);
        rest = match after.strip_prefix(b",") {
            // Nothing after a comma is a mistake too.
            Some(after) => Some(after.trim_ascii_start()).filter(|after| !after.is_empty())?,
            None => after,
        };
    }
    Some(())
}

fn split_member(member: &[u8]) -> Option<Member<'_>> {
    let (item, parameters) = member.split_at(end_of(member, b';')?);
    let parameters = split_parameters(parameters)?;
    let item = item.trim_ascii_end();
    if let Some(quoted) = item.strip_prefix(b"\"") {
        return Some(Member { name: quoted.strip_suffix(b"\"")?, value: None, parameters });
    }
    let (name, value) = match split_once(item, b'=') {
        Some((name, value)) => (name, Some(value)),
        None => (item, None),
    };
    (!name.is_empty()).then_some(Member { name, value, parameters })
}

fn split_parameters(mut rest: &[u8]) -> Option<Parameters<'_>> {
    let mut found = Parameters::default();
    while let Some(parameter) = rest.strip_prefix(b";") {
        let (parameter, after) = parameter.split_at(end_of(parameter, b';')?);
        rest = after;
        let (name, value) = split_once(parameter.trim_ascii(), b'=').unwrap_or_default();
        match name {
            b"r" => found.r = Some(value),
            b"t" => found.t = Some(value),
            b"w" => found.w = Some(value),
            b"qu" => found.qu = Some(value),
            _ => {}
        }
    }
    Some(found)
}

/// Where the first `stop` outside a string is, or the end; `None` if a string does not end.
fn end_of(text: &[u8], stop: u8) -> Option<usize> {
    let mut index = 0;
    while let Some(&byte) = text.get(index) {
        match byte {
            _ if byte == stop => return Some(index),
            b'"' => index += 1 + end_of_string(&text[index + 1..])?,
            _ => index += 1,
        }
    }
    Some(index)
}

/// Behind the quote that ends it.
fn end_of_string(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map(|end| end + 1)
}

fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}
