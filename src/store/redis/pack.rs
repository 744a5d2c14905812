//! What goes to the scripts and comes back, as bytes. Pure; the other side of each layout is in `scripts/*.lua`.
//!
//! Numbers are big-endian doubles, which hold every microsecond and count here exactly. A reply is believed only if it has
//! the exact size and says what can be: anything else is a [`Protocol`](StoreErrorKind::Protocol) error.

use crate::clock::{duration, ticks_up};
use crate::error::{Executed, StoreError, StoreErrorKind};
use crate::planted::fault;
use crate::rule::RuleSet;
use crate::store::{Answer, Ask, Lease, Refusal, Token};
use std::num::NonZeroU64;
use std::time::Duration;

/// The most jobs, releases or leases of one call.
const BATCH_MAX: usize = 1_024;

/// Up to here doubles hold every integer.
const EXACT_MAX: u64 = 1 << 53;

/// The arguments of a script that follow the not-after.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Where the notices of an id go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address<'a> {
    pub(super) channel: &'a [u8],
    pub(super) id: &'a str,
}

/// What became of the notice that a call would send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Notified {
    /// It went out, or there was none to send.
    Fine,
    /// This user may not publish there.
    Forbidden,
}

/// Of `admit.lua`.
pub(super) fn admit(ask: &Ask<'_>, address: Address<'_>) -> Result<Arguments, StoreError> {
    check_size("jobs", ask.costs.len())?;
    check_size("releases", ask.releases.len())?;
    let mut arguments = Arguments::default();
    arguments.bytes.reserve(256);
    let equal = same(ask.costs.iter().map(|&cost| u64::from(cost)));
    arguments.numbers(&[ask.rules.len() as u64, ask.costs.len() as u64, equal]);
    match &ask.slots {
        None => {
            arguments.double(-1.0);
            arguments.numbers(&[0, 0]);
        }
        Some(slots) if slots.tokens.len() != ask.costs.len() => {
            return Err(refused(format!("{} tokens for {} jobs", slots.tokens.len(), ask.costs.len())));
        }
        Some(slots) if slots.floor >= EXACT_MAX => {
            return Err(refused(format!("a fencing token above {} is not of this store", slots.floor)));
        }
        Some(slots) => {
            let ttl = ticks_up(slots.ttl) * if fault("V54") { 10 } else { 1 };
            arguments.numbers(&[slots.limit.into(), ttl, slots.floor]);
        }
    }
    arguments.numbers(&[ask.releases.len() as u64, ask.waits.into()]);
    for rule in 0..ask.rules.len() {
        arguments.rule(ask.rules, rule);
    }
    if equal == 0 {
        for &cost in ask.costs {
            arguments.number(cost.into());
        }
    }
    arguments.end();
    for rule in 0..ask.rules.len() {
        arguments.bytes(ask.rules.key(rule).as_bytes());
    }
    if !ask.releases.is_empty() {
        arguments.address(address);
        arguments.tokens(ask.releases.iter().copied());
    }
    if let Some(slots) = &ask.slots {
        arguments.tokens(slots.tokens.iter().copied());
    }
    Ok(arguments)
}

/// The reply of `admit.lua` to this ask.
pub(super) fn admitted(payload: &[u8], ask: &Ask<'_>, answer: &mut Answer) -> Result<Notified, StoreError> {
    let mut reply = Reply(payload);
    let granted = reply.index(ask.costs.len() + 1)?;
    let at = reply.whole()?;
    if reply.is_read() && granted == ask.costs.len() && ask.slots.is_none() {
        *answer = Answer { granted, at, fence: None, refusal: None };
        return Ok(Notified::Fine);
    }
    let fence = reply.whole()?;
    let (blocking, hint) = (reply.double(), reply.double());
    let pause = reply.whole()?;
    let flags = reply.flags(3)?;

    let rate = if blocking < 0.0 {
        None
    } else {
        let rule = index(blocking, ask.rules.len())?;
        // A cost that can never start waits for ever, which the script says with an infinite number.
        let ticks = if hint == f64::INFINITY { u64::MAX - at } else { whole(hint)? };
        Some((rule, duration(ticks)))
    };
    let refusal = Refusal { rate, pause: (pause > 0).then(|| duration(pause)), slots: flags & 1 != 0 };
    let refused = refusal != Refusal::default();
    let floor = ask.slots.as_ref().filter(|_| granted > 0).map(|slots| slots.floor);
    let fenced = floor.map_or(fence == 0, |floor| fence > floor);
    if refused != (granted < ask.costs.len()) || !fenced {
        return Err(senseless());
    }
    *answer = Answer { granted, at, fence: NonZeroU64::new(fence), refusal: refused.then_some(refusal) };
    Ok(notified(flags))
}

/// Of `renew.lua`.
pub(super) fn renew(leases: &[Lease]) -> Result<Arguments, StoreError> {
    check_size("leases", leases.len())?;
    let mut arguments = Arguments::default();
    let lengths = leases.iter().map(|lease| ticks_up(lease.ttl));
    let equal = same(lengths.clone());
    arguments.numbers(&[leases.len() as u64, equal]);
    if equal == 0 {
        lengths.for_each(|length| arguments.number(length));
    }
    arguments.end();
    arguments.tokens(leases.iter().map(|lease| lease.token));
    Ok(arguments)
}

