//! A proxy between a client and a server that does to the bytes what networks do: delays, holds back, loses, slices and
//! cuts them, at any byte; resets connections; and vanishes. All of it live, each direction by itself.

mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::server::free_address;
use super::{Stopwatch, nap};
use crate::support::Random;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// What becomes of bytes that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Passes,
    /// They are kept and go on once this is over, also if their sender is gone by then.
    Held,
    /// They are not even read: the sender's buffers fill.
    Unread,
    Lost,
}

/// What happens to a connection when its bytes are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing more comes this way until the proxy is healed.
    Stall,
    /// Both sides are told that the other has hung up.
    Close,
    /// Both sides get a reset.
    Reset,
}

/// Bytes are cut into slices of so many, and this long apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slices {
    pub(crate) bytes: usize,
    pub(crate) apart: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Lane {
    flow: Flow,
    delay: Duration,
    slices: Option<Slices>,
    /// After so many more bytes, on whichever connection, this happens to it, once.
    cut: Option<(usize, Cut)>,
}

impl Lane {
    const PLAIN: Lane = Lane { flow: Flow::Passes, delay: Duration::ZERO, slices: None, cut: None };
}

struct State {
    upstream: SocketAddr,
    lanes: [Lane; 2],
    accepts: bool,
    /// How often it was healed.
    heals: u64,
    connections: Vec<Arc<Connection>>,
    over: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicU64,
    passed: [AtomicU64; 2],
}

