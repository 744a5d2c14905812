//! The provider on loopback, which changes its mind, and a log of what it saw.
//!
//! It stands for somebody else's: what it counts is the truth that the crawler is held against, so it shares no code with
//! the library.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// Pages in any second, until it changes its mind.
pub(crate) const FIRST_LIMIT: u32 = 120;
/// How long it works on a request, whatever comes of it.
const TAKES: Duration = Duration::from_millis(50);
/// What of a second it counts: requests that were sent in time may come together.
const COUNTED: Duration = Duration::from_millis(900);
/// How far its clock is behind.
const CLOCK_BEHIND: Duration = Duration::from_secs(3 * 3600);
const OUT_OF_SERVICE: Duration = Duration::from_secs(1);
/// How long it serves nobody once it has lowered its limit: however slow a crawler is, it shall be refused.
const NOBODY_SERVED: Duration = Duration::from_millis(300);

/// One change of mind, with the request that comes after so many pages.
struct Change {
    pages: u32,
    to: Mind,
    says: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mind {
    Limit { pages_per_second: u32, refusal: Refusal },
    OutOfService,
    Restart,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Seconds,
    Date,
}

const CHANGES: [Change; 4] = [
    Change {
        pages: 200,
        to: Mind::Limit { pages_per_second: 80, refusal: Refusal::Seconds },
        says: "80 a second from now on; 429 with Retry-After: 1",
    },
    Change {
        pages: 350,
        to: Mind::Limit { pages_per_second: 50, refusal: Refusal::Date },
        says: "50 a second from now on; 429 with a date, by a clock 3 h behind",
    },
    Change {
        pages: 440,
        to: Mind::OutOfService,
        says: "out of service for a second; 503 with Retry-After: 1",
    },
    Change { pages: 530, to: Mind::Restart, says: "restarts: every connection is cut" },
];

/// What the provider saw: requests by when they came.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) began: Option<Instant>,
    pub(crate) served: Vec<Instant>,
    /// Those that were cut off before they had their answer included.
    pub(crate) refused: Vec<Instant>,
    /// When it changed its mind, and what it said then.
    pub(crate) changes: Vec<(Instant, &'static str)>,
    /// Each limit, and since when.
    pub(crate) limits: Vec<(Instant, u32)>,
}

pub(crate) struct Provider {
    address: SocketAddr,
    shared: Arc<Mutex<State>>,
    acceptor: JoinHandle<io::Result<()>>,
}

struct State {
    log: Log,
    limit: u32,
    refusal: Refusal,
    /// Until when nobody is served.
    closed_until: Instant,
    out_of_service: bool,
    /// The pages of the last second.
    recent: VecDeque<Instant>,
    connections: Vec<Arc<TcpStream>>,
    stopping: bool,
}

/// What becomes of a request.
enum Answer {
    Page,
    TooMany,
    OutOfService,
    Cut,
}

impl Provider {
    pub(crate) fn start() -> io::Result<Provider> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let now = Instant::now();
        let state = State {
            log: Log { began: Some(now), limits: vec![(now, FIRST_LIMIT)], ..Log::default() },
            limit: FIRST_LIMIT,
            refusal: Refusal::Seconds,
            closed_until: now,
            out_of_service: false,
            recent: VecDeque::new(),
            connections: Vec::new(),
            stopping: false,
        };
        let shared = Arc::new(Mutex::new(state));
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("provider".into()).spawn(move || accept(&listener, &shared))?
        };
        Ok(Provider { address, shared, acceptor })
    }

    pub(crate) fn url(&self, page: u32) -> String {
        format!("http://{}/page/{page}", self.address)
    }

    pub(crate) fn stop(self) -> io::Result<Log> {
        self.shared.lock().stopping = true;
        // The acceptor sees that it should stop only when somebody comes.
        TcpStream::connect(self.address)?;
        self.acceptor.join().map_err(|_| io::Error::other("its thread panicked"))??;
        Ok(std::mem::take(&mut self.shared.lock().log))
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Mutex<State>>) -> io::Result<()> {
    let mut threads = Vec::new();
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let stream = Arc::new(stream);
        let mut state = shared.lock();
        if state.stopping {
            state.cut_all();
            break;
        }
        state.connections.push(Arc::clone(&stream));
        drop(state);
        let shared = Arc::clone(shared);
        let named = thread::Builder::new().name("provider-connection".into());
        // An error is a client that went away, or one that was cut off.
        threads.push(named.spawn(move || drop(serve(&stream, &shared)))?);
    }
    threads
        .into_iter()
        .try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a connection panicked")))
}

