//! The one thing asked of the operating system itself: to be told when this process is a forked copy.
//!
//! A forked child has our memory but none of our threads: a wait in it would never end. So every public call asks
//! [`forked`] first and every `Drop` does nothing there. A child that execs, or forks before first use, never notices.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

/// Whether this process was forked from one that already used this crate.
#[inline]
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Asks to be told of forks from here on; later calls do nothing.
pub(crate) fn watch_forks() {
    WATCH.call_once(install);
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "pthread_atfork is the only way to learn of a fork, and is a C function")]
fn install() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler is a plain function that lives as long as the program and only stores to an atomic, which is
    // allowed between fork and exec. A failure (out of memory) leaves forks unnoticed, as if never asked for.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

#[cfg(not(unix))]
fn install() {}
