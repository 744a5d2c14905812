//! Four processes share 200 starts a second and 6 slots through a Redis server. One is killed, all are paused.
//!
//! `cargo run --release --features redis,testing --example fleet [-- redis://host:port]` takes about 11 seconds and starts
//! a server of its own if it is given none. What is drawn and judged comes from a log that the scripts on the server wrote,
//! not from what the workers say. Exit code 0 says that the fleet kept every promise that [`judge`] knows, 1 that it did
//! not, 2 that the show could not be given.

#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]
#![expect(clippy::print_stderr, reason = "a program says on stderr what went wrong")]

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use r2d2_redis::redis::{Connection, cmd};
use valve::{Redis, RedisStore, Rule, Valve};

mod judge;
mod log;
mod picture;
mod server;
mod worker;
mod workers;

use judge::{Findings, STARTS_MAX};
use server::Server;
use workers::Workers;

const WORKERS: [&str; 4] = ["worker-1", "worker-2", "worker-3", "worker-4"];
/// Which of them is killed, and how many slots it holds then.
const VICTIM: usize = 2;
const ORPHANS: usize = 4;

const ID: &str = "api";
const LIMIT: u32 = 200;
const INTERVAL: Duration = Duration::from_secs(1);
const BURST: u32 = 10;
const SLOTS: u32 = 6;
/// How long a slot outlives a process that is gone.
const TTL: Duration = Duration::from_secs(1);
/// How soon a waiter looks for a free slot that nobody told it of.
const POLL: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(1);

/// When what happens, from the beginning.
const HOLD_AT: Duration = Duration::from_millis(2_000);
const KILL_AT: Duration = Duration::from_millis(3_500);
const PAUSE_AT: Duration = Duration::from_millis(6_000);
const END_AT: Duration = Duration::from_secs(10);

/// Microseconds, of the server's clock where it is a point in time.
type Us = u64;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where the fleet meets.
struct Site {
    url: String,
    prefix: String,
}

/// Something took effect between these two.
#[derive(Clone, Copy)]
struct Between {
    before: Us,
    after: Us,
}

/// What was done to the fleet, and when.
struct Course {
    begun: Us,
    victim: &'static str,
    holding: Us,
    killed: Between,
    paused: Between,
    ended: Us,
}

/// How a worker is told who it is and where the fleet meets. Not by arguments: an address may have a password in it.
const NAME: &str = "VALVE_FLEET_WORKER";
const URL: &str = "VALVE_FLEET_URL";
const PREFIX: &str = "VALVE_FLEET_PREFIX";

impl Site {
    fn from_environment() -> Option<(Site, String)> {
        let [name, url, prefix] = [NAME, URL, PREFIX].map(|variable| env::var(variable).ok());
        Some((Site { url: url?, prefix: prefix? }, name?))
    }

    fn environment(&self, name: &str) -> [(&str, String); 3] {
        [(NAME, name.into()), (URL, self.url.clone()), (PREFIX, self.prefix.clone())]
    }

    /// The stream of grants; that of releases and renewals is beside it.
    fn log_key(&self) -> String {
        format!("{}log", self.prefix)
    }

    /// What the store keeps of the valve, but for the leases, which are beside it.
    fn state_key(&self) -> String {
        format!("{}{{{ID}}}", self.prefix)
    }

    /// A client as each process of the fleet has one. It has the scripts log what they grant.
    fn client(&self, name: &str) -> Result<Redis, Failure> {
        Ok(Redis::builder(&self.url).prefix(&self.prefix).log_grants(self.log_key(), name).build()?)
    }

    /// The valve that all of them build alike.
    fn valve(&self, redis: &Redis) -> Result<Valve, Failure> {
        let valve = Valve::builder(ID)
            .rule(Rule::gcra(LIMIT, INTERVAL).burst(BURST))
            .global_concurrency(SLOTS, TTL)
            .store(RedisStore::new(redis))
            .build()?;
        Ok(valve)
    }
}

/// Leads the fleet through its ten seconds.
fn lead(site: &Site, server: &mut Connection) -> Result<Course, Failure> {
    let valve = site.valve(&site.client("leader")?)?;
    let mut workers = Workers::start(site, WORKERS)?;
    let (start, begun) = (Instant::now(), now(server)?);

    workers.watch(start + HOLD_AT)?;
    workers.hold(VICTIM, ORPHANS)?;
    let holding = now(server)?;

    workers.watch(start + KILL_AT)?;
    let killed = between(server, || workers.kill(VICTIM))?;

    workers.watch(start + PAUSE_AT)?;
    let paused = between(server, || Ok(valve.pause(PAUSE)?))?;

    workers.watch(start + END_AT)?;
    let ended = now(server)?;
    workers.stop()?;
    Ok(Course { begun, victim: WORKERS[VICTIM], holding, killed, paused, ended })
}

fn show(url: Option<String>) -> Result<ExitCode, Failure> {
    let own = if url.is_none() { Some(Server::start()?) } else { None };
    let url = url.or_else(|| own.as_ref().map(|own| own.url().to_owned())).unwrap_or_default();
    // Says what is wrong with a server, and what to do about it, better than any later failure would.
    Redis::open(&url)?.check()?;
    let mut server = server::connect(&url)?;
    // Nobody else's keys, on a server that may be in use.
    let site = Site { url, prefix: format!("valve-fleet-{}:", now(&mut server)?) };
    let led = lead(&site, &mut server);
    let log = log::take(&mut server, &site);
    let (course, log) = (led?, log?);

    let findings = Findings::new(&log, &course);
    let mut out = io::stdout();
    writeln!(out, "{}", picture::draw(&log, &course))?;
    let broken = findings.broken_promises(&course);
    for promise in &broken {
        eprintln!("fleet: {promise}");
    }
    writeln!(out, "{}", last_line(&findings))?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn last_line(findings: &Findings) -> String {
    let milliseconds = |length: Us| format!("{} ms", length / 1_000);
    format!(
        "most in a second {} of {STARTS_MAX}, {} too soon; slots held {} of {SLOTS}, the {} of the killed back after {}; \
         in the pause {}, quiet for {}",
        findings.most_starts,
        findings.too_soon,
        findings.most_held,
        findings.orphans,
        findings.recovery.map_or("ever".into(), milliseconds),
        findings.during_pause,
        milliseconds(findings.quiet),
    )
}

fn main() -> ExitCode {
    let done = match Site::from_environment() {
        Some((site, name)) => worker::work(&site, &name, ORPHANS).map(|()| ExitCode::SUCCESS),
        None => show(env::args().nth(1)),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("fleet: {failure}");
        ExitCode::from(2)
    })
}

/// The server's clock.
fn now(server: &mut Connection) -> Result<Us, Failure> {
    let (seconds, microseconds): (Us, Us) =
        cmd("TIME").query(server).map_err(|error| format!("the server: {error}"))?;
    Ok(seconds * 1_000_000 + microseconds)
}

fn between(server: &mut Connection, act: impl FnOnce() -> Result<(), Failure>) -> Result<Between, Failure> {
    let before = now(server)?;
    act()?;
    Ok(Between { before, after: now(server)? })
}

fn micros(length: Duration) -> Us {
    length.as_micros().try_into().unwrap_or(Us::MAX)
}
