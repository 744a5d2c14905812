//! What it costs to keep 10,000 leases on memory: the CPU time of the whole process, which does nothing else, and the calls.
//!
//! Reads `/proc/self/stat`, so it measures on Linux only. `-- --quick` looks at a few seconds instead of a minute.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program, not the library")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Remote, Store, StoreError, Token, Valve};

const LEASES: u32 = 10_000;
const TTL: Duration = Duration::from_secs(3);

/// A memory store that counts renewals.
#[derive(Clone, Default)]
struct Counting {
    inner: MemoryStore,
    renewals: Arc<AtomicUsize>,
}

struct Opened {
    inner: Arc<dyn Counts>,
    renewals: Arc<AtomicUsize>,
}

impl Store for Counting {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { inner: self.inner.open(id)?, renewals: Arc::clone(&self.renewals) }))
    }

    fn remote(&self) -> Option<Remote> {
        None
    }
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        self.inner.admit(ask, answer)
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.inner.renew(leases, deadline, held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.inner.release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.inner.pause(length, deadline)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.resume(deadline)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let watched = Duration::from_secs(if quick { 4 } else { 60 });
    let store = Counting::default();
    let valve = Valve::builder("leases").global_concurrency(LEASES, TTL).store(store.clone()).build()?;
    let permits = (0..LEASES).map(|_| valve.acquire()).collect::<Result<Vec<_>, _>>()?;
    thread::sleep(TTL); // until all renewals fall together

    let (begun, cpu, calls) = (Instant::now(), cpu_time()?, store.renewals.load(Ordering::Relaxed));
    thread::sleep(watched);
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let cpu = cpu_time()?.saturating_sub(cpu).as_secs_f64() * 1_000.0 / minutes;
    let thirds = begun.elapsed().as_secs_f64() / (TTL.as_secs_f64() / 3.0);
    let calls = (store.renewals.load(Ordering::Relaxed) - calls) as f64 / thirds;

    let lost = permits.iter().filter(|permit| permit.is_aborted()).count();
    println!("{LEASES} leases of {TTL:?} on memory: {cpu:.0} ms of CPU a minute, {lost} lost");
    println!("{calls:.1} renewal calls per third of a TTL, aim <= 20");
    Ok(())
}

/// User and system time of this process, in the kernel's hundredths of a second.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no name in /proc/self/stat")?;
    let ticks = |field: usize| -> Result<u64, Box<dyn std::error::Error>> {
        Ok(fields.split_whitespace().nth(field).ok_or("too few fields in /proc/self/stat")?.parse()?)
    };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}
