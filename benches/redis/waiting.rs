//! Many threads that wait for one valve: one call to the server serves many of them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use valve::Valve;

use crate::counters::Counters;
use crate::rounds::{interleave, median, ratio};
use crate::server::{Server, connect};
use crate::{Aim, Effort, Failure, builder, wide};

const THREADS: usize = 64;
const TTL: Duration = Duration::from_secs(30);

struct Variant {
    name: &'static str,
    valve: Valve,
    threads: usize,
    /// One a round.
    calls_per_grant: RefCell<Vec<f64>>,
    grants_per_second: RefCell<Vec<f64>>,
}

pub(crate) fn measure(server: &Server, effort: Effort) -> Result<Vec<Aim>, Failure> {
    let rate = |id| -> Result<Valve, Failure> { Ok(builder(server, id)?.rule(wide()).build()?) };
    let slots = |id| -> Result<Valve, Failure> {
        Ok(builder(server, id)?.rule(wide()).global_concurrency(1_000, TTL).build()?)
    };
    let variants = [
        Variant::new("rate, a thread that never waits", rate("alone")?, 1),
        Variant::new("rate, 64 threads that do", rate("waiting")?, THREADS),
        Variant::new("rate and slots, a thread that never waits", slots("alone-slots")?, 1),
        Variant::new("rate and slots, 64 threads that do", slots("waiting-slots")?, THREADS),
    ];
    let connection = RefCell::new(connect(server.url())?);
    let read = || Counters::read(&mut connection.borrow_mut()).expect("the server answers");
    let cpu = interleave(effort.rounds, &variants, |variant| variant.round(effort.length, &read));

    println!("waiting: {THREADS} threads, a burst that is never used up, jobs of no length");
    println!("{:<44}{:>10}{:>12}{:>16}{:>8}", "", "grants/s", "calls/grant", "server us/grant", "ratio");
    for (number, (variant, own)) in variants.iter().zip(&cpu).enumerate() {
        println!(
            "  {:<42}{:>10.0}{:>12.3}{:>16.2}{:>8.3}",
            variant.name,
            median(&variant.grants_per_second.borrow()),
            variant.calls_per_grant(),
            median(own),
            ratio(own, &cpu[number / 2 * 2]),
        );
    }
    println!();
    Ok(vec![
        Aim { what: "waiting for a rate, calls per grant", figure: variants[1].calls_per_grant(), most: 0.1 },
        Aim {
            what: "waiting for a rate, server CPU to one call each",
            figure: ratio(&cpu[1], &cpu[0]),
            most: 0.3,
        },
        Aim { what: "waiting with slots, calls per grant", figure: variants[3].calls_per_grant(), most: 0.1 },
        Aim {
            what: "waiting with slots, server CPU to one call each",
            figure: ratio(&cpu[3], &cpu[2]),
            most: 0.3,
        },
    ])
}

impl Variant {
    fn new(name: &'static str, valve: Valve, threads: usize) -> Variant {
        Variant {
            name,
            valve,
            threads,
            calls_per_grant: RefCell::default(),
            grants_per_second: RefCell::default(),
        }
    }

    fn calls_per_grant(&self) -> f64 {
        median(&self.calls_per_grant.borrow())
    }

    /// Microseconds of the server's CPU per grant.
    fn round(&self, length: Duration, read: &impl Fn() -> Counters) -> f64 {
        let (grants, valve) = (AtomicU64::new(0), &self.valve);
        let (before, begun) = (read(), Instant::now());
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let mut own = 0;
                    while begun.elapsed() < length {
                        drop(valve.acquire().expect("the server answers"));
                        own += 1;
                    }
                    grants.fetch_add(own, Ordering::Relaxed);
                });
            }
        });
        let (took, used) = (begun.elapsed(), read().since(before));
        let grants = grants.into_inner() as f64;
        self.calls_per_grant.borrow_mut().push(used.scripts as f64 / grants);
        self.grants_per_second.borrow_mut().push(grants / took.as_secs_f64());
        used.cpu.as_secs_f64() * 1e6 / grants
    }
}
