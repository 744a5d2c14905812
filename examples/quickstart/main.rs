//! Fetches 300 pages from a service that allows 50 requests a second and 4 at once: first with nothing in
//! between, then through a valve.
//!
//! `cargo run --release --example quickstart` takes about 11 seconds. The service runs in this program, on
//! loopback, and judges by itself: it knows nothing of the valve. Exit code 0 says that the valve kept every
//! promise listed in [`broken_promises`], 1 that it did not, 2 that the comparison could not be made.

#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]
#![expect(clippy::print_stderr, reason = "a program says on stderr what went wrong")]

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use valve::{Rule, Valve};

mod picture;
mod run;
mod service;

use run::{Phase, Run};
use service::Quota;

/// What the service allows. A provider's documentation says this in prose.
const QUOTA: Quota =
    Quota { limit: 50, interval: Duration::from_secs(1), at_once: 4, tolerance: Duration::from_millis(100) };

/// First the rate binds, then the slots do.
const PHASES: [Phase; 2] = [
    Phase { first_page: 0, pages: 150, takes: Duration::from_millis(20) },
    Phase { first_page: 150, pages: 150, takes: Duration::from_millis(200) },
];

/// How many threads fetch pages, each with a client of its own.
const THREADS: usize = 16;

type Failure = Box<dyn Error + Send + Sync>;

fn compare() -> Result<ExitCode, Failure> {
    // Without a valve each thread asks whenever it likes, and learns of the quota by being refused.
    let without = run::fetch_all("without", run::get)?;

    // With one: say once what the provider allows. A `Valve` is a handle that threads share or clone.
    let valve = Valve::builder("pages")
        .rule(Rule::gcra(QUOTA.limit, QUOTA.interval))
        .concurrency(QUOTA.at_once)
        .build()?;
    // Then wrap the blocking call. `run` parks the thread until the call may start, runs it, and gives the
    // slot back when it returns. The `?` is for the valve's own errors; the call's result comes out as it is.
    let with = run::fetch_all("with", |agent, url| valve.run(|| run::get(agent, url))?)?;

    conclude(&without, &with)
}

fn main() -> ExitCode {
    compare().unwrap_or_else(|failure| {
        eprintln!("quickstart: {failure}");
        ExitCode::from(2)
    })
}

fn conclude(without: &Run, with: &Run) -> Result<ExitCode, Failure> {
    let ideal = PHASES.iter().map(|phase| phase.ideal(&QUOTA)).sum();
    let mut out = io::stdout();
    let coloured = out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    writeln!(out, "\n{}", picture::draw(&[without, with], &QUOTA, coloured))?;

    let broken = broken_promises(without, with, ideal);
    for promise in &broken {
        eprintln!("quickstart: {promise}");
    }
    writeln!(
        out,
        "refused {} without, {} with; elapsed {:.2} s, ideal {:.2} s; greatest concurrency {} of {}",
        without.log.refusals.len(),
        with.log.refusals.len(),
        with.elapsed.as_secs_f64(),
        ideal.as_secs_f64(),
        with.log.greatest_running,
        QUOTA.at_once,
    )?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Holds the run through the valve against what a valve is for, in the service's own figures.
fn broken_promises(without: &Run, with: &Run, ideal: Duration) -> Vec<String> {
    let refused_without = without.log.refusals.len();
    let refused_with = with.log.refusals.len();
    let greatest = with.log.greatest_running;
    let mut broken = Vec::new();
    if refused_without < 50 {
        // Then the service was no test of a valve at all.
        broken.push(format!("only {refused_without} were refused without a valve, expected at least 50"));
    }
    if refused_with > 0 {
        broken.push(format!("{refused_with} were refused through the valve, expected none"));
    }
    if with.elapsed * 10 > ideal * 11 {
        let (elapsed, most) = (with.elapsed.as_secs_f64(), (ideal * 11 / 10).as_secs_f64());
        broken.push(format!(
            "the valve took {elapsed:.2} s, expected at most {most:.2} s (1.1 times the ideal)"
        ));
    }
    if greatest != QUOTA.at_once {
        broken.push(format!(
            "greatest concurrency was {greatest} through the valve, expected {}",
            QUOTA.at_once
        ));
    }
    broken
}
