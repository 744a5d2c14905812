//! Hears what other processes say of pauses, resumes and releases: one thread per client, on a connection of its own.
//!
//! What is heard is a hint to ask again, never a reason to start: a lost, doubled or forged notice changes when somebody
//! asks, and nothing else.

use super::link::{Closer, Link, Reply};
use super::url::Target;
use crate::clock::{Clock, ticks_up};
use crate::error::{StoreError, StoreErrorKind};
use crate::event::say;
use crate::store::{Deadline, Notice, Wake};
use crate::sync::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// With nothing to hear for so long a PING is sent; with nothing for twice as long the connection counts as dead.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The pauses between attempts to connect: the first, doubled up to the last.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// A user who may not subscribe will hardly be allowed to in the next second.
const FORBIDDEN: Duration = Duration::from_secs(30);

/// The first byte of a notice; the id follows.
pub(super) const PAUSED: u8 = b'p';
pub(super) const RESUMED: u8 = b'r';
pub(super) const RELEASED: u8 = b'f';

/// Who is to be told of what. Its thread starts with the first waiter or pause and ends with the client.
pub(super) struct Notices {
    shared: Arc<Shared>,
}

struct Shared {
    target: Arc<Target>,
    channel: Vec<u8>,
    /// How long connecting and subscribing may take.
    timeout: Duration,
    state: Mutex<State>,
    stop: Condvar,
}

#[derive(Default)]
struct State {
    watchers: HashMap<Arc<str>, Vec<Wake>>,
    /// The subscription is confirmed.
    live: bool,
    thread: Thread,
    /// Releases of this process are not published: nobody needs to count on notices.
    mute: bool,
    /// Breaks off what the thread waits for on its connection.
    closer: Option<Closer>,
}

#[derive(Default, PartialEq, Eq)]
enum Thread {
    #[default]
    None,
    Running,
    /// It must not run (any more).
    Stopped,
}

impl Notices {
    pub(super) fn new(target: Arc<Target>, channel: Vec<u8>, timeout: Duration) -> Notices {
        let (state, stop) = (Mutex::new(State::default()), Condvar::new());
        Notices { shared: Arc::new(Shared { target, channel, timeout, state, stop }) }
    }

    pub(super) fn watch(&self, wake: Wake) {
        let mut state = self.shared.state.lock();
        state.watchers.retain(|_, wakes| {
            wakes.retain(|wake| !wake.is_stale());
            !wakes.is_empty()
        });
        let told = state.told();
        state.watchers.entry(wake.shared_id()).or_default().push(wake.clone());
        drop(state);
        if told {
            wake.notify(Notice::Listening);
        }
    }

    /// Whether notices come, as a rule.
    pub(super) fn are_told(&self) -> bool {
        self.shared.state.lock().told()
    }

    /// Somebody waits: from now on it is worth listening.
    pub(super) fn start(&self) {
        let mut state = self.shared.state.lock();
        if state.thread != Thread::None {
            return;
        }
        state.thread = Thread::Running;
        drop(state);
        let shared = Arc::clone(&self.shared);
        if let Err(error) = Clock::System.spawn("valve-sub", None, move || shared.listen()) {
            // Without it waiters poll; the next to wait tries again.
            say(
                log::Level::Warn,
                format_args!("no thread to hear of other processes' releases, waiters poll: {error}"),
            );
            let mut state = self.shared.state.lock();
            if state.thread == Thread::Running {
                state.thread = Thread::None;
            }
        }
    }

    /// This user may not publish, so nobody hears of its releases: waiters are to poll.
    pub(super) fn mute(&self) {
        let mut state = self.shared.state.lock();
        if std::mem::replace(&mut state.mute, true) {
            return;
        }
        let wakes = state.everybody();
        drop(state);
        say(
            log::Level::Warn,
            format_args!(
                "the Redis user may not PUBLISH to {:?}: waiters in other processes poll each 50 ms instead of being \
                 told; grant it with ACL SETUSER <user> +publish &{}",
                self.shared.channel_name(),
                self.shared.channel_name()
            ),
        );
        tell(wakes, Notice::Silent);
    }

    /// Ends the thread soon.
    pub(super) fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.thread = Thread::Stopped;
        let closer = state.closer.take();
        drop(state);
        self.shared.stop.notify_all();
        if let Some(closer) = closer {
            closer.close();
        }
    }
}

impl State {
    fn told(&self) -> bool {
        self.live && !self.mute
    }

    fn everybody(&self) -> Vec<Wake> {
        self.watchers.values().flatten().cloned().collect()
    }
}

