//! Loaded into a server before the C library: its wall clock, and no other, is off by what a file says, in seconds.
//!
//! A crate of its own, which a test compiles. Nothing here allocates: the server's allocator reads the clock.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

#[repr(C)]
pub struct Timeval {
    seconds: i64,
    micros: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(file: c_int) -> c_int;
    fn mmap(
        at: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        from: i64,
    ) -> *mut c_void;
}

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(not(target_arch = "x86_64"))]
const CLOCK_GETTIME: c_long = 113;
const REALTIME: c_int = 0;
const REALTIME_COARSE: c_int = 5;
const READ: c_int = 1;
const SHARED: c_int = 1;

static OFFSET: AtomicPtr<i64> = AtomicPtr::new(null_mut());

fn offset() -> i64 {
    let mut mapped = OFFSET.load(Ordering::Relaxed);
    if mapped.is_null() {
        mapped = map();
        OFFSET.store(mapped, Ordering::Relaxed);
    }
    // SAFETY: the mapping is never taken back, and the file holds eight bytes.
    unsafe { mapped.read_volatile() }
}

/// The file as memory, or a zero if there is none.
fn map() -> *mut i64 {
    static mut NONE: i64 = 0;
    let none = &raw mut NONE;
    // SAFETY: the arguments are what the C library asks for; its environment is not changed by the server.
    unsafe {
        let path = getenv(c"VALVE_CLOCK_OFFSET".as_ptr());
        if path.is_null() {
            return none;
        }
        let file = open(path, 0);
        if file < 0 {
            return none;
        }
        let mapped = mmap(null_mut(), 8, READ, SHARED, file, 0);
        close(file);
        if mapped.addr() == usize::MAX { none } else { mapped.cast() }
    }
}

fn now(clock: c_int) -> Timespec {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: the system writes a time to it.
    unsafe { syscall(CLOCK_GETTIME, clock, &raw mut time) };
    if clock == REALTIME || clock == REALTIME_COARSE {
        time.seconds += offset();
    }
    time
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { time.write(now(clock)) };
    0
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut Timeval, _zone: *mut c_void) -> c_int {
    let now = now(REALTIME);
    // SAFETY: the caller's promise.
    unsafe { time.write(Timeval { seconds: now.seconds, micros: now.nanos / 1_000 }) };
    0
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(seconds: *mut i64) -> i64 {
    let now = now(REALTIME).seconds;
    if !seconds.is_null() {
        // SAFETY: the caller's promise.
        unsafe { seconds.write(now) };
    }
    now
}
