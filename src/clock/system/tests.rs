//! The clock as it runs, with the real counter; its arithmetic is tested in `discipline/tests.rs`.

use super::*;
use std::thread;

#[test]
fn the_first_answer_is_at_least_one() {
    assert!(System::start().ticks() >= 1);
}

#[test]
fn a_thread_never_sees_it_go_back_even_if_the_counter_does() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let far = now() + 1_000_000_000_000;
            LATEST.set(far);
            assert_eq!((now(), now()), (far, far));
        });
    });
}

#[test]
fn no_reader_sees_it_go_back_or_torn_while_another_thread_corrects() {
    let system = System::start();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut before = system.ticks();
                while done.load(Ordering::Relaxed) == 0 {
                    let after = system.ticks();
                    // A processor may read its counter some nanoseconds out of order, and cross a border
                    // twice.
                    assert!(before <= after + 1 && after < before + 60_000_000, "{before}, then {after}");
                    before = after;
                }
            });
        }
        for _ in 0..100_000 {
            system.due_ns.store(0, Ordering::Relaxed);
            system.refine();
        }
        done.store(1, Ordering::Relaxed);
    });
}

#[test]
fn it_keeps_pace_with_the_system_clock() {
    let system = System::start();
    let system_us = || nanoseconds(system.origin) / 1_000;
    let begin = (system_us(), system.ticks(), system_us());
    while system_us() < begin.2 + 20_000 {}
    let end = (system_us(), system.ticks(), system_us());

    let ours = end.1 - begin.1;
    let (least, most) = (end.0 - begin.2, end.2 - begin.0);
    assert!(least * 9 / 10 <= ours && ours <= most * 11 / 10, "{least} <= {ours} <= {most}");
}

#[test]
fn a_correction_waits_until_it_is_due_and_puts_off_the_next() {
    let system = System::start();
    let corrections = || system.scale.version.load(Ordering::Relaxed) / 2;
    system.due_ns.store(u64::MAX, Ordering::Relaxed);
    system.refine();
    assert_eq!(corrections(), 0);
    system.due_ns.store(0, Ordering::Relaxed);
    system.refine();
    assert_eq!(corrections(), 1);
    assert!(system.due_ns.load(Ordering::Relaxed) > REFINE_MIN_NS);
}
