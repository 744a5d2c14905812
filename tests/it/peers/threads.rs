//! Cases that need threads which really run at the same time. What they assert of time is one-sided.

#![expect(clippy::disallowed_methods, reason = "jobs that take real time, and how long threads took")]

use std::fs;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{CancelToken, Error, MemoryStore, Rule, Valve};

use super::{micros, millis, seconds};
use crate::hooked::{Called, Hooked};
use crate::watchdog::watchdog;

#[test]
fn thirty_threads_get_three_a_window() {
    let _watchdog = watchdog(60);
    for round in 0..200 {
        let clock = ManualClock::new();
        let rule = Rule::fixed_window(3, seconds(10));
        let valve = Valve::builder("thirty").rule(rule).clock(&clock).build().unwrap();
        let stamps = Mutex::new(Vec::new());
        let together = Barrier::new(30);
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    together.wait();
                    let stamp = valve.acquire().unwrap().admitted_at();
                    stamps.lock().push(micros(stamp.duration_since(UNIX_EPOCH).unwrap()));
                });
            }
            // Until those served in a window are through, the clock must stand.
            for window in 1..=10 {
                while stamps.lock().len() < 3 * window {
                    thread::yield_now();
                }
                clock.wait_blocked(30 - 3 * window);
                clock.advance(seconds(10));
            }
        });
        let mut windows = [0; 10];
        for stamp in stamps.into_inner() {
            windows[(stamp / 10_000_000) as usize] += 1;
        }
        assert_eq!(windows, [3; 10], "round {round}");
    }
}

#[test]
fn the_limit_is_reached_and_never_passed() {
    let _watchdog = watchdog(60);
    for (limit, rounds) in [(3, 10), (1, 3)] {
        for round in 0..rounds {
            let valve = Valve::builder("slots").concurrency(limit).build().unwrap();
            let (running, most) = (AtomicU64::new(0), AtomicU64::new(0));
            let together = Barrier::new(20);
            thread::scope(|scope| {
                for _ in 0..20 {
                    scope.spawn(|| {
                        together.wait();
                        let job = || {
                            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            thread::sleep(millis(20));
                            running.fetch_sub(1, Ordering::SeqCst);
                        };
                        valve.run(job).unwrap();
                    });
                }
            });
            assert_eq!(most.into_inner(), u64::from(limit), "round {round}");
            assert_eq!((valve.stats().started, valve.stats().running), (20, 0));
        }
    }
}

#[test]
fn cancelling_runner_and_waiter_together_leaves_no_trace() {
    const ROUNDS: usize = 10_000;
    let _watchdog = watchdog(100);
    let valve = Valve::builder("one").concurrency(1).build().unwrap();
    let tokens: Vec<_> = (0..ROUNDS).map(|_| CancelToken::new()).collect();
    let (begin, end) = (Barrier::new(3), Barrier::new(3));
    let runs = AtomicBool::new(false);
    let overtaken = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for token in &tokens {
                begin.wait();
                let until_cancelled = |running: &valve::Running<'_>| {
                    runs.store(true, Ordering::Release);
                    while !running.is_aborted() {
                        thread::yield_now();
                    }
                };
                valve.job().cancel(token).run(until_cancelled).unwrap();
                end.wait();
            }
        });
        scope.spawn(|| {
            for token in &tokens {
                begin.wait();
                while !runs.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                match valve.job().cancel(token).run(|_| ()) {
                    Err(Error::Cancelled) => {}
                    // The runner saw the flag and ended first, and so let it start.
                    Ok(()) => {
                        overtaken.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("{other:?}"),
                }
                end.wait();
            }
        });
        for token in &tokens {
            begin.wait();
            while !(runs.load(Ordering::Acquire) && valve.stats().queued == 1) {
                thread::yield_now();
            }
            token.cancel();
            valve.run(|| ()).unwrap();
            end.wait();
            runs.store(false, Ordering::Release);
            let stats = valve.stats();
            assert_eq!((stats.running, stats.queued), (0, 0));
            assert!(valve.try_acquire().is_ok());
        }
    });
    let (stats, overtaken) = (valve.stats(), overtaken.into_inner() as u64);
    assert_eq!(stats.cancelled + overtaken, ROUNDS as u64);
    assert_eq!(stats.started, 3 * ROUNDS as u64 + overtaken);
}