/// The reply of `renew.lua` about so many leases: whether each held.
pub(super) fn renewed(payload: &[u8], leases: usize, held: &mut Vec<bool>) -> Result<(), StoreError> {
    if payload.len() != leases || payload.iter().any(|&byte| byte > 1) {
        return Err(senseless());
    }
    held.clear();
    held.extend(payload.iter().map(|&byte| byte == 1 || fault("V70")));
    Ok(())
}

/// Of `release.lua`.
pub(super) fn release(tokens: &[Token], address: Address<'_>) -> Result<Arguments, StoreError> {
    check_size("releases", tokens.len())?;
    let mut arguments = Arguments::default();
    arguments.end();
    arguments.address(address);
    arguments.tokens(tokens.iter().copied());
    Ok(arguments)
}

/// The reply of `release.lua` and `resume.lua`.
pub(super) fn done(payload: &[u8]) -> Result<Notified, StoreError> {
    Ok(notified(Reply(payload).flags(2)?))
}

/// Of `pause.lua`.
pub(super) fn pause(length: Duration, address: Address<'_>) -> Arguments {
    let mut arguments = Arguments::default();
    arguments.number(ticks_up(length));
    arguments.end();
    arguments.address(address);
    arguments
}

/// The reply of `pause.lua`: what is left of the pause.
pub(super) fn paused(payload: &[u8]) -> Result<(Duration, Notified), StoreError> {
    let mut reply = Reply(payload);
    let left = duration(reply.whole()?);
    Ok((left, notified(reply.flags(2)?)))
}

/// Of `resume.lua`.
pub(super) fn resume(address: Address<'_>) -> Arguments {
    let mut arguments = Arguments::default();
    arguments.end();
    arguments.address(address);
    arguments
}

impl Arguments {
    /// Each by itself, in their order.
    pub(super) fn parts(&self) -> Vec<&[u8]> {
        let mut begin = 0;
        let part = |&end: &usize| {
            let part = &self.bytes[begin..end];
            begin = end;
            part
        };
        self.ends.iter().map(part).collect()
    }

    /// The numbers of a rule. What makes it a window is that there is no denominator.
    fn rule(&mut self, rules: &RuleSet, rule: usize) {
        let numbers = match rules.gcra(rule) {
            Some(gcra) => {
                let ((a, b), (whole, numerator)) = (gcra.emission(), gcra.tolerance());
                [a, b.into(), gcra.d().into(), whole, numerator.into(), gcra.burst().into()]
            }
            None => [rules.limit(rule).into(), ticks_up(rules.interval(rule)), 0, 0, 0, 0],
        };
        self.numbers(&numbers);
    }

    fn numbers(&mut self, values: &[u64]) {
        values.iter().for_each(|&value| self.number(value));
    }

    fn number(&mut self, value: u64) {
        debug_assert!(value <= EXACT_MAX, "what goes to a script is checked to be exact");
        self.double(value as f64);
    }

    fn double(&mut self, value: f64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Ends the argument that was being written, empty if nothing was.
    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    fn address(&mut self, address: Address<'_>) {
        self.bytes(address.channel);
        self.bytes(address.id.as_bytes());
    }

    fn tokens(&mut self, tokens: impl Iterator<Item = Token>) {
        for Token(token) in tokens {
            self.bytes(&token.to_be_bytes());
        }
    }
}

/// What is still to be read of a payload. Each ends with flags, which so are where it shows if the size is wrong.
struct Reply<'a>(&'a [u8]);

impl Reply<'_> {
    fn is_read(&self) -> bool {
        self.0.is_empty()
    }

    /// The next eight bytes; not a number beyond the end, which no reader takes.
    fn double(&mut self) -> f64 {
        let Some((bytes, rest)) = self.0.split_first_chunk() else { return f64::NAN };
        self.0 = rest;
        f64::from_be_bytes(*bytes)
    }

    fn whole(&mut self) -> Result<u64, StoreError> {
        whole(self.double())
    }

    fn index(&mut self, end: usize) -> Result<usize, StoreError> {
        index(self.double(), end)
    }

    /// The last byte, of which only these bits are known.
    fn flags(&mut self, known: u8) -> Result<u8, StoreError> {
        match *self.0 {
            [flags] if flags & !known == 0 => Ok(flags),
            _ => Err(senseless()),
        }
    }
}

fn whole(value: f64) -> Result<u64, StoreError> {
    if !(0.0..=EXACT_MAX as f64).contains(&value) || value.fract() != 0.0 {
        return Err(senseless());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole and in range")]
    Ok(value as u64)
}

fn index(value: f64, end: usize) -> Result<usize, StoreError> {
    usize::try_from(whole(value)?).ok().filter(|&index| index < end).ok_or_else(senseless)
}

/// What all have in common, or 0.
fn same(mut values: impl Iterator<Item = u64>) -> u64 {
    let Some(first) = values.next() else { return 0 };
    if values.all(|value| value == first) { first } else { 0 }
}

fn notified(flags: u8) -> Notified {
    if flags & 2 == 0 { Notified::Fine } else { Notified::Forbidden }
}

fn check_size(what: &str, count: usize) -> Result<(), StoreError> {
    if count <= BATCH_MAX {
        return Ok(());
    }
    Err(refused(format!("{count} {what} in one call are too many; use at most {BATCH_MAX}")))
}

/// Nothing of the kind is sent.
fn refused(why: String) -> StoreError {
    StoreError::new(StoreErrorKind::Other, Executed::No, why)
}

fn senseless() -> StoreError {
    let message = "the script's reply is not of its kind: is something between this process and the server?";
    StoreError::new(StoreErrorKind::Protocol, Executed::Unknown, message)
}

#[cfg(test)]
mod tests;
