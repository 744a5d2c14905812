//! One connection to the server, and the pool that keeps some. Nothing outside this module names a type of `redis` or `r2d2`.
//!
//! Of `redis` 0.20 only the codec is used, on sockets of our own. Its connections know a time limit for each read, not for
//! a call, so a server that drips bytes holds a caller for ever; and they go on after a reply that came late or was cut,
//! so that the next command is given it. Here a connection is bad from before a command is sent until the whole
//! reply has been read and nothing is left over; a bad one is never used again.

#[cfg(test)]
pub(super) mod fake;
mod frame;
mod pool;
mod stream;

use self::frame::Scan;
use self::stream::Stream;
use super::outcome;
use super::url::Target;
use crate::clock::{Clock, Tick};
use crate::error::{Executed, StoreError};
use crate::store::Deadline;
use r2d2_redis::redis;
use std::io;
use std::sync::Arc;

pub(crate) use self::pool::Pool;
pub(super) use self::pool::{Threads, Traffic};
pub(super) use self::stream::Closer;

/// A connection that has logged in and knows the server's clock.
pub(super) struct Link {
    stream: Stream,
    server: Arc<str>,
    decoder: redis::Parser,
    /// What was read and not yet decoded, and how far it was looked through.
    received: Vec<u8>,
    scan: Scan,
    /// A command is on its way, or something went wrong with one.
    bad: bool,
    time: Estimate,
    made: Tick,
    used: Tick,
    /// How many connections of the client had been lost when this one was last known to be open.
    losses: u64,
}

/// What the server's clock showed when its last reply was read: never more, as the reply took its time.
#[derive(Clone, Copy, Default)]
struct Estimate {
    server: u64,
    at: Tick,
}

/// What the server answered, other than an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Status(String),
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<Reply>),
}

/// The text of an error reply.
pub(super) type Line = String;

/// Why there is no complete reply. The connection is done for.
#[derive(Debug)]
pub(super) enum Lost {
    /// Not one byte of the command could be sent.
    Unsent(io::Error),
    /// Some of it, or all.
    Unanswered(io::Error),
    /// What came is no reply.
    Senseless(&'static str),
}

/// Why a command failed: on the way, or at the server.
#[derive(Debug)]
pub(super) enum Failed {
    Lost(Lost),
    Refused(StoreError),
}

impl Link {
    /// Connects, logs in and learns the server's time, all by the deadline. Whatever fails, nothing was done.
    pub(super) fn connect(target: &Target, deadline: &Deadline) -> Result<Link, StoreError> {
        let server: Arc<str> = target.to_string().into();
        let stream =
            Stream::connect(target, deadline).map_err(|error| outcome::unconnected(error, &server))?;
        let now = Clock::System.now();
        let mut link = Link {
            stream,
            server,
            decoder: redis::Parser::new(),
            received: Vec::new(),
            scan: Scan::default(),
            bad: true,
            time: Estimate::default(),
            made: now,
            used: now,
            losses: 0,
        };
        link.shake_hands(target, deadline)?;
        Ok(link)
    }

    fn shake_hands(&mut self, target: &Target, deadline: &Deadline) -> Result<(), StoreError> {
        if let Some(login) = &target.login {
            let password = login.password.as_bytes();
            let answer = match &login.user {
                Some(user) => self.ask(&[b"AUTH", user.as_bytes(), password], deadline),
                None => self.ask(&[b"AUTH", password], deadline),
            };
            let answer = answer.map_err(|lost| lost.error(&self.server, Executed::No))?;
            answer.map_err(|line| outcome::login_refused(&line, &self.server))?;
        }
        if target.database != 0 {
            self.greet(&[b"SELECT", target.database.to_string().as_bytes()], deadline)?;
        }
        // The last, so that the estimate is as good as can be.
        let time = self.greet(&[b"TIME"], deadline)?;
        match microseconds(&time) {
            Some(time) => self.learn_time(time),
            None => return Err(outcome::senseless("TIME gave no time", &self.server, Executed::No)),
        }
        Ok(())
    }

    fn greet(&mut self, parts: &[&[u8]], deadline: &Deadline) -> Result<Reply, StoreError> {
        let answer = self.ask(parts, deadline).map_err(|lost| lost.error(&self.server, Executed::No))?;
        answer.map_err(|line| outcome::refused(&line, &self.server))
    }

    /// Sends a command and reads its reply, which may be an error.
    pub(super) fn ask(&mut self, parts: &[&[u8]], deadline: &Deadline) -> Result<Result<Reply, Line>, Lost> {
        self.write(parts, deadline)?;
        let answer = self.read(deadline)?;
        answer.ok_or_else(|| Lost::Unanswered(io::ErrorKind::TimedOut.into()))
    }

    /// Sends a command whose reply is read with [`receive`](Link::receive).
    pub(super) fn send(&mut self, parts: &[&[u8]], deadline: &Deadline) -> Result<(), StoreError> {
        self.write(parts, deadline).map_err(|lost| lost.error(&self.server, Executed::Unknown))
    }

