//! The counters on real threads: whose they are, and that nothing is lost when a thread ends.

use super::{NUMBERS, Stripes};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

#[test]
fn more_threads_than_numbers_get_no_more_counters_than_there_are() {
    let (stripes, together, counted) = (Stripes::default(), Barrier::new(NUMBERS + 8), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..NUMBERS + 8 {
            scope.spawn(|| {
                if stripes.begin().is_some() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                together.wait();
            });
        }
    });
    let counted = counted.into_inner();
    assert!(counted <= NUMBERS, "{counted} threads have counters at once");
    assert_eq!(stripes.figures(), (counted as u64, 0));
}

#[test]
fn a_number_serves_one_thread_after_another() {
    let stripes = Stripes::default();
    for _ in 0..10 * NUMBERS {
        let begun = || stripes.begin().is_some();
        assert!(thread::scope(|scope| scope.spawn(begun).join()).unwrap(), "a number was not given back");
    }
    assert_eq!(stripes.figures(), (10 * NUMBERS as u64, 0));
}

#[test]
fn a_job_may_end_on_another_thread_and_on_one_without_counters() {
    let stripes = Stripes::default();
    let together = Barrier::new(NUMBERS + 8);
    for _ in 0..NUMBERS + 8 {
        assert!(stripes.begin().is_some());
    }
    thread::scope(|scope| {
        for _ in 0..NUMBERS + 8 {
            scope.spawn(|| {
                stripes.end();
                together.wait();
            });
        }
    });
    assert_eq!(stripes.figures(), (0, NUMBERS as u64 + 8));
}

#[test]
fn what_is_withdrawn_neither_runs_nor_has_ended() {
    let stripes = Stripes::default();
    stripes.begin().unwrap().withdraw();
    assert_eq!(stripes.figures(), (0, 0));
}

/// Jobs go from a thread to another, which ends before the job's own thread does, or long before.
#[test]
fn a_reader_never_sees_fewer_running_than_there_are() {
    let (stripes, done) = (Stripes::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (begun, to_end) = channel();
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let (running, ended) = stripes.figures();
                assert!(running <= 20_000 && ended >= last, "{running} run, {ended} after {last} have ended");
                last = ended;
            }
        });
        let stripes = &stripes;
        scope.spawn(move || {
            for _ in 0..20_000 {
                assert!(stripes.begin().is_some());
                begun.send(()).unwrap();
            }
        });
        for () in to_end {
            stripes.end();
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(stripes.figures(), (0, 20_000));
}
