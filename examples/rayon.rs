//! Parallel iterators inside jobs: what a valve sees by itself, and what needs a `max_wait`.
//!
//! `cargo run --release --example rayon` takes under a second. A thread of a Rayon pool that waits for a task takes up
//! another one meanwhile, on the same stack. If it waits inside a job and the other task wants a slot of the same valve,
//! it waits for itself. Exit code 0 says that each case ended as its line says.

#![expect(clippy::print_stdout, reason = "a program that shows something")]
#![expect(clippy::disallowed_methods, reason = "a program, not the library: it sleeps")]

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder, Yield};
use valve::{Error, Rule, Valve};

/// How many tasks each case has.
const ITEMS: u64 = 8;

/// What became of the tasks of one case.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ends {
    ran: u64,
    would_deadlock: u64,
    timed_out: u64,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Only rates: a wait for a rate always ends, so any nesting is fine.
fn under_a_rate() -> Result<Ends, Failure> {
    let valve = Valve::builder("rate").rule(Rule::gcra(100, Duration::from_secs(1))).build()?;
    count(pool(2)?.install(|| items().map(|_| valve.run(work)).collect()))
}

/// Slots, but taken by the innermost tasks: a job that waits for no task holds its slot no longer than its own work.
fn with_the_valve_innermost() -> Result<Ends, Failure> {
    let valve = Valve::builder("innermost").concurrency(1).build()?;
    let each = |_| items().map(|number| valve.run(|| number)).collect::<Result<Vec<_>, _>>();
    count(pool(2)?.install(|| items().map(each).collect()))
}

/// A job lets its thread take up other tasks, which want the job's own slot. The valve sees it: all slots are held by
/// jobs whose threads wait for one. The call that would wait for ever is refused, and all goes on.
fn on_the_jobs_own_thread() -> Result<Ends, Failure> {
    let valve = Valve::builder("own").concurrency(1).build()?;
    let (sender, receiver) = std::sync::mpsc::channel();
    pool(1)?.scope(|scope| {
        for _ in 0..ITEMS {
            let (valve, sender) = (&valve, sender.clone());
            scope.spawn(move |_| {
                // Nobody listens any more only if this program is wrong, and then it says so below.
                let _ = sender.send(valve.run(|| while rayon::yield_now() == Some(Yield::Executed) {}));
            });
        }
    });
    drop(sender);
    count(receiver.iter().collect())
}

/// A job waits for a task of *another* thread, and that one for the job's slot. What a job waits for is nobody's to
/// see but its own: give such calls a `max_wait`.
fn on_another_thread() -> Result<Ends, Failure> {
    let valve = Valve::builder("other").concurrency(1).build()?;
    let inner = || valve.job().max_wait(Duration::from_millis(10)).run(|_| ());
    let pool = pool(2)?;
    let outer = |_| valve.run(|| pool.install(inner));
    count((0..ITEMS).map(outer).map(|end| end.and_then(|inner| inner)).collect())
}

/// Parallel iterators inside jobs with slots: which thread takes up what, and so which of the two cases above it is,
/// differs from run to run. With a `max_wait` each task ends.
fn nested_iterators() -> Result<Ends, Failure> {
    let valve = Valve::builder("nested").concurrency(1).build()?;
    let job = |_| valve.job().max_wait(Duration::from_millis(50)).run(|_| work());
    count(pool(2)?.install(|| items().map(job).collect()))
}

fn items() -> impl ParallelIterator<Item = u64> {
    (0..ITEMS).into_par_iter()
}

/// What a job does: a parallel iterator of its own.
fn work() -> u64 {
    (0..100_000_u64).into_par_iter().map(|number| number % 7).sum()
}

fn pool(threads: usize) -> Result<ThreadPool, Failure> {
    Ok(ThreadPoolBuilder::new().num_threads(threads).build()?)
}

fn count<T>(results: Vec<Result<T, Error>>) -> Result<Ends, Failure> {
    let mut ends = Ends::default();
    for result in results {
        match result {
            Ok(_) => ends.ran += 1,
            Err(Error::WouldDeadlock) => ends.would_deadlock += 1,
            Err(Error::Timeout { .. }) => ends.timed_out += 1,
            Err(other) => return Err(other.into()),
        }
    }
    Ok(ends)
}

fn show(case: &str, ends: Result<Ends, Failure>, is_as_said: fn(&Ends) -> bool) -> bool {
    let ends = match ends {
        Ok(ends) => ends,
        Err(failure) => {
            println!("{case:<42} failed: {failure}");
            return false;
        }
    };
    let Ends { ran, would_deadlock, timed_out } = ends;
    let verdict = if is_as_said(&ends) { "as said" } else { "NOT as said" };
    println!("{case:<42} ran {ran}, would deadlock {would_deadlock}, timed out {timed_out}: {verdict}");
    is_as_said(&ends)
}

fn main() -> ExitCode {
    // A case that hangs must not hang whoever runs this.
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(5));
        println!("a case hangs");
        std::process::exit(1);
    });
    let all_ran = |ends: &Ends| *ends == Ends { ran: ITEMS, ..Ends::default() };
    let good = [
        show("only rates, nested iterators", under_a_rate(), all_ran),
        show("slots, the valve innermost", with_the_valve_innermost(), all_ran),
        show("slots, taken again on a job's own thread", on_the_jobs_own_thread(), |ends| {
            *ends == Ends { ran: 1, would_deadlock: ITEMS - 1, timed_out: 0 }
        }),
        show("slots, taken again on another, max_wait", on_another_thread(), |ends| {
            *ends == Ends { ran: 0, would_deadlock: 0, timed_out: ITEMS }
        }),
        show("slots, nested iterators, max_wait", nested_iterators(), |ends| {
            ends.ran > 0 && ends.would_deadlock == 0 && ends.ran + ends.timed_out == ITEMS
        }),
    ];
    if good == [true; 5] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