impl Shared {
    fn channel_name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.channel)
    }

    /// The thread: connects, listens until the connection fails, and again.
    fn listen(&self) {
        let mut pause = BACK_OFF_MIN;
        let mut said = false;
        while !self.stopped() {
            let error = match self.subscribe() {
                Ok(mut link) => {
                    self.turn(Notice::Listening);
                    let since = Clock::System.now();
                    let error = self.hear(&mut link);
                    self.turn(Notice::Silent);
                    // A server that takes subscriptions and ends them at once is no better than one that takes none.
                    if Clock::System.now() - since >= ticks_up(HEARTBEAT) {
                        (pause, said) = (BACK_OFF_MIN, false);
                    }
                    error
                }
                Err(error) => error,
            };
            if self.stopped() {
                return;
            }
            if !std::mem::replace(&mut said, true) {
                let name = self.channel_name();
                say(
                    log::Level::Warn,
                    format_args!("no notices from channel {name:?}, waiters poll: {error}"),
                );
            }
            if matches!(error.kind(), StoreErrorKind::Permission | StoreErrorKind::Auth) {
                pause = FORBIDDEN;
            }
            self.rest(spread(pause));
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }

    fn subscribe(&self) -> Result<Link, StoreError> {
        let deadline = Deadline::after(&Clock::System, self.timeout);
        let mut link = Link::connect(&self.target, &deadline)?;
        self.state.lock().closer = link.closer();
        link.send(&[b"SUBSCRIBE", &self.channel], &deadline)?;
        match link.receive(&deadline)? {
            Some(Reply::Array(parts)) if parts.first().is_some_and(|part| part.is(b"subscribe")) => Ok(link),
            Some(_) => Err(StoreError::new(
                StoreErrorKind::Protocol,
                crate::error::Executed::Unknown,
                "the answer to SUBSCRIBE makes no sense: is something between this process and the server?",
            )),
            None => Err(quiet(self.timeout)),
        }
    }

    /// Tells watchers what is heard, until the connection fails.
    fn hear(&self, link: &mut Link) -> StoreError {
        let mut quiet_beats = 0;
        loop {
            let deadline = Deadline::after(&Clock::System, HEARTBEAT);
            let heard = match link.receive(&deadline) {
                Ok(heard) => heard,
                Err(error) => return error,
            };
            if self.stopped() {
                return quiet(HEARTBEAT);
            }
            match heard {
                Some(reply) => {
                    quiet_beats = 0;
                    self.pass_on(&reply);
                }
                None if quiet_beats == 0 => {
                    quiet_beats = 1;
                    let deadline = Deadline::after(&Clock::System, HEARTBEAT);
                    if let Err(error) = link.send(&[b"PING"], &deadline) {
                        return error;
                    }
                }
                None => return quiet(2 * HEARTBEAT),
            }
        }
    }

    /// What is not a notice of ours, or of an id nobody watches here, is none of our business.
    fn pass_on(&self, reply: &Reply) {
        let Reply::Array(parts) = reply else { return };
        let [kind, _, Reply::Bytes(payload)] = parts.as_slice() else { return };
        let (true, Some((&what, id))) = (kind.is(b"message"), payload.split_first()) else { return };
        let notice = match what {
            PAUSED => Notice::Paused,
            RESUMED => Notice::Resumed,
            RELEASED => Notice::Released,
            _ => return,
        };
        let Ok(id) = std::str::from_utf8(id) else { return };
        let wakes = self.state.lock().watchers.get(id).cloned();
        tell(wakes.unwrap_or_default(), notice);
    }

    /// Notices come from now on, or come no more.
    fn turn(&self, notice: Notice) {
        let mut state = self.state.lock();
        state.live = notice == Notice::Listening;
        let wakes = if state.mute { Vec::new() } else { state.everybody() };
        drop(state);
        tell(wakes, notice);
    }

    fn stopped(&self) -> bool {
        self.state.lock().thread == Thread::Stopped
    }

    fn rest(&self, pause: Duration) {
        let mut state: MutexGuard<'_, State> = self.state.lock();
        state.closer = None;
        if state.thread != Thread::Stopped {
            self.stop.wait_for(&mut state, pause);
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        if !crate::os::forked() {
            self.stop();
        }
    }
}

fn tell(wakes: Vec<Wake>, notice: Notice) {
    for wake in wakes {
        wake.notify(notice);
    }
}

fn quiet(length: Duration) -> StoreError {
    let message = format!("nothing was heard for {length:?}, not even the answer to a PING");
    StoreError::new(StoreErrorKind::Timeout, crate::error::Executed::Unknown, message)
}

/// Up to 20 % more or less, so that a fleet does not come back all at once.
fn spread(pause: Duration) -> Duration {
    let noise = Clock::System.now().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    pause * 4 / 5 + pause * u32::try_from(noise).unwrap_or(0) / 640
}