/// One connection through the proxy.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    over: AtomicBool,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
    /// What fills the queue of a proxy that has vanished.
    fillers: Mutex<Vec<TcpStream>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn to(upstream: SocketAddr) -> Proxy {
        let address = free_address();
        let listener = Arc::new(TcpListener::bind(address).unwrap());
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                upstream,
                lanes: [Lane::PLAIN; 2],
                accepts: true,
                heals: 0,
                connections: Vec::new(),
                over: false,
            }),
            changed: Condvar::new(),
            accepted: AtomicU64::new(0),
            passed: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let (mine, theirs) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = spawn("proxy-accept", move || accept_all(&theirs, &mine));
        Proxy { address, listener, shared, fillers: Mutex::default(), acceptor: Some(acceptor) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn flow(&self, way: Way, flow: Flow) {
        self.change(way, |lane| lane.flow = flow);
    }

    pub(crate) fn both(&self, flow: Flow) {
        self.flow(Way::Up, flow);
        self.flow(Way::Down, flow);
    }

    pub(crate) fn delay(&self, way: Way, delay: Duration) {
        self.change(way, |lane| lane.delay = delay);
    }

    pub(crate) fn slice(&self, way: Way, slices: Slices) {
        self.change(way, |lane| lane.slices = Some(slices));
    }

    /// Lets so many more bytes pass on all connections together, and cuts the one that has the next.
    pub(crate) fn cut_after(&self, way: Way, bytes: usize, cut: Cut) {
        self.change(way, |lane| lane.cut = Some((bytes, cut)));
    }

    /// Ends all connections.
    pub(crate) fn cut_all(&self, cut: Cut) {
        let connections = std::mem::take(&mut self.shared.state.lock().connections);
        for connection in connections {
            connection.end(cut);
        }
        self.shared.changed.notify_all();
    }

    /// Takes no more connections: whoever tries hears nothing, as from a host that is gone.
    pub(crate) fn vanish(&self) {
        self.shared.state.lock().accepts = false;
        // It may be about to accept.
        nap(20);
        backlog(&self.listener, 0);
        let mut fillers = self.fillers.lock();
        while let Ok(filler) = TcpStream::connect_timeout(&self.address, Duration::from_millis(150)) {
            fillers.push(filler);
        }
    }

    /// All passes again, what was held first. A cut connection stays cut.
    pub(crate) fn heal(&self) {
        let mut state = self.shared.state.lock();
        state.lanes = [Lane::PLAIN; 2];
        state.heals += 1;
        if !state.accepts {
            self.fillers.lock().clear();
            backlog(&self.listener, 128);
            state.accepts = true;
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Ends all connections; new ones go there.
    pub(crate) fn redirect(&self, upstream: SocketAddr) {
        self.shared.state.lock().upstream = upstream;
        self.cut_all(Cut::Close);
    }

    /// How many connections it has taken.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many bytes it has passed on.
    pub(crate) fn passed(&self, way: Way) -> u64 {
        self.shared.passed[way as usize].load(Ordering::Relaxed)
    }

    /// Does something bad to both ways again and again until `over`, and then heals; how many things it did.
    pub(crate) fn trouble(&self, seed: u64, over: &AtomicBool) -> u64 {
        let mut random = Random::new(seed);
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            let way = if random.below(2) == 0 { Way::Up } else { Way::Down };
            let bytes = random.below(300) as usize;
            match random.below(9) {
                0 | 1 => self.delay(way, Duration::from_millis(random.below(400))),
                2 => self.flow(way, Flow::Held),
                3 => self.flow(way, Flow::Lost),
                4 => self.cut_after(way, bytes, Cut::Stall),
                5 => self.cut_after(way, bytes, Cut::Close),
                6 => self.cut_after(way, bytes, Cut::Reset),
                7 => {
                    let apart = Duration::from_millis(random.below(20));
                    self.slice(way, Slices { bytes: bytes / 10 + 1, apart });
                }
                _ => self.cut_all(Cut::Reset),
            }
            nap(20 + random.below(280));
            self.heal();
            nap(random.below(150));
            done += 1;
        }
        self.heal();
        done
    }

    fn change(&self, way: Way, change: impl FnOnce(&mut Lane)) {
        change(&mut self.shared.state.lock().lanes[way as usize]);
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.cut_all(Cut::Close);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (over, accepts, upstream) = {
            let state = shared.state.lock();
            (state.over, state.accepts, state.upstream)
        };
        if over {
            return;
        }
        match accepts.then(|| listener.accept()) {
            Some(Ok((client, _))) => take(client, upstream, shared),
            _ => nap(1),
        }
    }
}

/// Connects to the server for a client; one whose server refuses is hung up on.
fn take(client: TcpStream, upstream: SocketAddr, shared: &Arc<Shared>) {
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    let Ok(server) = TcpStream::connect_timeout(&upstream, Duration::from_secs(1)) else {
        reset(&client);
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    }
    let connection = Arc::new(Connection { client, server, over: AtomicBool::new(false) });
    {
        let mut state = shared.state.lock();
        state.connections.retain(|other| !other.over.load(Ordering::Relaxed));
        state.connections.push(Arc::clone(&connection));
    }
    for way in [Way::Up, Way::Down] {
        let (connection, shared) = (Arc::clone(&connection), Arc::clone(shared));
        let name = if way == Way::Up { "proxy-up" } else { "proxy-down" };
        drop(spawn(name, move || {
            if connection.pump(way, &shared).is_err() {
                connection.over.store(true, Ordering::Relaxed);
            }
        }));
    }
}

impl Connection {
    /// Passes bytes on one way until there are no more.
    fn pump(&self, way: Way, shared: &Shared) -> io::Result<()> {
        let (mut from, to) = match way {
            Way::Up => (&self.client, &self.server),
            Way::Down => (&self.server, &self.client),
        };
        let mut buffer = vec![0; 1 << 16];
        loop {
            self.wait(shared, Duration::ZERO, |state| state.lanes[way as usize].flow != Flow::Unread)?;
            let count = match from.read(&mut buffer) {
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return Ok(());
                }
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) => {
                    self.end(Cut::Reset);
                    return Err(error);
                }
            };
            self.pass(&buffer[..count], to, way, shared)?;
        }
    }

    fn pass(&self, mut bytes: &[u8], mut to: &TcpStream, way: Way, shared: &Shared) -> io::Result<()> {
        let delay = shared.state.lock().lanes[way as usize].delay;
        self.wait(shared, delay, |_| delay.is_zero())?;
        while !bytes.is_empty() {
            let held = |state: &State| matches!(state.lanes[way as usize].flow, Flow::Held | Flow::Unread);
            self.wait(shared, Duration::ZERO, |state| !held(state))?;
            let (count, apart, flow, cut) = {
                let lane = &mut shared.state.lock().lanes[way as usize];
                let (most, apart) =
                    lane.slices.map_or((bytes.len(), Duration::ZERO), |slices| (slices.bytes, slices.apart));
                let mut count = most.min(bytes.len());
                let mut cut = None;
                if let Some((left, kind)) = &mut lane.cut {
                    if *left < bytes.len() && *left <= count {
                        count = *left;
                        cut = Some(*kind);
                        lane.cut = None;
                    } else {
                        *left -= count;
                    }
                }
                (count, apart, lane.flow, cut)
            };
            if flow == Flow::Passes {
                // The receiver may be gone: what the sender sends is then lost, and that is all.
                let _ = to.write_all(&bytes[..count]);
                shared.passed[way as usize].fetch_add(count as u64, Ordering::Relaxed);
            }
            bytes = &bytes[count..];
            match cut {
                None => self.wait(shared, apart, |_| apart.is_zero())?,
                Some(Cut::Stall) => {
                    let heals = shared.state.lock().heals;
                    self.wait(shared, Duration::ZERO, |state| state.heals > heals)?;
                }
                Some(cut) => {
                    self.end(cut);
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
        }
        Ok(())
    }

    /// Waits until `done`, or for so long if that is not zero; an error if the connection has ended.
    fn wait(&self, shared: &Shared, most: Duration, done: impl Fn(&State) -> bool) -> io::Result<()> {
        let watch = Stopwatch::start();
        let mut state = shared.state.lock();
        let heals = state.heals;
        loop {
            if self.over.load(Ordering::Relaxed) || state.over {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            // Healing ends a delay too.
            let waited = !most.is_zero() && (watch.elapsed() >= most || state.heals > heals);
            if waited || done(&state) {
                return Ok(());
            }
            let rest =
                if most.is_zero() { Duration::from_secs(1) } else { most.saturating_sub(watch.elapsed()) };
            shared.changed.wait_for(&mut state, rest.min(Duration::from_secs(1)));
        }
    }

    fn end(&self, cut: Cut) {
        if self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        for stream in [&self.client, &self.server] {
            if cut == Cut::Reset {
                reset(stream);
            }
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).unwrap()
}

/// Ends a connection by a reset, whoever else holds it.
#[expect(unsafe_code, reason = "the standard library cannot disconnect a stream")]
fn reset(stream: &TcpStream) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let size = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address outlives the call, and its size is its own. Connecting to nowhere disconnects.
    unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, size) };
}

/// Changes how many connections may wait to be accepted.
#[expect(unsafe_code, reason = "the standard library listens once, with a length of its own")]
fn backlog(listener: &TcpListener, length: libc::c_int) {
    // SAFETY: the socket is open, and listens.
    let result = unsafe { libc::listen(listener.as_raw_fd(), length) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}
