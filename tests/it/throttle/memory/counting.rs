//! An allocator that counts the live bytes.
#![expect(unsafe_code, reason = "an allocator that counts is one that allocates")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// How many bytes are in use.
pub(super) fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

fn count(layout: Layout, sign: isize) {
    let size = isize::try_from(layout.size()).unwrap_or(isize::MAX);
    LIVE.fetch_add(sign * size, Ordering::Relaxed);
}

// SAFETY: hands every call on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: the caller keeps the promises of `dealloc`, and the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}
