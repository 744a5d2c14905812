//! An HTTP server on loopback that answers as it is told to, request by request.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// What becomes of one request.
pub(crate) enum Reply {
    /// A whole answer with this status, these header lines, and this body.
    Answer(u16, &'static [&'static str], String),
    /// The connection is closed and nothing said.
    Cut,
    /// Something else than HTTP.
    Garbage,
    /// Nothing, for as long as the client stays.
    Silence,
    /// The head and the first half of a body; the other half once the channel says so.
    Halves(&'static str, Receiver<()>, &'static str),
}

/// One request that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) fields: Vec<String>,
    pub(crate) body: String,
}

pub(crate) struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    replies: VecDeque<Reply>,
    seen: Vec<Seen>,
    streams: Vec<TcpStream>,
    stopping: bool,
}

impl Provider {
    /// Gives these replies, in their order whoever asks, and then only 200.
    pub(crate) fn new(replies: impl IntoIterator<Item = Reply>) -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let replies = replies.into_iter().collect();
        let state = State { replies, seen: Vec::new(), streams: Vec::new(), stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), came: Condvar::new() });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().spawn(move || accept(&listener, &shared)).unwrap()
        };
        Provider { address, shared, acceptor: Some(acceptor) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/page", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.state.lock().seen.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.state.lock().streams.len()
    }

    /// Waits until so many requests have come.
    pub(crate) fn wait_for(&self, count: usize) {
        let mut state = self.shared.state.lock();
        self.shared.came.wait_while(&mut state, |state| state.seen.len() < count);
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            state.streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
        // The acceptor sees that it should stop only when somebody comes.
        drop(TcpStream::connect(self.address));
        self.acceptor.take().map(JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut serving = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        let mut state = shared.state.lock();
        if state.stopping {
            break;
        }
        state.streams.push(stream.try_clone().unwrap());
        drop(state);
        let shared = Arc::clone(shared);
        serving.push(thread::Builder::new().spawn(move || drop(serve(&stream, &shared))).unwrap());
    }
    serving.into_iter().for_each(|thread| drop(thread.join()));
}

fn serve(mut stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(seen) = read_request(&mut reader)? {
        let reply = {
            let mut state = shared.state.lock();
            state.seen.push(seen);
            state.replies.pop_front()
        };
        shared.came.notify_all();
        match reply.unwrap_or_else(|| Reply::Answer(200, &[], "a page".to_owned())) {
            Reply::Answer(status, fields, body) => {
                let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status} As Told\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
                )?;
            }
            Reply::Cut => return stream.shutdown(Shutdown::Both),
            Reply::Silence => drop(reader.read_until(0, &mut Vec::new())?),
            Reply::Garbage => write!(stream, "220 smtp ready\r\n\r\n")?,
            Reply::Halves(first, told, second) => {
                let length = first.len() + second.len();
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{first}")?;
                // The test may have failed and gone.
                let _ = told.recv();
                write!(stream, "{second}")?;
            }
        }
    }
    Ok(())
}

/// `None` if no further request comes.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Seen>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0);
    let length = lines.iter().find_map(|field| {
        let (name, value) = field.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok(Some(Seen { line, fields: lines, body: String::from_utf8(body).unwrap() }))
}
