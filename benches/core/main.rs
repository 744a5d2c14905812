//! How fast the core is, beside the crates one would take instead: `cargo bench --bench core [-- --quick]`.
//!
//! It asserts nothing about time. Machines and their other work differ, so read the ratios: they are taken within a
//! round, in which every variant runs once and in an order that rotates, and the median over the rounds is printed.
//! Threads are not pinned. `--features testing` adds the scheduler's heap and wheel.
#![expect(clippy::print_stdout, reason = "its output is the product")]

mod direct;
mod handoff;
mod rounds;
#[cfg(feature = "testing")]
mod structures;

use std::process::ExitCode;

/// How long to look.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// For one variant in one round.
    pub(crate) milliseconds: u64,
}

const FULL: Effort = Effort { rounds: 15, milliseconds: 20 };
/// Shows that everything runs; its figures mean little.
const QUICK: Effort = Effort { rounds: 3, milliseconds: 1 };

/// What a ratio should be, and was.
pub(crate) struct Aim {
    pub(crate) what: String,
    pub(crate) ratio: f64,
    pub(crate) bound: Bound,
}

pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

fn main() -> ExitCode {
    let mut effort = FULL;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => effort = QUICK,
            // Cargo says so to every bench.
            "--bench" => {}
            other => {
                println!("unknown argument {other}; usage: cargo bench --bench core [-- --quick]");
                return ExitCode::from(2);
            }
        }
    }
    let mut aims = direct::measure(effort);
    aims.push(handoff::measure(effort));
    #[cfg(feature = "testing")]
    structures::measure(effort);
    #[cfg(not(feature = "testing"))]
    println!("heap and wheel: not measured without --features testing\n");
    println!("aims:");
    for aim in &aims {
        println!("  {}", aim.verdict());
    }
    ExitCode::SUCCESS
}

impl Aim {
    fn verdict(&self) -> String {
        let (met, bound) = match self.bound {
            Bound::AtMost(most) => (self.ratio <= most, format!("<= {most}")),
            Bound::AtLeast(least) => (self.ratio >= least, format!(">= {least}")),
        };
        let met = if met { "met" } else { "not met" };
        format!("{}: {:.2}, aim {bound}: {met}", self.what, self.ratio)
    }
}
