//! Reads the URL of a server. What it says of a bad one never repeats any part that could be a password.

use crate::error::Error;
use std::fmt;

/// Where a server is and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) login: Option<Login>,
    pub(super) database: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(String),
}

/// What AUTH is sent with. Has no `Debug`, so that the password gets into no log.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

const PORT: u16 = 6379;

const FORMS: &str =
    "write redis://[[user]:password@]host[:port][/database] or redis+unix:///path[?db=&user=&pass=]";

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target, Error> {
        read(url).map_err(|reason| Error::invalid("url", reason))
    }
}

fn read(url: &str) -> Result<Target, String> {
    if url.chars().any(|each| each.is_control() || each.is_whitespace()) {
        return Err("it contains a space or a control character: percent-encode it".to_owned());
    }
    if url.contains('#') {
        return Err("it contains a #: percent-encode it as %23".to_owned());
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("it has no scheme: {FORMS}"));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "redis" => over_tcp(rest),
        "unix" | "redis+unix" => over_unix(rest),
        "rediss" => {
            Err("rediss:// needs TLS, which this version does not have: connect through a tunnel, or use \
                         redis:// within a trusted network"
                .to_owned())
        }
        _ => Err(format!("its scheme is unknown: {FORMS}")),
    }
}

fn over_tcp(rest: &str) -> Result<Target, String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, place) = match authority.rsplit_once('@') {
        Some((login, place)) => (read_login(login)?, place),
        None => (None, authority),
    };
    let (host, port) = read_place(place)?;
    let database = if path.is_empty() { 0 } else { read_database(path)? };
    let mut target = Target { address: Address::Tcp { host, port }, login, database };
    for (name, value) in parameters(query)? {
        match name {
            "db" if path.is_empty() => target.database = read_database(&value)?,
            "db" => return Err("it names a database twice".to_owned()),
            _ => return Err("it has a parameter other than db".to_owned()),
        }
    }
    Ok(target)
}

fn over_unix(rest: &str) -> Result<Target, String> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err("the path of a socket is absolute: three slashes follow the colon".to_owned());
    }
    let (mut user, mut password, mut database) = (None, None, 0);
    for (name, value) in parameters(query)? {
        match name {
            "db" => database = read_database(&value)?,
            "user" => user = Some(value),
            "pass" => password = Some(value),
            _ => return Err("it has a parameter other than db, user and pass".to_owned()),
        }
    }
    let login = match (user, password) {
        (None, None) => None,
        (Some(_), None) => return Err("it has a user and no password: add &pass=".to_owned()),
        (user, Some(password)) => Some(Login { user, password }),
    };
    Ok(Target { address: Address::Unix(decode(path)?), login, database })
}

fn read_login(text: &str) -> Result<Option<Login>, String> {
    match text.split_once(':') {
        Some(("", "")) => Ok(None),
        None if text.is_empty() => Ok(None),
        None => {
            Err("it has a user and no password: write user:password@, or :password@ for a password alone"
                .to_owned())
        }
        Some((user, password)) => {
            let user = if user.is_empty() { None } else { Some(decode(user)?) };
            Ok(Some(Login { user, password: decode(password)? }))
        }
    }
}

/// The host and the port. An IPv6 address is in brackets, which do not belong to it.
fn read_place(place: &str) -> Result<(String, u16), String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a bracket of its IPv6 address is missing")?;
            let host = decode(host)?;
            let address = host.split('%').next().unwrap_or_default();
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("what it has in brackets is no IPv6 address".to_owned());
            }
            (host, port)
        }
        None => {
            let end = place.find(':').unwrap_or(place.len());
            (decode(&place[..end])?, &place[end..])
        }
    };
    if host.is_empty() {
        return Err(format!("it names no host: {FORMS}"));
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => PORT,
        Some("") => PORT,
        Some(digits) => number(digits)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or("its port is not in 1..=65535: an IPv6 address goes in brackets, and a / or : in a password is %2F or %3A")?,
        None => return Err("something other than a port follows its IPv6 address".to_owned()),
    };
    Ok((host, port))
}

fn read_database(digits: &str) -> Result<u32, String> {
    let digits = digits.strip_suffix('/').unwrap_or(digits);
    number(digits)
        .ok_or_else(|| "its database is not a number: servers have 0..=15 unless set up otherwise".to_owned())
}

/// Digits only: `parse` would take a sign too.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn parameters(query: &str) -> Result<Vec<(&str, String)>, String> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((name, decode(value)?))
        })
        .collect()
}

/// Undoes percent-encoding (RFC 3986, section 2.1).
fn decode(text: &str) -> Result<String, String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            decoded.push(first);
            continue;
        }
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.ok_or("a % is not followed by two hexadecimal digits: % itself is %25")?);
        rest = &behind[2..];
    }
    match String::from_utf8(decoded) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err("what its percent-encoding stands for is not UTF-8, or has a zero in it".to_owned()),
    }
}

/// The address alone, for messages.
impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(out, "{host}:{port}"),
            Address::Unix(path) => out.write_str(path),
        }
    }
}

/// All but the password.
impl fmt::Debug for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("Target");
        fields.field("address", &format_args!("{self}"));
        if let Some(login) = &self.login {
            fields.field("user", &login.user.as_deref().unwrap_or("default"));
        }
        fields.field("database", &self.database).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