/// Answers one request after the other until the connection is closed, by whichever side.
fn serve(mut stream: &TcpStream, shared: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(page) = read_page_asked_for(&mut reader)? {
        let came = Instant::now();
        let (answer, limit, refusal) = {
            let mut state = shared.lock();
            (state.answer(came), state.limit, state.refusal)
        };
        let is_page = matches!(answer, Answer::Page);
        let (status, mut fields, body) = match answer {
            Answer::Page => ("200 OK", String::new(), format!("page {page}\n")),
            Answer::TooMany => ("429 Too Many Requests", retry_after(refusal), "too many\n".to_owned()),
            Answer::OutOfService => {
                ("503 Service Unavailable", retry_after(Refusal::Seconds), "out of service\n".to_owned())
            }
            Answer::Cut => {
                shared.lock().log.refused.push(came);
                return Ok(());
            }
        };
        thread::sleep(TAKES);
        let _ = write!(fields, "RateLimit-Policy: \"pages\";q={limit};w=1\r\n");
        let length = body.len();
        // One write, hence one packet.
        let answered = stream.write_all(
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}").as_bytes(),
        );
        let mut state = shared.lock();
        let list = if is_page && answered.is_ok() { &mut state.log.served } else { &mut state.log.refused };
        list.push(came);
        answered?;
    }
    Ok(())
}

impl State {
    fn answer(&mut self, now: Instant) -> Answer {
        let changed = self.change_mind(now);
        if changed == Some(Mind::Restart) {
            self.cut_all();
            return Answer::Cut;
        }
        if now < self.closed_until {
            return if self.out_of_service { Answer::OutOfService } else { Answer::TooMany };
        }
        while self.recent.front().is_some_and(|page| now.duration_since(*page) >= COUNTED) {
            self.recent.pop_front();
        }
        if self.recent.len() >= usize::try_from(self.limit).unwrap_or(usize::MAX) {
            return Answer::TooMany;
        }
        self.recent.push_back(now);
        Answer::Page
    }

    fn change_mind(&mut self, now: Instant) -> Option<Mind> {
        let change = CHANGES.get(self.log.changes.len())?;
        if self.log.served.len() < usize::try_from(change.pages).unwrap_or(usize::MAX) {
            return None;
        }
        self.log.changes.push((now, change.says));
        match change.to {
            Mind::Limit { pages_per_second, refusal } => {
                (self.limit, self.refusal) = (pages_per_second, refusal);
                self.closed_until = now + NOBODY_SERVED;
                self.log.limits.push((now, pages_per_second));
            }
            Mind::OutOfService => {
                self.out_of_service = true;
                self.closed_until = now + OUT_OF_SERVICE;
            }
            Mind::Restart => {}
        }
        Some(change.to)
    }

    fn cut_all(&mut self) {
        for stream in self.connections.drain(..) {
            // One that the client has closed already cannot be shut down.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn retry_after(refusal: Refusal) -> String {
    match refusal {
        Refusal::Seconds => "Retry-After: 1\r\n".to_owned(),
        Refusal::Date => {
            let now = SystemTime::now() - CLOCK_BEHIND;
            let date = httpdate::fmt_http_date(now);
            let then = httpdate::fmt_http_date(now + Duration::from_secs(2));
            format!("Date: {date}\r\nRetry-After: {then}\r\n")
        }
    }
}

/// Reads one request's head, of which `GET /page/17` is what matters. `None` means that no further request comes.
fn read_page_asked_for(reader: &mut impl BufRead) -> io::Result<Option<u32>> {
    /// No honest head is longer; past it the connection is cut.
    const HEAD_BYTES_MAX: u64 = 8_192;

    let mut reader = reader.take(HEAD_BYTES_MAX);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
    }
    let page = head.strip_prefix("GET /page/").and_then(|rest| rest.split(' ').next()?.parse().ok());
    page.map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}
