//! Scenes about throttles: every call is covered by a run that begins after it came, and no two runs of a key overlap.

use super::stage::{FAR, SOON, Stage, eventually, step};
use crate::clock::{Clock, Tick};
use crate::error::StoreError;
use crate::scheduler::Scheduler;
use crate::sync::Mutex;
use crate::throttle::{Engine, Ran, SetOptions, ThrottleError, ThrottleWindow, ThrottleWindowBuilder};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

type Throttle = ThrottleWindow<u64, String>;
type Gave = Result<u64, ThrottleError<String>>;

/// What happened to the only key of a throttle. Plain atomics: counting must not be a step of the schedule.
#[derive(Default)]
struct Ledger {
    begun: AtomicU64,
    running: AtomicU64,
    covered: AtomicU64,
    /// Closures that are neither run nor dropped.
    closures: AtomicU64,
}

struct Closure(Arc<Ledger>);

impl Drop for Closure {
    fn drop(&mut self) {
        self.0.closures.fetch_sub(1, Relaxed);
    }
}

#[derive(Clone)]
struct Player {
    throttle: Throttle,
    ledger: Arc<Ledger>,
}

impl Player {
    fn new(stage: &Stage, set: impl FnOnce(Builder) -> Builder) -> Player {
        let builder = Throttle::builder("scene:").scheduler(&stage.scheduler).window(SOON).workers(1);
        Player { throttle: set(builder).build().unwrap(), ledger: Arc::default() }
    }

    /// A run says which one it was.
    fn work(&self) -> impl FnOnce(&crate::throttle::Run<'_>) -> Result<u64, String> + Send + 'static {
        let ledger = Arc::clone(&self.ledger);
        ledger.closures.fetch_add(1, Relaxed);
        let closure = Closure(Arc::clone(&ledger));
        move |run| {
            let number = ledger.begun.fetch_add(1, Relaxed) + 1;
            assert_eq!(ledger.running.fetch_add(1, Relaxed), 0, "two runs at once");
            ledger.covered.fetch_add(run.covered as u64, Relaxed);
            step();
            ledger.running.fetch_sub(1, Relaxed);
            drop(closure);
            Ok(number)
        }
    }

    fn exec(&self) -> Result<Ran, ThrottleError<String>> {
        self.throttle.job("k", self.work()).exec()
    }

    fn wait(&self, timeout: Duration) -> Gave {
        let before = self.ledger.begun.load(Relaxed);
        let gave = self.throttle.job("k", self.work()).wait_finish().timeout(timeout).exec();
        if let Ok(number) = &gave {
            assert!(
                *number > before,
                "covered by run {number}, which began before the call, when {before} had"
            );
        }
        gave
    }

    /// Nothing is left, and so many calls are accounted for.
    fn check_rest(&self, calls: u64) {
        let rest = || {
            let stats = self.throttle.stats();
            stats.active + stats.pending + stats.keys + stats.timers == 0
        };
        eventually(rest, "a key is left, or a run is still owed");
        eventually(|| self.ledger.running.load(Relaxed) == 0, "somebody still runs");
        eventually(|| self.ledger.closures.load(Relaxed) == 0, "a closure is kept");
        let stats = self.throttle.stats();
        assert_eq!(stats.calls, calls);
        let accounted = || {
            let stats = self.throttle.stats();
            self.ledger.covered.load(Relaxed) + stats.destroyed + stats.dropped == calls
        };
        eventually(accounted, "a call is lost, or covered twice");
    }
}

type Builder = ThrottleWindowBuilder<u64, String>;

fn end(stage: Stage, threads: Vec<shuttle::thread::JoinHandle<()>>) -> Scheduler {
    for thread in threads {
        thread.join().unwrap();
    }
    stage.into_scheduler()
}

fn stop(scheduler: &Scheduler) {
    eventually(|| scheduler.timers() == 0, "a timer is left that nobody waits for");
    scheduler.shutdown(Duration::MAX).unwrap();
}

fn go(player: &Player, play: impl FnOnce(&Player) + Send + 'static) -> shuttle::thread::JoinHandle<()> {
    let player = player.clone();
    shuttle::thread::spawn(move || play(&player))
}

/// Calls come while another leads, runs, has a window, and as that ends.
pub(super) fn calls_meet_run_and_window() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle);
    let mut threads = Vec::new();
    for _ in 0..2 {
        threads.push(go(&player, |player| {
            player.exec().unwrap();
            player.exec().unwrap();
        }));
    }
    threads.push(go(&player, |player| {
        player.wait(Duration::MAX).unwrap();
    }));
    let scheduler = end(stage, threads);
    player.check_rest(5);
    drop(player);
    stop(&scheduler);
}

/// A window passes unused while a call comes.
pub(super) fn window_end_meets_call() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle);
    assert_eq!(player.exec().unwrap(), Ran::Now);
    let threads = (0..2).map(|_| {
        go(&player, |player| {
            player.wait(Duration::MAX).unwrap();
        })
    });
    let threads = threads.collect();
    let scheduler = end(stage, threads);
    player.check_rest(3);
    drop(player);
    stop(&scheduler);
}