#[test]
fn no_cancel_is_missed() {
    const PAIRS: u64 = 2;
    const WAITS: usize = 50_000;
    let _watchdog = watchdog(100);
    let valve = Valve::builder("held").concurrency(1).build().unwrap();
    let held = valve.acquire().unwrap();
    let late = AtomicUsize::new(0);
    thread::scope(|scope| {
        for pair in 0..PAIRS {
            let (valve, late) = (&valve, &late);
            scope.spawn(move || late.fetch_add(cancelled_in_time(valve, WAITS, pair), Ordering::Relaxed));
        }
    });
    let stats = valve.stats();
    assert_eq!((stats.cancelled, stats.queued, stats.running), (PAIRS * WAITS as u64, 0, 1));
    // A missed cancel would wait for ever. A few that took longer were kept from a processor.
    let late = late.into_inner();
    assert!(late <= 10, "{late} waits of {WAITS} went on for more than 100 ms after the cancel");
    drop(held);
    assert!(valve.try_acquire().is_ok());
}

/// Waits so often, each time cancelled by another thread after 0 to 50 us, and gives how often that took over 100 ms.
fn cancelled_in_time(valve: &Valve, waits: usize, seed: u64) -> usize {
    let tokens: Vec<_> = (0..waits).map(|_| CancelToken::new()).collect();
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut late = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9E37_79B9_7F4A_7C15 ^ (seed + 1);
            for (number, token) in tokens.iter().enumerate() {
                while begun.load(Ordering::Acquire) <= number {
                    thread::yield_now();
                }
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let (since, after) = (Instant::now(), Duration::from_nanos(random % 50_000));
                while since.elapsed() < after {
                    std::hint::spin_loop();
                }
                token.cancel();
                ended.store(number + 1, Ordering::Release);
            }
        });
        for (number, token) in tokens.iter().enumerate() {
            begun.store(number + 1, Ordering::Release);
            let since = Instant::now();
            match valve.job().cancel(token).acquire() {
                Err(Error::Cancelled) => late += usize::from(since.elapsed() > millis(100)),
                other => panic!("{other:?}"),
            }
            assert!(token.is_cancelled());
        }
    });
    assert_eq!(ended.into_inner(), waits);
    late
}

#[test]
fn a_release_wakes_one_waiter() {
    const WAITERS: u64 = 100;
    let _watchdog = watchdog(60);
    let asks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asks);
    let store = Hooked::new(MemoryStore::new(), None, move |called| {
        counted.fetch_add(u64::from(called == Called::Admit), Ordering::Relaxed);
        Ok(())
    });
    let valve = Valve::builder("one").concurrency(1).store(store).build().unwrap();
    let wakes = AtomicU64::new(0);
    let held = valve.acquire().unwrap();
    let begin = thread::scope(|scope| {
        for queued in 1..=WAITERS as usize {
            scope.spawn(|| {
                let before = sleeps();
                let _permit = valve.acquire().unwrap();
                wakes.fetch_add(sleeps() - before, Ordering::Relaxed);
                thread::sleep(millis(10));
            });
            while valve.stats().queued < queued {
                thread::sleep(Duration::from_micros(50));
            }
        }
        asks.store(0, Ordering::Relaxed);
        let begin = Instant::now();
        drop(held);
        begin
    });
    assert!(begin.elapsed() >= seconds(1), "jobs ran together");
    let (wakes, asks) = (wakes.into_inner(), asks.load(Ordering::Relaxed));
    assert!(wakes <= 2 * WAITERS, "{wakes} wake-ups for {WAITERS} releases");
    assert_eq!(asks, WAITERS, "admissions");
}

/// How often the calling thread has gone to sleep.
fn sleeps() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
