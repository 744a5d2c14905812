//! What a valve on a Redis server costs: `cargo bench --bench redis --features redis,testing [-- --quick]`.
//!
//! It starts a server on loopback and asserts nothing about time. Whoever shares the cores disturbs a round trip more than
//! anything here does, so variants take turns within a round, and medians over the rounds are printed. Threads are not
//! pinned.
#![expect(clippy::print_stdout, reason = "its output is the product")]
#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]

mod counters;
mod direct;
mod renewals;
#[path = "../core/rounds.rs"]
mod rounds;
#[path = "../../examples/fleet/server.rs"]
mod server;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;
use valve::{Redis, RedisStore, Rule, Valve, ValveBuilder};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long to look.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// For one variant in one round.
    pub(crate) length: Duration,
    /// For the renewals of many leases, in thirds of their length.
    pub(crate) thirds: u32,
}

const FULL: Effort = Effort { rounds: 15, length: Duration::from_millis(100), thirds: 9 };
/// Shows that everything runs; its figures mean little.
const QUICK: Effort = Effort { rounds: 3, length: Duration::from_millis(10), thirds: 1 };

/// What a figure should be at most, and was.
pub(crate) struct Aim {
    pub(crate) what: &'static str,
    pub(crate) figure: f64,
    pub(crate) most: f64,
}

fn main() -> ExitCode {
    let mut effort = FULL;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => effort = QUICK,
            // Cargo says so to every bench.
            "--bench" => {}
            other => {
                println!("unknown argument {other}; usage: cargo bench --bench redis [-- --quick]");
                return ExitCode::from(2);
            }
        }
    }
    match measure(effort) {
        Ok(aims) => {
            println!("aims:");
            for Aim { what, figure, most } in aims {
                let met = if figure <= most { "met" } else { "not met" };
                println!("  {what}: {figure:.3}, aim <= {most}: {met}");
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("redis: {failure}");
            ExitCode::from(2)
        }
    }
}

fn measure(effort: Effort) -> Result<Vec<Aim>, Failure> {
    let server = Server::start()?;
    let mut aims = direct::measure(&server, effort)?;
    aims.extend(waiting::measure(&server, effort)?);
    aims.push(renewals::measure(&server, effort)?);
    Ok(aims)
}

/// A rule that never holds anybody up.
pub(crate) fn wide() -> Rule {
    Rule::gcra(1_000_000, Duration::from_secs(1)).burst(10_000_000).into()
}

/// A valve with a client of its own.
pub(crate) fn builder(server: &Server, id: &str) -> Result<ValveBuilder, Failure> {
    let redis = Redis::open(server.url())?;
    Ok(Valve::builder(id).store(RedisStore::new(&redis)))
}
