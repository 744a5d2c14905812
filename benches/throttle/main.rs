//! What a throttle costs: `cargo bench --bench throttle [--features redis] [-- --quick]`.
//!
//! It asserts nothing about time. Machines and their other work differ, so read the ratios: they are taken within a
//! round, in which every variant runs once and in an order that rotates, and the median over the rounds is printed.
//! Threads are not pinned. `--features redis` adds a server on loopback.
#![expect(clippy::print_stdout, reason = "its output is the product")]
#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]

mod calls;
mod counting;
mod memory;
#[cfg(feature = "redis")]
mod remote;
#[path = "../core/rounds.rs"]
mod rounds;
#[cfg(feature = "redis")]
#[path = "../../examples/fleet/server.rs"]
mod server;

use std::process::ExitCode;
use std::time::Duration;

use valve::{ThrottleWindow, ThrottleWindowBuilder};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Throttle = ThrottleWindow<u64, String>;

/// How long to look.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// For one variant in one round.
    pub(crate) length: Duration,
    /// Where there are to be many.
    pub(crate) keys: usize,
}

/// Many rounds shorter than a time slice: on a busy machine most are not interrupted.
const FULL: Effort = Effort { rounds: 101, length: Duration::from_millis(2), keys: 1_000_000 };
/// Shows that everything runs; its figures mean little.
const QUICK: Effort = Effort { rounds: 3, length: Duration::from_millis(1), keys: 20_000 };

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
                println!("unknown argument {other}; usage: cargo bench --bench throttle [-- --quick]");
                return ExitCode::from(2);
            }
        }
    }
    match measure(effort) {
        Ok(aims) => {
            println!("aims:");
            for Aim { what, figure, most } in aims {
                let met = if figure <= most { "met" } else { "not met" };
                println!("  {what}: {figure:.1}, aim <= {most}: {met}");
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("throttle: {failure}");
            ExitCode::from(2)
        }
    }
}

fn measure(effort: Effort) -> Result<Vec<Aim>, Failure> {
    let mut aims = calls::coalesced(effort)?;
    aims.push(calls::leading(effort)?);
    aims.extend(memory::measure(effort)?);
    #[cfg(feature = "redis")]
    remote::measure(effort)?;
    #[cfg(not(feature = "redis"))]
    println!("on Redis: not measured without --features redis\n");
    Ok(aims)
}

/// Windows that do not end while something is measured.
pub(crate) fn builder() -> ThrottleWindowBuilder<u64, String> {
    Throttle::builder("bench:").window(Duration::from_secs(3_600))
}

/// So many different keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("room:{number:011}")).collect()
}
