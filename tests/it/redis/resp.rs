//! A small client of the Redis protocol for the tests' own questions, so that no answer passes through the code under test.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What a server answers. An error is an answer too: many tests want one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Status(String),
    Error(String),
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<Reply>),
}

impl Reply {
    #[track_caller]
    pub(crate) fn int(&self) -> i64 {
        match self {
            Reply::Int(value) => *value,
            other => panic!("not a number: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Status(text) => text.clone(),
            Reply::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn array(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

/// One connection. An answer is waited for 10 s.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Client> {
        let limit = Duration::from_secs(10);
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    pub(crate) fn ask(&mut self, parts: &[&[u8]]) -> io::Result<Reply> {
        self.send(parts)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.stream.get_mut().write_all(&packed(parts))
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.stream)
    }

    /// How long [`receive`](Client::receive) waits.
    pub(crate) fn wait_at_most(&mut self, limit: Duration) {
        self.stream.get_ref().set_read_timeout(Some(limit)).unwrap();
    }
}

/// A command as it goes over the wire.
pub(crate) fn packed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend(format!("${}\r\n", part.len()).bytes());
        bytes.extend(*part);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn read_reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    let line = read_line(stream)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| odd("an empty line"))?;
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(number(rest)?),
        "$" => match number(rest)? {
            -1 => Reply::Nil,
            length => Reply::Bytes(read_bytes(stream, length)?),
        },
        "*" => match number(rest)? {
            -1 => Reply::Nil,
            length => Reply::Array((0..length).map(|_| read_reply(stream)).collect::<io::Result<_>>()?),
        },
        _ => return Err(odd(&line)),
    })
}

/// Reads a command that a client sent: `None` once it has hung up.
pub(crate) fn read_command(stream: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let Reply::Array(parts) = read_reply(stream)? else { return Err(odd("not a command")) };
    let parts = parts.into_iter().map(|part| match part {
        Reply::Bytes(bytes) => Ok(bytes),
        _ => Err(odd("not a command")),
    });
    parts.collect::<io::Result<_>>().map(Some)
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_bytes(stream: &mut impl BufRead, length: i64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| odd("a length below zero"))?;
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| odd(text))
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
