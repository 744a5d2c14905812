//! What went wrong on the way to the server or there, as an error that says what to do.
//!
//! The one question that matters is whether the command may have taken effect. An error reply says no only if the server
//! gives it before it runs a script, or can give it only before the script has written anything.

use crate::error::{Executed, StoreError, StoreErrorKind as Kind};
use std::io;

/// What the error replies of a server begin with, longest first where one begins another. `inside` is whether the
/// command may have taken effect when the error came from within a script.
struct Refusal {
    begins: &'static str,
    kind: Kind,
    inside: Executed,
    advice: &'static str,
}

const fn row(begins: &'static str, kind: Kind, inside: Executed, advice: &'static str) -> Refusal {
    Refusal { begins, kind, inside, advice }
}

const UNSUPPORTED: &str = "the server is part of a cluster, which this version does not follow: point the URL at a server of \
                           its own";
const LOGIN: &str =
    "the server does not take the user or the password of the URL: correct it, or the server's ACL";

/// A script meets these at its first write, or at the first touch of each key, which comes before anything is spent: so
/// even from inside a script most of them are definite.
const REFUSALS: [Refusal; 26] = [
    row(
        "LOADING",
        Kind::Busy,
        Executed::No,
        "the server is loading its data and will answer when it is done",
    ),
    row("BUSY ", Kind::Busy, Executed::No, "the server runs somebody's long script, which SCRIPT KILL ends"),
    row(
        "MASTERDOWN",
        Kind::Busy,
        Executed::No,
        "the server is a replica that lost its master: repair their link",
    ),
    row(
        "ERR max number of clients",
        Kind::Busy,
        Executed::No,
        "the server's maxclients is reached: raise it",
    ),
    row(
        "READONLY",
        Kind::ReadOnly,
        Executed::No,
        "the server is a replica: point the URL at the master, or a name that follows it",
    ),
    row(
        "NOREPLICAS",
        Kind::ReadOnly,
        Executed::No,
        "the server has fewer good replicas than its min-replicas-to-write: repair them",
    ),
    row(
        "MISCONF",
        Kind::ReadOnly,
        Executed::No,
        "the server cannot save its data and takes no writes: see its log",
    ),
    row(
        "OOM",
        Kind::OutOfMemory,
        Executed::No,
        "the server's maxmemory is reached: raise it, or give our keys a server of their own",
    ),
    row("NOAUTH", Kind::Auth, Executed::No, "the server wants a password: put it into the URL"),
    row("WRONGPASS", Kind::Auth, Executed::No, LOGIN),
    row("ERR invalid password", Kind::Auth, Executed::No, LOGIN),
    row(
        "ERR Client sent AUTH",
        Kind::Auth,
        Executed::No,
        "the server has no password: take it out of the URL, or set one there",
    ),
    row(
        "ERR AUTH",
        Kind::Auth,
        Executed::No,
        "the server has no password: take it out of the URL, or set one there",
    ),
    row(
        "NOPERM",
        Kind::Permission,
        Executed::Unknown,
        "the user lacks a right: grant what is named with ACL SETUSER",
    ),
    row(
        "ERR The user executing the script",
        Kind::Permission,
        Executed::Unknown,
        "the user lacks a right that the script needs: grant it with ACL SETUSER",
    ),
    row(
        "DENIED",
        Kind::Permission,
        Executed::No,
        "the server is in protected mode: give it a password, or bind it",
    ),
    row(
        "WRONGTYPE",
        Kind::Corrupt,
        Executed::No,
        "somebody else's value has the name of one of our keys: remove it, or choose another prefix",
    ),
    row("CORRUPT", Kind::Corrupt, Executed::No, "remove the key, or choose another prefix"),
    row("CLUSTERDOWN", Kind::Busy, Executed::No, UNSUPPORTED),
    row("MOVED", Kind::Other, Executed::No, UNSUPPORTED),
    row("ASK", Kind::Other, Executed::No, UNSUPPORTED),
    row("TRYAGAIN", Kind::Busy, Executed::No, UNSUPPORTED),
    row("CROSSSLOT", Kind::Other, Executed::No, UNSUPPORTED),
    row(
        "NOSCRIPT",
        Kind::Other,
        Executed::No,
        "the server forgets each script at once: look at what is between it and here",
    ),
    row(
        "ERR unknown command",
        Kind::Permission,
        Executed::Unknown,
        "the server lacks a command, or renamed it: Redis 6.2 or newer is needed, with EVAL and EVALSHA",
    ),
    row(
        "ERR DB index",
        Kind::Other,
        Executed::No,
        "the server has no such database: change the one in the URL",
    ),
];

