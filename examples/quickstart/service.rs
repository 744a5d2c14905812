//! An HTTP service on loopback that guards a quota of its own and keeps a log of what it saw.
//!
//! It stands for somebody else's: what it counts is the truth the valve is held against, so it shares no code
//! with the valve.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What the service allows before it answers 429.
#[derive(Clone, Copy)]
pub(crate) struct Quota {
    /// Requests in each `interval`, evenly spaced.
    pub(crate) limit: u32,
    pub(crate) interval: Duration,
    /// Requests being worked on at the same time.
    pub(crate) at_once: u32,
    /// How much too early a request may come: networks bunch what was sent evenly.
    pub(crate) tolerance: Duration,
}

/// What the service saw, in time since it started.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) starts: Vec<Duration>,
    pub(crate) refusals: Vec<Duration>,
    /// The most requests that were being worked on at the same time.
    pub(crate) greatest_running: u32,
}

/// A running service; [`Service::stop`] ends its threads.
pub(crate) struct Service {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: JoinHandle<io::Result<()>>,
}

impl Service {
    /// Listens on a free port.
    pub(crate) fn start(quota: Quota) -> io::Result<Service> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let ledger = Mutex::new(Ledger { quota, next_due: Duration::ZERO, running: 0, log: Log::default() });
        let shared = Arc::new(Shared { began: Instant::now(), stopping: AtomicBool::new(false), ledger });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("service".into()).spawn(move || accept(listener, &shared))?
        };
        Ok(Service { address, shared, acceptor })
    }

    /// Where to fetch a page that takes the service this long.
    pub(crate) fn url(&self, page: u32, takes: Duration) -> String {
        format!("http://{}/page/{page}?ms={}", self.address, takes.as_millis())
    }

    /// Closes every connection, waits for the threads, and hands over the log or what stopped the service early.
    pub(crate) fn stop(self) -> io::Result<Log> {
        self.shared.stopping.store(true, Ordering::Release);
        match TcpStream::connect(self.address) {
            // Nobody was there to wake: the service has stopped by itself.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            woken => drop(woken?),
        }
        self.acceptor.join().map_err(|_| io::Error::other("the service panicked"))??;
        Ok(mem::take(&mut self.shared.ledger.lock().log))
    }
}

struct Shared {
    began: Instant,
    stopping: AtomicBool,
    ledger: Mutex<Ledger>,
}

/// The quota's state. Both limits must have room, and a refused request uses up neither.
struct Ledger {
    quota: Quota,
    /// When the next request is due if all come evenly spaced: the theoretical arrival time of GCRA.
    next_due: Duration,
    running: u32,
    log: Log,
}

impl Ledger {
    /// Judges a request that arrives now. True means it runs until [`Ledger::end`].
    fn begin(&mut self, now: Duration) -> bool {
        let too_early = now + self.quota.tolerance < self.next_due;
        if too_early || self.running == self.quota.at_once {
            self.log.refusals.push(now);
            return false;
        }
        self.next_due = self.next_due.max(now) + self.quota.interval / self.quota.limit;
        self.running += 1;
        self.log.greatest_running = self.log.greatest_running.max(self.running);
        self.log.starts.push(now);
        true
    }

    fn end(&mut self) {
        self.running -= 1;
    }
}

struct Connection {
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

fn accept(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<()> {
    let mut connections = Vec::new();
    let outcome = accept_until_stopped(&listener, shared, &mut connections);
    drop(listener);
    for connection in connections {
        // Fails where the client has closed already, and ends the thread's read where it has not.
        let _ = connection.stream.shutdown(Shutdown::Both);
        // A panic was reported when it happened, and its client saw the connection close.
        let _ = connection.thread.join();
    }
    outcome
}

fn accept_until_stopped(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    connections: &mut Vec<Connection>,
) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        if shared.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        stream.set_nodelay(true)?;
        let stream = Arc::new(stream);
        let thread = {
            let (stream, shared) = (Arc::clone(&stream), Arc::clone(shared));
            let named = thread::Builder::new().name("service-connection".into());
            // An error is a client that went away, which is its right.
            named.spawn(move || drop(serve(&stream, &shared)))?
        };
        connections.push(Connection { stream, thread });
    }
}

/// Answers one request after the other until the client closes the connection.
fn serve(mut stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(head) = read_head(&mut reader)? {
        let Some(takes) = time_asked_for(&head) else {
            respond(&mut stream, "404 Not Found", "no such page\n")?;
            continue;
        };
        // The clock is read under the lock, so that the log is in order.
        if !shared.ledger.lock().begin(shared.began.elapsed()) {
            respond(&mut stream, "429 Too Many Requests", "over quota\n")?;
            continue;
        }
        thread::sleep(takes);
        // Over before the answer is written: a client that has it all may send the next request at once.
        shared.ledger.lock().end();
        respond(&mut stream, "200 OK", "a page\n")?;
    }
    Ok(())
}

/// Reads up to the empty line that ends a request's head. None means that no further request comes.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    /// No honest head is longer; past it the connection is cut.
    const HEAD_BYTES_MAX: u64 = 8_192;

    let mut reader = reader.take(HEAD_BYTES_MAX);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
    }
    Ok(Some(head))
}

/// Reads `GET /page/17?ms=20`.
fn time_asked_for(head: &str) -> Option<Duration> {
    let (target, _) = head.strip_prefix("GET /page/")?.split_once(' ')?;
    let (_page, milliseconds) = target.split_once("?ms=")?;
    milliseconds.parse().ok().map(Duration::from_millis)
}

fn respond(stream: &mut impl Write, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    // One write, hence one packet.
    let response =
        format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(response.as_bytes())
}
