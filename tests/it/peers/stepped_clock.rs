//! The system's wall clock steps while a valve waits. No test may turn the real one, so this binary answers for it.

#![expect(unsafe_code, reason = "stands in for a function of the C library")]
#![expect(clippy::disallowed_methods, reason = "it is about the system's clocks")]

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime};

use valve::{Engine, MemoryEngine, Ran, Rule, SetOptions, ThrottleWindow, Valve};

use super::{millis, seconds};
use crate::watchdog::watchdog;

/// By how many seconds the wall clock is wrong.
static STEP: AtomicI64 = AtomicI64::new(0);

/// The C library's function of this name for everything in this test binary, the standard library included.
///
/// # Safety
///
/// `time` points to a `timespec` or is null, as for the original.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the call is the system's own, with the caller's arguments.
    let status = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if status == 0 && clock == libc::CLOCK_REALTIME && !time.is_null() {
        // SAFETY: not null, and the system has just written to it.
        unsafe { (*time).tv_sec += STEP.load(Ordering::Relaxed) };
    }
    status as libc::c_int
}

/// Sets the wall clock of this process so many seconds wrong.
#[cfg(feature = "redis")]
pub(crate) fn set_wrong(seconds: i64) {
    STEP.store(seconds, Ordering::Relaxed);
}

#[test]
fn a_stepped_wall_clock_changes_no_wait() {
    let _watchdog = watchdog(30);
    for step in [-60, 3_600, -86_400, 86_400] {
        let valve = Valve::builder("stepped").rule(Rule::gcra(1, seconds(1))).build().unwrap();
        let begin = Instant::now();
        let first = valve.acquire().unwrap().admitted_at();

        let before = SystemTime::now();
        STEP.store(step, Ordering::Relaxed);
        let stepped = SystemTime::now();
        let away = if step > 0 { stepped.duration_since(before) } else { before.duration_since(stepped) };
        assert!(away.unwrap() > seconds(step.unsigned_abs() - 10), "the wall clock does not step here");

        let wait = match valve.try_acquire() {
            Err(valve::Error::WouldWait { retry_after, .. }) => retry_after.unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(wait <= seconds(1), "told to wait {wait:?}");
        let second = valve.acquire().unwrap().admitted_at();
        STEP.store(0, Ordering::Relaxed);

        let waited = begin.elapsed();
        assert!(waited >= seconds(1) - millis(1), "started after {waited:?}");
        assert!(waited < seconds(20), "started after {waited:?}");
        let apart = second.duration_since(first).unwrap();
        assert!(apart >= seconds(1) && apart < seconds(20), "stamped {apart:?} apart");
    }
}

#[test]
fn a_stepped_wall_clock_changes_no_window() {
    let _watchdog = watchdog(30);
    for step in [-86_400, -60, 60, 86_400] {
        let engine = MemoryEngine::new();
        let throttle = ThrottleWindow::<(), String>::builder("p:").window(millis(500)).engine(engine.clone());
        let throttle = throttle.build().unwrap();
        let begin = Instant::now();
        assert_eq!(throttle.job("k", |_run| Ok(())).exec().unwrap(), Ran::Now);
        engine.set("short", "1", SetOptions::new(millis(200))).unwrap();
        engine.set("long", "1", SetOptions::new(seconds(60))).unwrap();
        STEP.store(step, Ordering::Relaxed);
        // Neither over at once nor put off by a day.
        throttle.job("k", |_run| Ok(())).wait_finish().timeout(seconds(20)).exec().unwrap();
        let waited = begin.elapsed();
        assert!(waited >= millis(499), "ran after {waited:?}");
        assert!(waited < seconds(20), "ran after {waited:?}");
        assert_eq!(engine.get("short").unwrap(), None);
        assert_eq!(engine.get("long").unwrap().as_deref(), Some("1"));
        STEP.store(0, Ordering::Relaxed);
        throttle.destroy();
    }
}
