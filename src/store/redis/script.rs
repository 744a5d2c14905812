//! Runs a script on the server, once, and not after its caller has given up.

use super::link::{Failed, Line, Link, Pool, Reply, sha1};
use super::outcome;
use crate::error::{Executed, StoreError, StoreErrorKind};
use crate::planted::fault;
use crate::store::Deadline;

/// A script and the name by which the server knows it.
pub(super) struct Script {
    text: String,
    sha1: String,
}

/// What a script is given.
pub(super) struct Call<'a> {
    pub(super) keys: &'a [&'a [u8]],
    pub(super) args: &'a [&'a [u8]],
    pub(super) fence: NotAfter,
}

/// Whether a command that arrives after its caller gave up may still take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAfter {
    /// It changes nothing.
    Held,
    /// It does: it only gives back.
    Free,
}

/// What a script answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// What the server's clock showed, in microseconds of the Unix epoch.
    pub(super) time: u64,
    bytes: Vec<u8>,
}

/// The time, and whether it came too late.
const HEADER: usize = 9;

/// A script whose clock estimate was wrong learns the right one from the answer; more than twice is something else.
const RESENDS_MAX: u32 = 2;

impl Script {
    pub(super) fn new(text: impl Into<String>) -> Script {
        let text = text.into();
        Script { sha1: sha1(&text), text }
    }

    /// The name by which the server knows it.
    #[cfg(feature = "testing")]
    pub(super) fn sha1(&self) -> &str {
        &self.sha1
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Runs it, at most until the deadline or the end of the client's timeout.
    pub(super) fn run(&self, pool: &Pool, call: &Call<'_>, deadline: &Deadline) -> Result<Done, StoreError> {
        let deadline = pool.bound(deadline);
        pool.on_link(&deadline, |link| self.run_on(link, call, &deadline))
    }

    fn run_on(&self, link: &mut Link, call: &Call<'_>, deadline: &Deadline) -> Result<Done, Failed> {
        for _ in 0..=RESENDS_MAX {
            let reply = match self.send(link, Form::Name, call, deadline)? {
                // The server knows scripts only since its start, and forgets the least used.
                Err(line) if line.starts_with("NOSCRIPT") => self.send(link, Form::Text, call, deadline)?,
                reply => reply,
            };
            let reply = reply.map_err(|line| self.refused(link, call, &line))?;
            let Some((done, stale)) = read(reply) else {
                link.condemn();
                let reason = "a script answered something else than it does";
                return Err(outcome::senseless(reason, link.server(), Executed::Unknown).into());
            };
            link.learn_time(done.time);
            if !stale {
                return Ok(done);
            }
        }
        let server = link.server();
        let message = format!(
            "{server} received the command too late, again and again: see its load, and that its clock does not jump"
        );
        Err(StoreError::new(StoreErrorKind::Timeout, Executed::No, message).into())
    }

    fn send(
        &self,
        link: &mut Link,
        form: Form,
        call: &Call<'_>,
        deadline: &Deadline,
    ) -> Result<Result<Reply, Line>, Failed> {
        let count = call.keys.len().to_string();
        let not_after = not_after(link, call.fence, deadline).to_be_bytes();
        let (verb, script): (&[u8], &str) = match form {
            Form::Name => (b"EVALSHA", &self.sha1),
            Form::Text => (b"EVAL", &self.text),
        };
        let mut parts = Vec::with_capacity(4 + call.keys.len() + call.args.len());
        parts.extend([verb, script.as_bytes(), count.as_bytes()]);
        parts.extend_from_slice(call.keys);
        parts.push(&not_after);
        parts.extend_from_slice(call.args);
        Ok(link.ask(&parts, deadline)?)
    }

    fn refused(&self, link: &Link, call: &Call<'_>, line: &Line) -> StoreError {
        if !line.starts_with("WRONGTYPE") {
            return outcome::refused(line, link.server());
        }
        let keys: Vec<_> = call.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        outcome::refused(&format!("{line} (key {})", keys.join(" or ")), link.server())
    }
}

/// How the server is told which script.
#[derive(Clone, Copy)]
enum Form {
    Name,
    Text,
}

/// When, on the server's clock, the caller gives up; 0 if that does not matter.
#[expect(clippy::cast_precision_loss, reason = "microseconds of the epoch are below 2^53 for 200 years")]
fn not_after(link: &Link, fence: NotAfter, deadline: &Deadline) -> f64 {
    match (fence, deadline.left()) {
        (NotAfter::Held, Some(left)) if !fault("V36") => {
            let left = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
            link.server_time().saturating_add(left) as f64
        }
        _ => 0.0,
    }
}

/// The answer, and whether the script came too late and did nothing.
fn read(reply: Reply) -> Option<(Done, bool)> {
    let Reply::Bytes(bytes) = reply else { return None };
    let time = f64::from_be_bytes(*bytes.first_chunk()?);
    let stale = match bytes.get(HEADER - 1)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    const YEAR_2100: f64 = 4_102_444_800e6;
    if !(0.0..YEAR_2100).contains(&time) || time.fract() != 0.0 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    let time = time as u64;
    Some((Done { time, bytes }, stale))
}

impl Done {
    /// What the script itself has to say.
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }
}

#[cfg(test)]
mod tests;
