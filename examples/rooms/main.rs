//! Three instances of a service get 20,000 change events of 50 rooms in four seconds, and refresh each room at most once per
//! window between them: at once the first time, never twice at the same time, never missing the last event.
//!
//! `cargo run --release --example rooms` keeps the windows in memory, in one engine that the three share;
//! `cargo run --release --features redis --example rooms -- --redis [redis://host:port]` on a Redis server, its own
//! if it is given none. What is drawn and judged comes from a log that events and runs wrote themselves. Exit code 0
//! says that no room ran twice at once, no window ran twice, and the last event of every room is covered; 1 that one
//! of these failed, 2 that the show could not be given.

#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]
#![expect(clippy::print_stderr, reason = "a program says on stderr what went wrong")]

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use valve::{MemoryEngine, ThrottleWindow};

mod judge;
mod log;
mod picture;
#[cfg(feature = "redis")]
#[path = "../fleet/server.rs"]
mod server;

use judge::Findings;
use log::Log;

const INSTANCES: usize = 3;
const ROOMS: usize = 50;
const EVENTS: usize = 20_000;
/// Threads of one instance that take events.
const THREADS: usize = 4;
/// How long the events keep coming.
const LENGTH: Duration = Duration::from_secs(4);
const WINDOW: Duration = Duration::from_millis(500);
/// How long it takes to refresh a room.
const REFRESH: Duration = Duration::from_millis(20);
/// How long the last runs may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Throttle = ThrottleWindow<(), io::Error>;

fn show() -> Result<ExitCode, Failure> {
    let mut arguments = env::args().skip(1);
    let log = Log::new();
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => {
            let shared = MemoryEngine::new();
            let instances = instances(|builder| builder.engine(shared.clone()))?;
            serve(&instances, &log)?;
        }
        (Some("--redis"), url) => on_redis(url, &log)?,
        (Some(other), _) => return Err(format!("{other}? only --redis [redis://host:port] is known").into()),
    }
    conclude(&log)
}

#[cfg(feature = "redis")]
fn on_redis(url: Option<String>, log: &Log) -> Result<(), Failure> {
    let own = if url.is_none() { Some(server::Server::start()?) } else { None };
    let url = url.or_else(|| own.as_ref().map(|server| server.url().to_owned())).unwrap_or_default();
    // Each instance has a client of its own, as processes would.
    let clients: Vec<_> =
        (0..INSTANCES).map(|_| valve::Redis::open(&url)).collect::<Result<_, valve::Error>>()?;
    clients[0].check()?;
    let mut next = clients.iter();
    let instances = instances(|builder| match next.next() {
        Some(redis) => builder.engine(valve::RedisEngine::new(redis)),
        None => builder,
    })?;
    serve(&instances, log)
}

#[cfg(not(feature = "redis"))]
fn on_redis(_: Option<String>, _: &Log) -> Result<(), Failure> {
    Err("--redis needs --features redis".into())
}

/// As each instance of the service makes its throttle: the same prefix, the same window.
fn instances(
    mut engine: impl FnMut(
        valve::ThrottleWindowBuilder<(), io::Error>,
    ) -> valve::ThrottleWindowBuilder<(), io::Error>,
) -> Result<Vec<Throttle>, Failure> {
    (0..INSTANCES).map(|_| Ok(engine(Throttle::builder("refresh:room:").window(WINDOW)).build()?)).collect()
}

/// Lets the events come, and waits for the last runs.
fn serve(instances: &[Throttle], log: &Log) -> Result<(), Failure> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let takers: Vec<_> = (0..INSTANCES * THREADS)
            .map(|taker| scope.spawn(move || take_events(&instances[taker % INSTANCES], taker, log, begun)))
            .collect();
        takers
            .into_iter()
            .try_for_each(|taker| taker.join().map_err(|_| Failure::from("a taker panicked"))?)
    })?;
    let over = Instant::now();
    while instances.iter().any(|throttle| throttle.stats().pending + throttle.stats().active > 0) {
        if over.elapsed() > PATIENCE {
            return Err(format!("some runs were still to come {PATIENCE:?} after the last event").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    instances.iter().for_each(Throttle::destroy);
    Ok(())
}

/// One thread's share of the events, each as soon as its time has come.
fn take_events(throttle: &Throttle, taker: usize, log: &Log, begun: Instant) -> Result<(), Failure> {
    let instance = taker % INSTANCES;
    let mut random = taker as u64 + 1;
    for event in (taker..EVENTS).step_by(INSTANCES * THREADS) {
        let due = LENGTH.mul_f64(event as f64 / EVENTS as f64);
        thread::sleep(due.saturating_sub(begun.elapsed()));
        // Knuth's multiplier; the upper half is random enough for a room.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let room = (random >> 33) as usize % ROOMS;
        log.event(room, instance);
        let of_the_run = log.clone();
        let key = room.to_string();
        // This is all there is to it: the first event of a room is refreshed here and now, the others by one run
        // at the end of the window.
        let ran = throttle.job(&key, move |_| {
            of_the_run.starts(room, instance);
            thread::sleep(REFRESH);
            of_the_run.ends(room, instance);
            Ok(())
        });
        let _ = ran.exec()?;
    }
    Ok(())
}

fn conclude(log: &Log) -> Result<ExitCode, Failure> {
    let entries = log.entries();
    let findings = Findings::of(&entries);
    let mut out = io::stdout();
    writeln!(out, "\n{}", picture::draw(&entries, &findings.busiest(3)))?;
    writeln!(
        out,
        "{} events, {} runs; last event covered in {} of {ROOMS} rooms, overlaps {}, windows doubled {}",
        findings.events, findings.runs, findings.covered, findings.overlaps, findings.doubled,
    )?;
    let kept = findings.covered == ROOMS && findings.overlaps == 0 && findings.doubled == 0;
    Ok(if kept && findings.events == EVENTS { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    show().unwrap_or_else(|failure| {
        eprintln!("rooms: {failure}");
        ExitCode::from(2)
    })
}