/// So much of what a server says is quoted.
const QUOTED_MAX: usize = 200;

/// What the server's error reply means.
pub(super) fn refused(line: &str, server: &str) -> StoreError {
    let inside = ["script: ", "user_script", "Error running script"].iter().any(|mark| line.contains(mark));
    let quoted: String = line.chars().filter(|each| !each.is_control()).take(QUOTED_MAX).collect();
    let Some(refusal) = REFUSALS.iter().find(|refusal| says(line, refusal.begins)) else {
        // An error that no script raised was raised instead of running the command, if it is one we know the like of.
        let executed = if line.starts_with("ERR ") && !inside { Executed::No } else { Executed::Unknown };
        return StoreError::new(Kind::Other, executed, format!("{server} answered: {quoted}"));
    };
    let executed = if inside && !is_read(line) { refusal.inside } else { Executed::No };
    StoreError::new(refusal.kind, executed, format!("{server} answered: {quoted}; {}", refusal.advice))
}

/// Whether the reply begins so. Redis 6 wraps what a script met in an error of its own, behind the place in the script.
fn says(line: &str, begins: &str) -> bool {
    line.starts_with(begins) || line.split(": -").nth(1).is_some_and(|wrapped| wrapped.starts_with(begins))
}

/// Whether a right was missing for a command with which our scripts only read, before they write.
fn is_read(line: &str) -> bool {
    ["'time'", "'hget'", "'hmget'"].iter().any(|command| line.contains(command))
}

/// What the server says to AUTH. Not quoted: some servers repeat the arguments of a command they do not know.
pub(super) fn login_refused(line: &str, server: &str) -> StoreError {
    let code = line.split(' ').next().unwrap_or_default();
    let known = REFUSALS.iter().find(|refusal| says(line, refusal.begins));
    let (kind, advice) = known.map_or((Kind::Auth, LOGIN), |refusal| (refusal.kind, refusal.advice));
    let code: String = code.chars().filter(char::is_ascii_uppercase).take(20).collect();
    StoreError::new(kind, Executed::No, format!("{server} answered {code} to AUTH: {advice}"))
}

/// No connection could be made.
pub(super) fn unconnected(error: io::Error, server: &str) -> StoreError {
    let message = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("{server} refuses connections: see that the server runs, and listens there")
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("no connection to {server} in time: see that the network lets it through")
        }
        io::ErrorKind::NotFound => format!("there is no socket or host {server}: correct the URL"),
        io::ErrorKind::PermissionDenied => {
            format!(
                "this process may not connect to {server}: see the rights on the socket, and the firewall"
            )
        }
        _ => format!(
            "no connection to {server}: see that its name can be looked up, and that a route leads there"
        ),
    };
    StoreError::new(Kind::Unreachable, Executed::No, message).with_source(error)
}

/// The connection failed, or the time was over, before the command had been answered.
pub(super) fn unanswered(error: io::Error, server: &str, executed: Executed) -> StoreError {
    let (kind, message) = match error.kind() {
        io::ErrorKind::TimedOut => (
            Kind::Timeout,
            format!("{server} has not answered in time: see what slows it or the network, or allow more"),
        ),
        io::ErrorKind::UnexpectedEof => (
            Kind::Unreachable,
            format!("{server} closed the connection before it had answered: see its log for why"),
        ),
        _ => (
            Kind::Unreachable,
            format!("the connection to {server} failed before it had answered: see the network, and its log"),
        ),
    };
    StoreError::new(kind, executed, message).with_source(error)
}

/// The answer is no reply of Redis, or not to what was asked.
pub(super) fn senseless(reason: &str, server: &str, executed: Executed) -> StoreError {
    let message = format!(
        "the answer of {server} makes no sense ({reason}): see that a Redis of version 6.2 or newer listens there"
    );
    StoreError::new(Kind::Protocol, executed, message)
}

#[cfg(test)]
mod tests;
