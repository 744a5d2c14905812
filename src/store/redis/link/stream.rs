//! A socket whose every read and write ends by the deadline of the call it is for.

use crate::store::Deadline;
use crate::store::redis::url::{Address, Target};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to the server.
pub(super) struct Stream {
    socket: Socket,
    /// The time limits that the socket has now, in microseconds.
    read_limit: u64,
    write_limit: u64,
}

enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Below this many microseconds a time limit is exactly what is left.
const EXACT: u64 = 1_024;

/// An operation without a deadline is given one all the same.
const UNLIMITED: Duration = Duration::from_secs(3_600);

impl Stream {
    /// Connects by the deadline, which covers all addresses of the host. Looking them up has no time limit, and neither
    /// has connecting to a Unix socket whose server has stopped accepting: not to be called by who cannot wait.
    pub(super) fn connect(target: &Target, deadline: &Deadline) -> io::Result<Stream> {
        let socket = match &target.address {
            Address::Tcp { host, port } => Socket::Tcp(connect_tcp(host, *port, deadline)?),
            #[cfg(unix)]
            Address::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(ErrorKind::Unsupported.into()),
        };
        Ok(Stream { socket, read_limit: 0, write_limit: 0 })
    }

    /// Reads what there is, waiting for the first byte; `TimedOut` at the deadline, `UnexpectedEof` at the end.
    pub(super) fn read(&mut self, into: &mut [u8], deadline: &Deadline) -> io::Result<usize> {
        loop {
            let limit = limit(deadline)?;
            if limit != self.read_limit {
                self.socket.limit_reads(limit)?;
                self.read_limit = limit;
            }
            match self.socket.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => return Ok(count),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes what it can, at least one byte; `TimedOut` at the deadline.
    pub(super) fn write(&mut self, bytes: &[u8], deadline: &Deadline) -> io::Result<usize> {
        loop {
            let limit = limit(deadline)?;
            if limit != self.write_limit {
                self.socket.limit_writes(limit)?;
                self.write_limit = limit;
            }
            match self.socket.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => return Ok(count),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the server has said nothing since the last reply: neither a word that nobody asked for, nor goodbye.
    pub(super) fn is_quiet(&mut self) -> bool {
        let heard = self.socket.set_blocking(Blocking::Off).and_then(|()| self.socket.read(&mut [0]));
        let quiet = matches!(heard, Err(error) if error.kind() == ErrorKind::WouldBlock);
        quiet && self.socket.set_blocking(Blocking::On).is_ok()
    }

    /// Another handle on the same connection, to end it with.
    pub(super) fn closer(&self) -> Option<Closer> {
        let socket = match &self.socket {
            Socket::Tcp(stream) => stream.try_clone().map(Socket::Tcp),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.try_clone().map(Socket::Unix),
        };
        socket.ok().map(Closer)
    }
}

/// Ends a connection on which another thread waits.
pub(in crate::store::redis) struct Closer(Socket);

impl Closer {
    /// Ends it: who reads or writes there gets an error at once.
    pub(in crate::store::redis) fn close(&self) {
        // It may be closed already: then there is nobody to wake.
        let _ = match &self.0 {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

enum Blocking {
    On,
    Off,
}

impl Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn limit_reads(&self, limit: u64) -> io::Result<()> {
        let limit = Some(Duration::from_micros(limit));
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(limit),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    fn limit_writes(&self, limit: u64) -> io::Result<()> {
        let limit = Some(Duration::from_micros(limit));
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(limit),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        let off = matches!(blocking, Blocking::Off);
        match self {
            Socket::Tcp(stream) => stream.set_nonblocking(off),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_nonblocking(off),
        }
    }
}

/// Tries the host's addresses in turn, each with its share of the time that is left.
fn connect_tcp(host: &str, port: u16, deadline: &Deadline) -> io::Result<TcpStream> {
    let mut addresses = (host, port).to_socket_addrs()?;
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    while let Some(address) = addresses.next() {
        let left = left(deadline)?;
        let share = left / u32::try_from(addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
        match TcpStream::connect_timeout(&address, share.max(Duration::from_micros(1))) {
            Ok(stream) => {
                // Commands are one small write each: held back for more, each would wait for the last one's
                // acknowledgement.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What is left, never zero.
fn left(deadline: &Deadline) -> io::Result<Duration> {
    match deadline.left() {
        Some(Duration::ZERO) => Err(ErrorKind::TimedOut.into()),
        Some(left) => Ok(left.min(UNLIMITED)),
        None => Ok(UNLIMITED),
    }
}

/// The socket's next time limit: what is left, rounded down to a power of two, so that one call after the other finds the
/// limit it needs set. Whoever runs into it looks at the deadline again.
fn limit(deadline: &Deadline) -> io::Result<u64> {
    let left = left(deadline)?.as_micros();
    let left = u64::try_from(left).unwrap_or(u64::MAX).max(1);
    Ok(if left < EXACT { left } else { 1 << left.ilog2() })
}

/// Whether only the time limit of the socket, or a signal, came in between.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
