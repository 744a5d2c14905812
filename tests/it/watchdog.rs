//! Ends the whole process if a test hangs, so that the hang has a name and keeps nobody waiting.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// While it lives, the time runs.
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

/// Aborts the process unless the guard goes within so many seconds.
pub(crate) fn watchdog(seconds: u64) -> Watchdog {
    let (alive, gone) = channel::<()>();
    let (started, starts) = channel();
    let watch = move || {
        // It has its name by now: a test may count threads by theirs.
        started.send(()).unwrap();
        if gone.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "the test hangs: it has run for {seconds} s");
            std::process::abort();
        }
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(watch).unwrap();
    starts.recv().unwrap();
    Watchdog { _alive: alive }
}
