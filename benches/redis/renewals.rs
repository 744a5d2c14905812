//! What it costs to keep many leases: the calls to the server, and its time.

use std::thread;
use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::server::{Server, connect};
use crate::{Aim, Effort, Failure, builder};

const LEASES: u32 = 10_000;
const TTL: Duration = Duration::from_secs(3);

pub(crate) fn measure(server: &Server, effort: Effort) -> Result<Aim, Failure> {
    let mut connection = connect(server.url())?;
    let valve = builder(server, "leases")?.global_concurrency(LEASES, TTL).build()?;
    let permits = (0..LEASES).map(|_| valve.acquire()).collect::<Result<Vec<_>, _>>()?;
    thread::sleep(TTL); // until all renewals fall together

    let (before, begun) = (Counters::read(&mut connection)?, Instant::now());
    thread::sleep(TTL / 3 * effort.thirds);
    let thirds = begun.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
    let used = Counters::read(&mut connection)?.since(before);

    let calls = used.scripts as f64 / thirds;
    let milliseconds = used.cpu.as_secs_f64() * 1e3 / thirds;
    let lost = permits.iter().filter(|permit| permit.is_aborted()).count();
    println!("renewals: {LEASES} leases of {TTL:?}");
    println!(
        "  {calls:.1} calls and {milliseconds:.1} ms of the server's CPU per third of that; {lost} lost\n"
    );
    Ok(Aim { what: "renewals, calls per third of a TTL", figure: calls, most: 20.0 })
}
