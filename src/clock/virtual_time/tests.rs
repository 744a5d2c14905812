//! Participants run one at a time in an order that never changes, and time moves only while all of them wait.

use crate::clock::{Clock, Parker};
use crate::testing::ManualClock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, clock: &ManualClock, what: impl std::fmt::Display) {
        self.0.lock().push(format!("{} {what}", clock.now().as_millis()));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[test]
fn participants_run_only_when_they_are_let_and_in_the_order_of_becoming_ready() {
    let (clock, log) = (ManualClock::new(), Log::default());
    for name in ["a", "b", "c"] {
        let (its_clock, log) = (clock.clone(), log.clone());
        clock.spawn(name, move || log.note(&its_clock, name));
    }
    assert_eq!(log.take(), [""; 0]);
    clock.settle();
    assert_eq!(log.take(), ["0 a", "0 b", "0 c"]);
}

#[test]
fn one_participant_runs_at_a_time() {
    let (clock, inside) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (its_clock, inside) = (clock.clone(), Arc::clone(&inside));
            clock.spawn("one of many", move || {
                for _ in 0..20 {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another runs");
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    its_clock.sleep(MS * (number % 3 + 1));
                }
            })
        })
        .collect();
    clock.advance(MS * 100);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn time_stops_at_each_instant_until_all_that_follows_has_happened() {
    let (clock, log) = (ManualClock::new(), Log::default());
    for (name, length) in [("slow", 30), ("quick", 10)] {
        let (its_clock, log) = (clock.clone(), log.clone());
        clock.spawn(name, move || {
            its_clock.sleep(MS * length);
            log.note(&its_clock, name);
            its_clock.sleep(MS * length);
            log.note(&its_clock, name);
        });
    }
    clock.advance(MS * 29);
    assert_eq!(log.take(), ["10 quick", "20 quick"]);
    assert_eq!(clock.now(), MS * 29);
    assert_eq!(clock.advance_to_next(), Some(MS * 30));
    assert_eq!(log.take(), ["30 slow"]);
    assert_eq!(clock.next_due(), Some(MS * 60));
    assert_eq!(clock.advance(MS * 1_000), 1);
    assert_eq!(log.take(), ["60 slow"]);
    assert_eq!(clock.advance_to_next(), None);
    assert_eq!((clock.now(), clock.timers()), (MS * 1_030, 0));

    let (its_clock, its_log) = (clock.clone(), log.clone());
    clock.spawn("late", move || {
        its_clock.sleep(MS * 5);
        its_log.note(&its_clock, "late");
    });
    assert_eq!(clock.advance_to_next(), Some(MS * 1_035), "that nothing was due is no matter later");
}

#[test]
fn a_sleep_of_nothing_lets_nobody_else_run() {
    let (clock, log) = (ManualClock::new(), Log::default());
    for name in ["a", "b"] {
        let (its_clock, log) = (clock.clone(), log.clone());
        clock.spawn(name, move || {
            log.note(&its_clock, name);
            its_clock.sleep(Duration::ZERO);
            log.note(&its_clock, name);
        });
    }
    clock.settle();
    assert_eq!(log.take(), ["0 a", "0 a", "0 b", "0 b"]);
}

#[test]
fn a_participant_that_panics_lets_the_next_one_run() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let broken = clock.spawn("broken", || std::panic::resume_unwind(Box::new("its own panic")));
    let (its_clock, its_log) = (clock.clone(), log.clone());
    clock.spawn("next", move || its_log.note(&its_clock, "next"));
    clock.settle();
    assert_eq!(log.take(), ["0 next"]);
    assert!(broken.join().is_err());
}

#[test]
fn an_unpark_that_comes_first_is_not_lost() {
    let clock = ManualClock::new();
    let its_clock = clock.clone();
    let thread = clock.spawn("early", move || {
        let parker = Parker::new(&its_clock.clock());
        parker.unpark();
        parker.park();
        parker.unpark();
        parker.park();
    });
    clock.settle();
    thread.join().unwrap();
}

#[test]
fn whoever_is_unparked_runs_after_those_who_were_ready_before() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let parkers: Arc<Mutex<Vec<Arc<Parker>>>> = Arc::default();
    for name in ["a", "b"] {
        let (its_clock, log, parkers) = (clock.clone(), log.clone(), Arc::clone(&parkers));
        clock.spawn(name, move || {
            let parker = Arc::new(Parker::new(&its_clock.clock()));
            parkers.lock().push(Arc::clone(&parker));
            parker.park();
            log.note(&its_clock, name);
        });
    }
    clock.settle();
    let its_log = log.clone();
    let its_clock = clock.clone();
    clock.spawn("waker", move || {
        for parker in parkers.lock().iter().rev() {
            parker.unpark();
        }
        its_log.note(&its_clock, "waker");
    });
    clock.settle();
    assert_eq!(log.take(), ["0 waker", "0 b", "0 a"]);
}

#[test]
fn other_threads_may_wait_too_and_the_test_can_wait_for_them() {
    let clock = ManualClock::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            clock.sleep(MS * 5);
            clock.now()
        });
        clock.wait_blocked(1);
        clock.advance(MS * 5);
        assert_eq!(waiting.join().unwrap(), MS * 5);
    });
    clock.wait_blocked(0);
}

#[test]
fn two_clocks_know_nothing_of_each_other() {
    let (one, two) = (ManualClock::new(), ManualClock::new());
    one.advance(MS);
    assert_eq!((one.now(), two.now()), (MS, Duration::ZERO));
    assert!(one.clock().same(&one.clone().clock()));
    assert!(!one.clock().same(&two.clock()));
    assert!(!one.clock().same(&Clock::System));
}

#[test]
fn the_same_program_takes_the_same_course_every_time() {
    fn course() -> Vec<String> {
        let (clock, log) = (ManualClock::new(), Log::default());
        let valve = crate::Valve::builder("course").concurrency(2).clock(&clock).build().unwrap();
        for number in 0..6_u32 {
            let (its_clock, log, valve) = (clock.clone(), log.clone(), valve.clone());
            clock.spawn(&format!("{number}"), move || {
                for turn in 0..4 {
                    valve
                        .run(|| {
                            log.note(&its_clock, format!("{number} starts {turn}"));
                            its_clock.sleep(MS * (number * 7 % 4));
                        })
                        .unwrap();
                }
                log.note(&its_clock, format!("{number} ends"));
            });
        }
        clock.advance(MS * 100);
        log.take()
    }
    let first = course();
    assert_eq!(first.len(), 6 * 5);
    for _ in 0..100 {
        assert_eq!(course(), first);
    }
}
