//! What it costs to read a response: `cargo bench --features http --bench feedback [-- --quick]`. It asserts nothing about time.
//!
//! Of each kind of response the quickest round and the median are printed, and how often reading one took memory from the heap.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program, not the library")]
#![expect(clippy::cast_precision_loss, reason = "figures of nanoseconds")]
#![allow(unsafe_code, reason = "an allocator that counts is one that allocates")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use valve::Feedback;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`, and the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What most responses carry besides: with what each kind adds they have 20 fields.
const USUAL: [(&str, &str); 16] = [
    ("content-type", "application/json; charset=utf-8"),
    ("content-length", "1256"),
    ("date", "Sat, 17 Jun 2023 12:00:00 GMT"),
    ("cache-control", "private, max-age=60, s-maxage=60"),
    ("etag", "\"0c2fb41c1a4bbc2d8ea8b9b3e1b2c3d4\""),
    ("vary", "Accept, Authorization, Cookie"),
    ("server", "an-honest-server/1.0"),
    ("strict-transport-security", "max-age=31536000; includeSubdomains"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "deny"),
    ("x-xss-protection", "0"),
    ("x-request-id", "5f8c7a34:1b2c:3d4e5f:6a7b8c:64d1f0a2"),
    ("access-control-allow-origin", "*"),
    ("referrer-policy", "strict-origin-when-cross-origin"),
    ("content-security-policy", "default-src 'none'"),
    ("last-modified", "Fri, 16 Jun 2023 08:30:10 GMT"),
];

/// What is measured, with which status, and the fields beside the usual ones.
type Kind = (&'static str, u16, [(&'static str, &'static str); 4]);

const KINDS: [Kind; 4] = [
    (
        "a page, quota left",
        200,
        [
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4987"),
            ("x-ratelimit-reset", "1687005000"),
            ("x-ratelimit-used", "13"),
        ],
    ),
    (
        "429 with seconds",
        429,
        [
            ("retry-after", "60"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1687003260"),
            ("x-ratelimit-limit", "5000"),
        ],
    ),
    (
        "503 with a date",
        503,
        [
            ("retry-after", "Sat, 17 Jun 2023 12:01:00 GMT"),
            ("via", "1.1 proxy"),
            ("age", "0"),
            ("link", "</>"),
        ],
    ),
    (
        "200 with fields of the draft",
        200,
        [
            ("ratelimit", "\"burst\";r=0;t=2, \"daily\";r=812"),
            ("ratelimit-policy", "\"burst\";q=10;w=2, \"daily\";q=1000;w=86400"),
            ("via", "1.1 proxy"),
            ("link", "</>"),
        ],
    ),
];

const AIM_NS: f64 = 1_000.0;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    // Short rounds: on a machine with other work, half of them are left alone all the same.
    let (rounds, repeats) = if quick { (3, 100) } else { (1_001, 500) };
    for (what, status, added) in KINDS {
        let fields: Vec<_> = USUAL.into_iter().chain(added).collect();
        let read = || black_box(Feedback::from_response(status, black_box(&fields).iter().copied()));
        report(what, fields.len(), rounds, repeats, read);
        #[cfg(feature = "http")]
        {
            let mut response = http::Response::builder().status(status);
            for (name, value) in &fields {
                response = response.header(*name, *value);
            }
            let Ok(response) = response.body(()) else { continue };
            let read = || black_box(Feedback::from(black_box(&response)));
            report(&format!("{what}, as http::Response"), fields.len(), rounds, repeats, read);
        }
    }
}

fn report(what: &str, fields: usize, rounds: usize, repeats: u32, read: impl Fn() -> Feedback) {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let pause = read().pause_for();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let mut times: Vec<f64> = (0..rounds).map(|_| nanoseconds(repeats, &read)).collect();
    times.sort_by(f64::total_cmp);
    let (quickest, median) = (times[0], times[rounds / 2]);
    println!(
        "{what:<46} {fields} fields: {quickest:4.0} ns, median {median:4.0} ns, {:.2} of the {AIM_NS:.0} ns aimed at; \
         {allocations} allocations; pause {pause:?}",
        median / AIM_NS,
    );
}

/// For one response, over that many.
fn nanoseconds(repeats: u32, read: &impl Fn() -> Feedback) -> f64 {
    let begun = Instant::now();
    for _ in 0..repeats {
        read();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(repeats)
}
