//! Lets a server's clock be stepped: a small library, loaded before the system's, that adds an offset to the time.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{Folder, Server};
use crate::repository::top;

/// The offset of one process's clock.
pub(crate) struct ClockShim {
    library: PathBuf,
    folder: Folder,
}

impl ClockShim {
    pub(crate) fn new() -> ClockShim {
        let shim = ClockShim { library: library(), folder: Folder::new() };
        shim.turn(0);
        shim
    }

    /// Steps the clock so many seconds away from the true time.
    pub(crate) fn turn(&self, seconds: i64) {
        // In place, and never shorter meanwhile: the process has this file mapped.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.offset()).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    pub(crate) fn put_before(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("VALVE_CLOCK_OFFSET", self.offset());
    }

    fn offset(&self) -> PathBuf {
        self.folder.path.join("offset")
    }
}

/// The compiled library; it is made once for each version of its source.
fn library() -> PathBuf {
    let source = top().join("tests/it/redis/clock_shim/preloaded.rs");
    let age = fs::metadata(&source).unwrap().modified().unwrap();
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libclock_shim.so");
    let is_fresh = |made: fs::Metadata| made.modified().is_ok_and(|made| made > age);
    if fs::metadata(&library).is_ok_and(is_fresh) {
        return library;
    }
    let folder = Folder::new();
    let made = folder.path.join("libclock_shim.so");
    let output = Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-o"])
        .args([&made, &source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another test may do the same; each sees a whole file.
    fs::rename(made, &library).unwrap();
    library
}

#[test]
fn a_server_clock_steps_both_ways() {
    let server = Server::with_clock();
    let before = server.time();
    for (seconds, from, to) in [(30, 30, 40), (-3_600, -3_600, -3_590), (0, 0, 10)] {
        server.turn_clock(seconds);
        let now = server.time();
        let moved = now as i64 - before as i64;
        assert!(
            (from * 1_000_000..to * 1_000_000).contains(&moved),
            "turned by {seconds} s, moved {moved} us"
        );
    }
}