/// Two keys of one throttle become due while its only worker goes idle.
pub(super) fn worker_serves_every_key() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle);
    let threads = ["a", "b"].map(|key| {
        let other = Player { throttle: player.throttle.clone(), ledger: Arc::default() };
        shuttle::thread::spawn(move || {
            let gave = other.throttle.job(key, other.work()).exec();
            assert_eq!(gave.unwrap(), Ran::Now);
            other.throttle.job(key, other.work()).wait_finish().exec().unwrap();
            assert_eq!(other.ledger.covered.load(Relaxed), 2);
        })
    });
    let scheduler = end(stage, threads.into());
    drop(player);
    stop(&scheduler);
}

/// Every call is run or destroyed, none is both or hangs.
pub(super) fn destroy_meets_calls() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle.engine(Plain::default()));
    let took = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for waits in [false, true, true] {
        let took = Arc::clone(&took);
        threads.push(go(&player, move |player| {
            let gave = if waits { player.wait(Duration::MAX).map(drop) } else { player.exec().map(drop) };
            assert!(matches!(gave, Ok(()) | Err(ThrottleError::Destroyed { .. })), "{gave:?}");
            took.fetch_add(1, Relaxed);
        }));
    }
    threads.push(go(&player, |player| player.throttle.destroy()));
    let scheduler = end(stage, threads);
    let calls = player.throttle.stats().calls;
    player.check_rest(calls);
    player.throttle.shutdown(Duration::MAX).unwrap();
    drop(player);
    stop(&scheduler);
}

/// A flush has every call run that came before it, though no window ends, and though the run before still goes on.
pub(super) fn flush_meets_calls() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle.window(FAR));
    assert_eq!(player.exec().unwrap(), Ran::Now);
    let threads = (0..2).map(|_| {
        go(&player, |player| {
            assert_eq!(player.exec().unwrap(), Ran::Later);
            let begun = player.ledger.begun.load(Relaxed);
            player.throttle.flush();
            let covered = player.ledger.covered.load(Relaxed);
            assert!(player.ledger.begun.load(Relaxed) > begun || covered == 3, "flushed, and yet not run");
        })
    });
    let threads = threads.collect();
    let scheduler = end(stage, threads);
    assert_eq!(player.throttle.flush(), 0);
    player.throttle.shutdown(Duration::MAX).unwrap();
    assert_eq!(player.ledger.covered.load(Relaxed), 3);
    assert_eq!(player.ledger.closures.load(Relaxed), 0);
    drop(player);
    stop(&scheduler);
}

/// The deadline of one call meets the run that a worker makes for it, and another call.
pub(super) fn deadline_meets_outcome() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle);
    let mut threads = vec![go(&player, |player| {
        player.exec().unwrap();
    })];
    threads.push(go(&player, |player| {
        let gave = player.wait(SOON);
        assert!(matches!(gave, Ok(_) | Err(ThrottleError::Timeout { .. })), "{gave:?}");
    }));
    let scheduler = end(stage, threads);
    player.check_rest(2);
    drop(player);
    stop(&scheduler);
}

/// Whoever calls drops its handle, the last one perhaps, while its call waits for a run.
pub(super) fn last_handle_goes_with_a_call() {
    let stage = Stage::new();
    let player = Player::new(&stage, |throttle| throttle);
    let ledger = Arc::clone(&player.ledger);
    let threads = (0..2).map(|_| {
        go(&player, |player| {
            player.exec().unwrap();
        })
    });
    let threads = threads.collect();
    drop(player);
    let scheduler = end(stage, threads);
    eventually(|| ledger.covered.load(Relaxed) == 2, "a call went with the handle");
    eventually(|| ledger.closures.load(Relaxed) == 0, "a closure is kept");
    stop(&scheduler);
}

/// Two throttles race for one key, and extend it while they run. Time may be over before the loser's turn comes, so what is
/// left then is destroyed.
pub(super) fn two_race_for_a_window() {
    let stage = Stage::new();
    let engine = Plain::default();
    let players = [(); 2].map(|()| {
        let engine = engine.clone();
        Player::new(&stage, move |throttle| throttle.engine(engine))
    });
    let threads = players.iter().map(|player| {
        go(player, |player| {
            player.exec().unwrap();
            player.exec().unwrap();
        })
    });
    let threads = threads.collect();
    let scheduler = end(stage, threads);
    for player in &players {
        player.throttle.shutdown(Duration::MAX).unwrap();
        player.check_rest(2);
    }
    drop(players);
    stop(&scheduler);
}

/// An engine whose every call may be overtaken by any other.
#[derive(Clone, Default)]
struct Plain(Arc<Mutex<HashMap<String, (String, Tick)>>>);

impl Engine for Plain {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        let now = Clock::System.now();
        Ok(self.0.lock().get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone()))
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let now = Clock::System.now();
        let mut keys = self.0.lock();
        if options.is_if_absent() && keys.get(key).is_some_and(|(_, until)| now < *until) {
            return Ok(false);
        }
        keys.insert(key.to_owned(), (value.to_owned(), now + crate::clock::ticks_up(options.expiry())));
        Ok(true)
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        self.0.lock().remove(key);
        Ok(())
    }

    fn clear(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
