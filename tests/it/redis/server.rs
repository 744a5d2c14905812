//! A redis-server of a test's own: on a free loopback port, with a folder of its own, gone when the test is.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use super::clock_shim::ClockShim;
use super::resp::{Client, Reply};
use super::{Stopwatch, nap, signals};

const INSTALL: &str =
    "redis-server is needed: install it with `tests/run --setup`, or `apt-get install redis-server`";

/// A running server. It stands still and goes on, dies and comes back as the test says; nothing of it outlives the test.
pub(crate) struct Server {
    address: SocketAddr,
    folder: Folder,
    options: Vec<String>,
    shim: Option<ClockShim>,
    child: Option<Child>,
    asking: RefCell<Option<Client>>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(&[])
    }

    /// With these options on its command line.
    pub(crate) fn with(options: &[&str]) -> Server {
        Server::build(options, None)
    }

    /// With a clock that [`turn_clock`](Server::turn_clock) steps.
    pub(crate) fn with_clock() -> Server {
        Server::build(&[], Some(ClockShim::new()))
    }

    fn build(options: &[&str], shim: Option<ClockShim>) -> Server {
        let mut server = Server {
            address: free_address(),
            folder: Folder::new(),
            options: options.iter().map(ToString::to_string).collect(),
            shim,
            child: None,
            asking: RefCell::new(None),
        };
        server.launch();
        server.await_ready();
        server
    }

    /// Starts the process and does not wait for it.
    #[track_caller]
    pub(crate) fn launch(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&self.folder.path);
        command.args(&self.options);
        if let Some(shim) = &self.shim {
            shim.put_before(&mut command);
        }
        let log = fs::File::create(self.folder.path.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        signals::ends_with_its_parent(&mut command);
        match command.spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => panic!("{INSTALL}"),
            Err(error) => panic!("redis-server: {error}"),
        }
    }

    /// Waits until it answers PING: not before it has loaded its data.
    #[track_caller]
    pub(crate) fn await_ready(&mut self) {
        let watch = Stopwatch::start();
        while watch.elapsed() < Duration::from_secs(20) {
            if self.pongs() {
                return;
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("redis-server ended with {status}: {}", self.log());
            }
            nap(2);
        }
        panic!("redis-server does not answer: {}", self.log());
    }

    /// Whether a new connection gets a PONG, or is told that it lacks a password.
    pub(crate) fn pongs(&self) -> bool {
        let answer = Client::connect(self.address).and_then(|mut client| client.ask(&[b"PING"]));
        match answer {
            Ok(Reply::Status(text)) => text == "PONG",
            Ok(Reply::Error(text)) => text.starts_with("NOAUTH"),
            _ => false,
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path.join("log")).unwrap_or_default()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The folder that it works in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// A connection of the test's own.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    /// Sends a command on the connection kept for that; an error of the server's is an answer.
    #[track_caller]
    pub(crate) fn cli(&self, parts: &[&str]) -> Reply {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        self.ask(&parts)
    }

    /// The same, of bytes.
    #[track_caller]
    pub(crate) fn ask(&self, parts: &[&[u8]]) -> Reply {
        let mut asking = self.asking.borrow_mut();
        if let Some(client) = asking.as_mut() {
            if let Ok(reply) = client.ask(parts) {
                return reply;
            }
        }
        // The kept one has not survived a restart, perhaps.
        let mut client = self.client();
        let reply = client.ask(parts).unwrap();
        *asking = Some(client);
        reply
    }

    /// A figure of `INFO`.
    #[track_caller]
    pub(crate) fn info(&self, name: &str) -> String {
        let info = self.cli(&["INFO", "everything"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has no {name}")).to_owned()
    }

    /// How often a command was carried out since the last `CONFIG RESETSTAT`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info = self.cli(&["INFO", "commandstats"]).text();
        let prefix = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or("0");
        line.split(',').next().unwrap().parse().unwrap()
    }

    /// All its keys, in order.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let reply = self.cli(&["KEYS", "*"]);
        let keys = reply.array().iter().map(|key| match key {
            Reply::Bytes(bytes) => bytes.clone(),
            other => panic!("not a key: {other:?}"),
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        keys
    }

    /// The time by its own clock, in microseconds.
    pub(crate) fn time(&self) -> u64 {
        let reply = self.cli(&["TIME"]);
        let [seconds, micros] = reply.array() else { panic!("not a time: {reply:?}") };
        seconds.text().parse::<u64>().unwrap() * 1_000_000 + micros.text().parse::<u64>().unwrap()
    }

    /// Steps its clock so many seconds away from the true time.
    #[track_caller]
    pub(crate) fn turn_clock(&self, seconds: i64) {
        self.shim.as_ref().expect("a server built with a clock").turn(seconds);
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub(crate) fn freeze(&self) {
        signals::freeze(self.pid());
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        signals::thaw(self.pid());
    }

    /// SIGKILL: it saves nothing, and its port refuses from then on.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Adds to its command line, from the next start on.
    pub(crate) fn option(&mut self, name: &str, value: &str) {
        self.options.extend([name, value].map(str::to_owned));
    }

    /// Whether it says that it loads its data.
    pub(crate) fn is_loading(&self) -> bool {
        let answer = Client::connect(self.address).and_then(|mut client| client.ask(&[b"GET", b"a"]));
        matches!(answer, Ok(Reply::Error(text)) if text.starts_with("LOADING"))
    }

    /// Kills it and starts it again, empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.launch();
        self.await_ready();
    }

    /// The process's number.
    #[track_caller]
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address that nobody listens on. It is below the range that outgoing connections get theirs from: a port in that
/// range may, while its server is down, be connected to itself.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 1_000) as u16 * 10;
    for _ in 0..10_000 {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 20_000 + offset));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port");
}

/// A folder for one fixture, removed with it.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("redis-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Folder { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn a_server_freezes_dies_and_comes_back_empty() {
    let mut server = Server::start();
    assert_eq!(server.cli(&["SET", "a", "1"]).text(), "OK");
    assert!(server.cli(&["NOSUCHCOMMAND"]).is_error());
    server.freeze();
    let mut client = server.client();
    client.wait_at_most(Duration::from_millis(100));
    assert!(client.ask(&[b"PING"]).is_err(), "it answers although it is frozen");
    server.thaw();
    assert_eq!(client.receive().unwrap().text(), "PONG");
    server.kill();
    assert!(Client::connect(server.address()).is_err(), "it listens although it is dead");
    server.restart();
    assert_eq!(server.cli(&["GET", "a"]), Reply::Nil);
    let pid = server.pid();
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it outlives its fixture");
    assert!(!folder.exists(), "its folder outlives its fixture");
}