    /// Reads the next reply or message; `None` if it is not complete by the deadline. What has come of it is kept.
    pub(super) fn receive(&mut self, deadline: &Deadline) -> Result<Option<Reply>, StoreError> {
        match self.read(deadline).map_err(|lost| lost.error(&self.server, Executed::Unknown))? {
            None => Ok(None),
            Some(Ok(reply)) => Ok(Some(reply)),
            Some(Err(line)) => Err(outcome::refused(&line, &self.server)),
        }
    }

    /// Another handle, with which to break off what a thread waits for on this connection.
    pub(super) fn closer(&self) -> Option<Closer> {
        self.stream.closer()
    }

    /// The name of the server, for messages.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Never to be used again.
    pub(super) fn condemn(&mut self) {
        self.bad = true;
    }

    /// Notes what the server's clock showed in the reply that has just been read.
    pub(super) fn learn_time(&mut self, server: u64) {
        self.time = Estimate { server, at: Clock::System.now() };
    }

    /// What the server's clock shows now, as far as is known: rather less.
    pub(super) fn server_time(&self) -> u64 {
        let since = Clock::System.now().saturating_sub(self.time.at);
        self.time.server.saturating_add(since)
    }

    fn write(&mut self, parts: &[&[u8]], deadline: &Deadline) -> Result<(), Lost> {
        self.bad = true;
        let mut command = redis::Cmd::new();
        for part in parts {
            command.arg(*part);
        }
        let bytes = command.get_packed_command();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..], deadline) {
                Ok(count) => sent += count,
                Err(error) if sent == 0 => return Err(Lost::Unsent(error)),
                Err(error) => return Err(Lost::Unanswered(error)),
            }
        }
        Ok(())
    }

    /// `None` if the reply is not complete by the deadline.
    fn read(&mut self, deadline: &Deadline) -> Result<Option<Result<Reply, Line>>, Lost> {
        let mut chunk = [0; 4_096];
        let end = loop {
            if let Some(end) = self.scan.end(&self.received).map_err(Lost::Senseless)? {
                break end;
            }
            match self.stream.read(&mut chunk, deadline) {
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(Lost::Unanswered(error)),
            }
        };
        let answer = self.decode(end)?;
        self.received.drain(..end);
        self.scan = Scan::default();
        // More than the one reply that was asked for: the next would be taken for the answer to another command.
        self.bad = !self.received.is_empty();
        Ok(Some(answer))
    }

    fn decode(&mut self, end: usize) -> Result<Result<Reply, Line>, Lost> {
        let reply = &self.received[..end];
        if reply.first() == Some(&b'-') {
            let line = &reply[1..end - 2];
            return Ok(Err(String::from_utf8_lossy(line).into_owned()));
        }
        // An error within an array comes as one, too.
        let value = self.decoder.parse_value(reply).map_err(|_| Lost::Senseless("it cannot be decoded"))?;
        Ok(Ok(value.into()))
    }
}

impl Lost {
    /// The error for the caller. `executed` is whether the command may take effect if it got out.
    pub(super) fn error(self, server: &str, executed: Executed) -> StoreError {
        match self {
            Lost::Unsent(error) => outcome::unanswered(error, server, Executed::No),
            Lost::Unanswered(error) => outcome::unanswered(error, server, executed),
            Lost::Senseless(reason) => outcome::senseless(reason, server, executed),
        }
    }
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Failed {
        Failed::Lost(lost)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Refused(error)
    }
}

impl Reply {
    /// Whether it is this word, as a status or as bytes.
    pub(crate) fn is(&self, word: &[u8]) -> bool {
        match self {
            Reply::Status(status) => status.as_bytes() == word,
            Reply::Bytes(bytes) => bytes == word,
            Reply::Nil | Reply::Int(_) | Reply::Array(_) => false,
        }
    }
}

impl From<redis::Value> for Reply {
    fn from(value: redis::Value) -> Reply {
        match value {
            redis::Value::Nil => Reply::Nil,
            redis::Value::Int(number) => Reply::Int(number),
            redis::Value::Data(bytes) => Reply::Bytes(bytes),
            redis::Value::Bulk(parts) => Reply::Array(parts.into_iter().map(Reply::from).collect()),
            redis::Value::Status(status) => Reply::Status(status),
            redis::Value::Okay => Reply::Status("OK".to_owned()),
        }
    }
}

/// The time in the reply to TIME: seconds and microseconds.
fn microseconds(reply: &Reply) -> Option<u64> {
    let Reply::Array(parts) = reply else { return None };
    let [Reply::Bytes(seconds), Reply::Bytes(rest)] = parts.as_slice() else { return None };
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(rest)?)
}

/// The name by which the server knows a script.
pub(super) fn sha1(script: &str) -> String {
    redis::Script::new(script).get_hash().to_owned()
}

#[cfg(test)]
mod tests;
