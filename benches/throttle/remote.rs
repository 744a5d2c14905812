//! Leading runs on a Redis server, beside the two commands that each of them sends.

use crate::rounds::{interleave, median, ratio};
use crate::server::{Server, connect};
use crate::{Effort, Failure, Throttle, builder};
use parking_lot::Mutex;
use r2d2_redis::redis::{Connection, cmd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use valve::{Engine, Ran, Redis, RedisEngine, SetOptions};

const THREADS: usize = 64;
/// The client's default.
const CONNECTIONS: usize = 4;
const WINDOW: Duration = Duration::from_secs(3_600);
/// A round is so many times longer than those without a server, and there are fewer.
const LONGER: u32 = 50;
const FEWER: usize = 7;

enum Variant {
    Plain(Vec<Mutex<Connection>>),
    Engine(RedisEngine),
    Throttle(Throttle),
}

pub(crate) fn measure(effort: Effort) -> Result<(), Failure> {
    let server = Server::start()?;
    let engine = || -> Result<RedisEngine, Failure> { Ok(RedisEngine::new(&Redis::open(server.url())?)) };
    let plain: Result<Vec<_>, Failure> =
        (0..CONNECTIONS).map(|_| Ok(Mutex::new(connect(server.url())?))).collect();
    let rows = [
        ("SET NX and SET, through the engine alone", Variant::Engine(engine()?)),
        ("SET NX and SET, on 4 plain connections", Variant::Plain(plain?)),
        ("exec, leading", Variant::Throttle(builder().engine(engine()?).build()?)),
    ];
    let fresh = AtomicU64::new(0);
    let rounds = effort.rounds.div_ceil(FEWER);
    let figures = interleave(rounds, &rows, |(_, variant)| variant.round(&fresh, effort.length * LONGER));
    println!("on Redis: {THREADS} threads, new keys, {CONNECTIONS} connections each");
    println!("{:<48}{:>9}{:>8}", "", "runs/s", "ratio");
    for ((name, _), own) in rows.iter().zip(&figures) {
        println!("  {name:<46}{:>9.0}{:>8.2}", median(own), ratio(own, &figures[0]));
    }
    println!();
    Ok(())
}

impl Variant {
    /// Runs a second.
    fn round(&self, fresh: &AtomicU64, length: Duration) -> f64 {
        let (runs, begun) = (AtomicU64::new(0), Instant::now());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let runs = &runs;
                scope.spawn(move || {
                    while begun.elapsed() < length {
                        let key = format!("room:{:011}", fresh.fetch_add(1, Ordering::Relaxed));
                        self.run(thread, &key).expect("the server answers");
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        runs.into_inner() as f64 / begun.elapsed().as_secs_f64()
    }

    fn run(&self, thread: usize, key: &str) -> Result<(), Failure> {
        match self {
            Variant::Plain(connections) => {
                let full = format!("bench:{key}");
                let mut connection = connections[thread % CONNECTIONS].lock();
                let length = u64::try_from(WINDOW.as_millis())?;
                let set = |nx| {
                    let mut set = cmd("SET");
                    set.arg(&full).arg(END).arg("PX").arg(length).arg(nx);
                    set
                };
                set(Some("NX")).query::<()>(&mut *connection)?;
                set(None).query::<()>(&mut *connection)?;
            }
            Variant::Engine(engine) => {
                let full = format!("bench:{key}");
                assert!(engine.set(&full, END, SetOptions::new(WINDOW).if_absent())?, "the key is new");
                engine.set(&full, END, SetOptions::new(WINDOW))?;
            }
            Variant::Throttle(throttle) => {
                assert_eq!(throttle.job(key, |_run| Ok(0)).exec()?, Ran::Now, "the key is new");
            }
        }
        Ok(())
    }
}

/// What a window's end looks like.
const END: &str = "1700000000000";
