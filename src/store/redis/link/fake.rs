//! A server of a few lines for tests: it does with each connection whatever the test says.

use super::{Link, Pool, Threads, Traffic};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::Deadline;
use crate::store::redis::url::Target;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

pub(in crate::store::redis) struct Fake {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

/// The server's end of one connection.
pub(in crate::store::redis) struct Peer {
    /// How many connections came before.
    pub(in crate::store::redis) number: usize,
    reader: BufReader<TcpStream>,
}

pub(in crate::store::redis) type Command = Vec<Vec<u8>>;

impl Fake {
    /// Listens on a free port; each connection is served by `serve` on a thread of its own, and closed when that returns.
    pub(in crate::store::redis) fn new(serve: impl Fn(&mut Peer) + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let serve = Arc::new(serve);
        let (its_accepted, its_over) = (Arc::clone(&accepted), Arc::clone(&over));
        let accept = move || {
            for stream in listener.incoming() {
                if its_over.load(Ordering::SeqCst) {
                    return;
                }
                let number = its_accepted.fetch_add(1, Ordering::SeqCst);
                let mut peer = Peer { number, reader: BufReader::new(stream.unwrap()) };
                let serve = Arc::clone(&serve);
                thread::Builder::new().spawn(move || serve(&mut peer)).unwrap();
            }
        };
        thread::Builder::new().spawn(accept).unwrap();
        Fake { address, accepted, over }
    }

    /// Each connection is greeted, then each command is given to `answer`, until that hangs up.
    pub(in crate::store::redis) fn answering(
        answer: impl Fn(&mut Peer, &Command) -> Then + Send + Sync + 'static,
    ) -> Fake {
        Fake::new(move |peer| {
            if !peer.greet() {
                return;
            }
            while let Some(command) = peer.command() {
                if answer(peer, &command) == Then::HangUp {
                    return;
                }
            }
        })
    }

    pub(in crate::store::redis) fn target(&self) -> Arc<Target> {
        Arc::new(Target::parse(&format!("redis://{}", self.address)).unwrap())
    }

    pub(in crate::store::redis) fn link(&self) -> Link {
        Link::connect(&self.target(), &within_ms(5_000)).unwrap()
    }

    /// A pool of so many connections whose calls may take so long.
    pub(in crate::store::redis) fn pool(&self, size: u32, timeout: Duration) -> Pool {
        let target = self.target();
        let dial = move || Link::connect(&target, &Deadline::after(&Clock::System, timeout));
        pool(size, timeout, dial)
    }

    /// How many connections have come so far.
    pub(in crate::store::redis) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

pub(in crate::store::redis) fn pool(
    size: u32,
    timeout: Duration,
    dial: impl Fn() -> Result<Link, StoreError> + Send + Sync + 'static,
) -> Pool {
    let threads = Threads::start(3).unwrap();
    Pool::new(size, Box::new(dial), &Traffic::new("the fake".to_owned(), timeout), &threads)
}

/// Whether the connection goes on after an answer.
#[derive(PartialEq, Eq)]
pub(in crate::store::redis) enum Then {
    Listen,
    HangUp,
}

impl Peer {
    /// Answers the TIME of the handshake.
    pub(in crate::store::redis) fn greet(&mut self) -> bool {
        let asked = self.command();
        asked.is_some_and(|command| command == [b"TIME"]) && self.say(b"*2\r\n$4\r\n1000\r\n$1\r\n0\r\n")
    }

    /// The next command; `None` once the client is gone.
    pub(in crate::store::redis) fn command(&mut self) -> Option<Command> {
        let count = self.number(b'*')?;
        (0..count)
            .map(|_| {
                let mut bytes = vec![0; self.number(b'$')? + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                bytes.truncate(bytes.len() - 2);
                Some(bytes)
            })
            .collect()
    }

    fn number(&mut self, kind: u8) -> Option<usize> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).ok()?;
        let (first, digits) = line.split_first()?;
        assert_eq!(*first, kind);
        std::str::from_utf8(digits).unwrap().trim_end().parse().ok()
    }

    /// Sends these bytes; whether the client was there.
    pub(in crate::store::redis) fn say(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }

    /// Does nothing until the client hangs up.
    pub(in crate::store::redis) fn stall(&mut self) {
        let _ = self.reader.read_to_end(&mut Vec::new());
    }

    /// Does not even read.
    pub(in crate::store::redis) fn ignore(&mut self, length: Duration) {
        crossbeam_channel::after(length).recv().unwrap();
        let _ = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}

pub(in crate::store::redis) fn pause(length: Duration) {
    crossbeam_channel::after(length).recv().unwrap();
}

pub(in crate::store::redis) fn within_ms(length: u64) -> Deadline {
    Deadline::after(&Clock::System, Duration::from_millis(length))
}

/// The bytes of a bulk string.
pub(in crate::store::redis) fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
