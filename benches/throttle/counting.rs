//! An allocator that counts the live bytes, if it is told to: counting takes a third of what is measured elsewhere.
#![expect(unsafe_code, reason = "an allocator that counts is one that allocates")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// From now on, bytes that are taken and given back count.
pub(crate) fn start() {
    ON.store(true, Ordering::Relaxed);
}

pub(crate) fn stop() {
    ON.store(false, Ordering::Relaxed);
}

/// How many bytes more are in use than at some time before; only a difference of two answers means something.
pub(crate) fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// As glibc's malloc does: 8 bytes for itself, in steps of 16, at least 32.
fn rounded(layout: Layout) -> isize {
    let chunk = (layout.size() + 8).next_multiple_of(16).max(32);
    isize::try_from(chunk).expect("no layout is larger")
}

fn count(bytes: impl FnOnce() -> isize) {
    if ON.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes(), Ordering::Relaxed);
    }
}

// SAFETY: hands every call on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|| rounded(layout));
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(|| -rounded(layout));
        // SAFETY: the caller keeps the promises of `dealloc`, and the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}
