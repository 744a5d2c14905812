//! One worker of the fleet: a process that knows of the others only through the server.

use std::io::{self, Write};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use valve::{Error, Valve};

use crate::{Failure, Site};

/// How many threads of each worker want to start jobs, all the time.
const THREADS: u64 = 8;
/// A job takes between these, in milliseconds.
const SHORTEST: u64 = 10;
const LONGEST: u64 = 30;

/// What a worker is told, a line each; the end of its input ends it.
pub(crate) const START: &str = "start";
pub(crate) const HOLD: &str = "hold";
/// What it says.
pub(crate) const READY: &str = "ready";
pub(crate) const HOLDING: &str = "holding";

/// Starts jobs from when it is told to until its input ends.
pub(crate) fn work(site: &Site, name: &str, held: usize) -> Result<(), Failure> {
    let valve = site.valve(&site.client(name)?)?;
    say(READY)?;
    let mut orders = io::stdin().lines();
    if orders.next().transpose()?.as_deref() != Some(START) {
        return Ok(());
    }
    let to_hold = AtomicUsize::new(0);
    thread::scope(|scope| -> Result<(), Failure> {
        let (valve, to_hold) = (&valve, &to_hold);
        let threads = (0..THREADS)
            .map(|seed| thread::Builder::new().spawn_scoped(scope, move || jobs(valve, to_hold, seed)))
            .collect::<Result<Vec<_>, _>>();
        if threads.is_ok() {
            for order in orders.map_while(Result::ok) {
                if order == HOLD {
                    to_hold.store(held, Ordering::Relaxed);
                }
            }
        }
        valve.close();
        threads?
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

/// One job after the other, until the valve is closed.
fn jobs(valve: &Valve, to_hold: &AtomicUsize, seed: u64) -> Result<(), Failure> {
    // Else all workers would do the same at the same time.
    let mut random = seed << 32 | u64::from(process::id());
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = SHORTEST + (random >> 33) % (LONGEST - SHORTEST + 1);
        let job = || {
            if to_hold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                hang();
            }
            thread::sleep(Duration::from_millis(length));
        };
        match valve.run(job) {
            Ok(()) => {}
            Err(Error::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A job that never ends: its slot is held for as long as this process lives to renew the lease.
fn hang() {
    // If nobody listens any more there is nobody to kill this process either, and it goes on.
    while say(HOLDING).is_ok() {
        thread::park();
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
