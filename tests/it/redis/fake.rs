//! A server that answers what a test says, byte by byte.

use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::nap;
use super::resp::read_command;
use super::server::free_address;

/// What to do about a command.
pub(crate) enum Answer {
    /// What a sound and empty server would say to a connection's first commands; to others an error.
    Usual,
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes, and then it hangs up.
    Last(Vec<u8>),
}

impl Answer {
    pub(crate) fn text(text: &str) -> Answer {
        Answer::Bytes(text.as_bytes().to_vec())
    }
}

type Script = dyn Fn(&[Vec<u8>]) -> Answer + Send + Sync;

pub(crate) struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    script: Box<Script>,
    over: AtomicBool,
    commands: Mutex<Vec<Vec<Vec<u8>>>>,
    streams: Mutex<Vec<TcpStream>>,
}

impl Fake {
    /// `script` is told each command, the name first, and says what to answer.
    pub(crate) fn new(script: impl Fn(&[Vec<u8>]) -> Answer + Send + Sync + 'static) -> Fake {
        let address = free_address();
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            over: AtomicBool::new(false),
            commands: Mutex::default(),
            streams: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let accept = move || {
            while !theirs.over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream, &theirs),
                    Err(_) => nap(1),
                }
            }
        };
        let acceptor = thread::Builder::new().name("fake-accept".to_owned()).spawn(accept).unwrap();
        Fake { address, shared, acceptor: Some(acceptor) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Every command so far, on whichever connection.
    pub(crate) fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.commands.lock().clone()
    }

    /// How many commands of this name it got.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.commands().iter().filter(|parts| parts[0].eq_ignore_ascii_case(name.as_bytes())).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for stream in self.shared.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    stream.set_nonblocking(false).unwrap();
    stream.set_nodelay(true).unwrap();
    shared.streams.lock().push(stream.try_clone().unwrap());
    let shared = Arc::clone(shared);
    let answer_all = move || {
        let mut reader = BufReader::new(stream);
        while let Ok(Some(parts)) = read_command(&mut reader) {
            shared.commands.lock().push(parts.clone());
            let (bytes, is_last) = match (shared.script)(&parts) {
                Answer::Usual => (usual(&parts), false),
                Answer::Bytes(bytes) => (bytes, false),
                Answer::Last(bytes) => (bytes, true),
            };
            if reader.get_mut().write_all(&bytes).is_err() || is_last {
                break;
            }
        }
        let _ = reader.get_ref().shutdown(Shutdown::Both);
    };
    thread::Builder::new().name("fake".to_owned()).spawn(answer_all).unwrap();
}

fn usual(parts: &[Vec<u8>]) -> Vec<u8> {
    match parts[0].to_ascii_uppercase().as_slice() {
        b"PING" => b"+PONG\r\n".to_vec(),
        b"AUTH" | b"SELECT" => b"+OK\r\n".to_vec(),
        b"TIME" => time().into_bytes(),
        b"CONFIG" => b"*0\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a server has a clock of its own")]
fn time() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (seconds, micros) = (now.as_secs().to_string(), now.subsec_micros().to_string());
    format!("*2\r\n${}\r\n{seconds}\r\n${}\r\n{micros}\r\n", seconds.len(), micros.len())
}

#[test]
fn it_answers_as_told_and_remembers_what_it_was_asked() {
    use super::resp::{Client, Reply};

    let fake = Fake::new(|parts| match parts[0].as_slice() {
        b"GET" => Answer::text("$2\r\nhi\r\n"),
        b"QUIT" => Answer::Last(b"+by".to_vec()),
        _ => Answer::Usual,
    });
    let mut client = Client::connect(fake.address).unwrap();
    assert_eq!(client.ask(&[b"GET", b"a"]).unwrap(), Reply::Bytes(b"hi".to_vec()));
    assert_eq!(client.ask(&[b"TIME"]).unwrap().array().len(), 2);
    assert!(client.ask(&[b"QUIT"]).is_err(), "the frame is not whole");
    assert_eq!(fake.count("get"), 1);
    assert_eq!(fake.commands().len(), 3);
}
