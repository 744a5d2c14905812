//! The Redis store against real servers: what a fleet is promised, and what becomes of it in every kind of trouble.

mod agreement;
mod check;
mod clock_shim;
mod contract;
mod fake;
mod faults;
mod pauses;
mod peers;
mod process;
mod processes;
mod proxy;
mod resp;
mod scripts;
mod server;
mod signals;
mod windows;
mod workers;
mod world;

use std::io::Write;
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "waits for what only real time brings")]
pub(crate) fn nap(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Says what a test saw, for those who run it with `--nocapture`.
pub(crate) fn figure(seen: &str) {
    let _ = writeln!(std::io::stdout(), "seen: {seen}");
}

/// Real time that has passed.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "how long something takes in real time")]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
