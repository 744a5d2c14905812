//! Bad input and trouble: each gets a typed error or works; nothing hangs, nothing is half built, nothing is lost.

pub(crate) mod alone;
mod endings;
pub(crate) mod fork;
mod handles;
mod input;
mod panics;
pub(crate) mod refused_threads;

use std::fs;
use std::time::Duration;

use valve::{Error, Valve};

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        // One that has just ended has no name any more.
        fs::read_to_string(task.ok()?.path().join("comm")).ok()
    });
    let mut names: Vec<_> = names.map(|name| name.trim_end().to_owned()).collect();
    names.sort();
    names
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What a process should get back to when all is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    threads: Vec<String>,
    open_files: usize,
}

impl Footprint {
    /// Once threads that have just started have taken their names.
    pub(crate) fn settled() -> Footprint {
        nap(50);
        Footprint::now()
    }

    fn now() -> Footprint {
        Footprint { threads: threads(), open_files: open_files() }
    }

    /// Waits until nothing but this is left: threads end a little after their last handle goes.
    #[track_caller]
    pub(crate) fn check_back(&self) {
        for _ in 0..500 {
            if Footprint::now() == *self {
                return;
            }
            nap(10);
        }
        assert_eq!(Footprint::now(), *self, "left behind after 5 s");
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for what only real time brings")]
pub(crate) fn nap(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// The valve serves: no slot is lost, nobody waits, nothing runs.
#[track_caller]
fn check_sound(valve: &Valve, slots: usize) {
    let stats = valve.stats();
    assert_eq!((stats.running, stats.queued), (0, 0));
    let held: Vec<_> = (0..slots).map(|_| valve.try_acquire()).collect::<Result<_, _>>().unwrap();
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. })), "a slot more than there are");
    assert_eq!(valve.stats().running, slots as u64);
    drop(held);
    assert_eq!(valve.stats().running, 0);
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
