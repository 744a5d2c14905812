//! What a scene plays on: a scheduler of its own, valves, threads that call them, and a ledger that is compared at the end.

use crate::error::Error;
use crate::scheduler::Scheduler;
use crate::valve::{Valve, ValveBuilder};
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How far time can go, from a start near zero.
pub(super) const HORIZON: Duration = Duration::from_secs(1);
/// Comes whenever the scheduler looks.
pub(super) const SOON: Duration = Duration::from_millis(10);
/// Never comes.
pub(super) const FAR: Duration = Duration::from_secs(3600);

/// What is left of a valve when a scene ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Open,
    Closed,
}

pub(super) struct Stage {
    pub(super) scheduler: Scheduler,
    players: Vec<Player>,
    threads: Vec<JoinHandle<()>>,
}

impl Stage {
    pub(super) fn new() -> Stage {
        crate::clock::begin(crate::clock::ticks_up(HORIZON));
        Stage { scheduler: Scheduler::new().unwrap(), players: Vec::new(), threads: Vec::new() }
    }

    /// Only the scheduler, for a scene that ends it in its own way.
    pub(super) fn into_scheduler(self) -> Scheduler {
        self.scheduler
    }

    /// A valve on which at most `limit` jobs run at once.
    pub(super) fn valve(&mut self, limit: u32, set: impl FnOnce(ValveBuilder) -> ValveBuilder) -> Player {
        let builder = Valve::builder("scene").concurrency(limit).scheduler(&self.scheduler);
        let valve = set(builder).build().unwrap();
        let ledger = Arc::new(Ledger { limit: limit.into(), ..Ledger::default() });
        let player = Player { valve, ledger };
        self.players.push(player.clone());
        player
    }

    /// Starts a thread.
    pub(super) fn go(&mut self, play: impl FnOnce() + Send + 'static) {
        self.threads.push(thread::spawn(play));
    }

    /// Starts a thread that calls a valve.
    pub(super) fn plays(&mut self, player: &Player, play: impl FnOnce(&Player) + Send + 'static) {
        let player = player.clone();
        self.go(move || play(&player));
    }

    /// Waits for all threads; then nobody may wait or run, the figures must be those of the ledger, no slot and no timer may
    /// stay behind, and the scheduler must stop when told.
    pub(super) fn end(self, left: Left) {
        for thread in self.threads {
            thread.join().unwrap();
        }
        for player in self.players {
            player.check_rest(left);
        }
        eventually(|| self.scheduler.timers() == 0, "a timer is left that nobody waits for");
        self.scheduler.shutdown(Duration::MAX).unwrap();
    }
}

/// How the calls on one valve ended. Plain atomics: counting must not be a step of the schedule.
#[derive(Default)]
struct Ledger {
    limit: u64,
    running: AtomicU64,
    started: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
}

/// A handle on a valve that keeps the ledger.
#[derive(Clone)]
pub(super) struct Player {
    pub(super) valve: Valve,
    ledger: Arc<Ledger>,
}

impl Player {
    /// Enters the end of a call into the ledger; a permit becomes a running job.
    pub(super) fn start<P>(&self, ended: Result<P, Error>) -> Result<Running<P>, Error> {
        match ended {
            Ok(permit) => {
                self.ledger.started.fetch_add(1, Relaxed);
                let running = self.ledger.running.fetch_add(1, Relaxed) + 1;
                assert!(
                    running <= self.ledger.limit,
                    "{running} jobs run at once, {} may",
                    self.ledger.limit
                );
                Ok(Running { permit, ledger: Arc::clone(&self.ledger) })
            }
            Err(error) => {
                self.ended(&error);
                Err(error)
            }
        }
    }

    /// Enters a call that ended with this error.
    pub(super) fn ended(&self, error: &Error) {
        match error {
            Error::Timeout { .. } => self.ledger.timed_out.fetch_add(1, Relaxed),
            Error::Cancelled => self.ledger.cancelled.fetch_add(1, Relaxed),
            Error::WouldWait { .. } => self.ledger.refused.fetch_add(1, Relaxed),
            Error::Closed => 0,
            other => panic!("{other:?}"),
        };
    }

    /// Like [`start`](Player::start), and lets the job run to its end.
    pub(super) fn run<P>(&self, ended: Result<P, Error>) -> Result<(), Error> {
        let running = self.start(ended)?;
        step();
        running.end();
        Ok(())
    }

    fn check_rest(&self, left: Left) {
        let (stats, ledger) = (self.valve.stats(), &self.ledger);
        assert_eq!(stats.queued, 0, "somebody is still queued");
        assert_eq!(stats.running, 0, "somebody still runs");
        assert_eq!(stats.backing_off, 0, "somebody still backs off");
        assert_eq!(stats.started, ledger.started.load(Relaxed), "started");
        assert_eq!(stats.timed_out, ledger.timed_out.load(Relaxed), "timed out");
        assert_eq!(stats.cancelled, ledger.cancelled.load(Relaxed), "cancelled");
        assert_eq!(stats.refused, ledger.refused.load(Relaxed), "refused");
        eventually(|| self.valve.word().0 == 0, "a slot is lost");
        eventually(
            || self.valve.word().1 == (left == Left::Closed),
            "an idle valve takes the quick way if it is open",
        );
    }
}

/// A job that runs.
pub(super) struct Running<P> {
    permit: P,
    ledger: Arc<Ledger>,
}

impl<P> Running<P> {
    pub(super) fn end(self) {
        self.ledger.running.fetch_sub(1, Relaxed);
        drop(self.permit);
    }

    pub(super) fn permit(&self) -> &P {
        &self.permit
    }
}

/// Lets any other thread go on here.
pub(super) fn step() {
    thread::sleep(Duration::ZERO);
}

/// The scheduler or a store worker may still be about to do it.
pub(super) fn eventually(holds: impl Fn() -> bool, what: &str) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        thread::yield_now();
    }
    panic!("{what}");
}
