//! Valves with one rule and no limit count their jobs in counters of each thread. What depends on the sum must not notice:
//! figures, drains, and limits that come later.

#![expect(clippy::disallowed_methods, reason = "threads that give others real time")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use valve::{
    Answer, Ask, Blocked, Concurrency, Counts, Deadline, Error, Lease, MemoryStore, Quick, Remote, Rule,
    Store, StoreError, Token, Valve, Wake,
};

use crate::watchdog::watchdog;

fn rule() -> Rule {
    Rule::gcra(1_000_000_000, Duration::from_secs(1)).burst(1_000_000_000).into()
}

/// One whose next call is quick.
fn built() -> Valve {
    let valve = Valve::builder("id").rule(rule()).build().unwrap();
    drop(valve.try_acquire().unwrap());
    valve
}

fn limit(jobs: u32) -> Concurrency {
    Concurrency::unlimited().local(jobs)
}

#[test]
fn jobs_count_wherever_they_end() {
    let _watchdog = watchdog(60);
    let valve = built();
    let threads = 40;
    for round in 1..=20 {
        let together = Barrier::new(threads);
        let (sender, permits) = channel();
        thread::scope(|scope| {
            for _ in 0..threads {
                let sender = sender.clone();
                scope.spawn(|| {
                    together.wait();
                    let sender = sender;
                    for _ in 0..50 {
                        sender.send(valve.acquire_owned().unwrap()).unwrap();
                        drop(valve.try_acquire().unwrap());
                    }
                });
            }
        });
        drop(sender);
        let held: Vec<_> = permits.iter().collect();
        let stats = valve.stats();
        let finished = 1 + (2 * round - 1) * 50 * threads as u64;
        assert_eq!((stats.running, stats.finished), (50 * threads as u64, finished));
        thread::spawn(|| drop(held)).join().unwrap();
        let stats = valve.stats();
        assert_eq!((stats.running, stats.finished), (0, finished + 50 * threads as u64));
        assert_eq!(stats.started, stats.finished);
    }
}

#[test]
fn a_drain_ends_with_the_last_job_ten_thousand_times() {
    let _watchdog = watchdog(120);
    let (sender, permits) = sync_channel(1);
    let helper = thread::spawn(move || permits.iter().for_each(drop));
    for _ in 0..10_000 {
        let valve = built();
        let permit = valve.acquire_owned().unwrap();
        assert_eq!(valve.stats().running, 1);
        sender.send(permit).unwrap();
        valve.drain(Duration::MAX).unwrap();
        assert_eq!((valve.stats().running, valve.stats().finished), (0, 2));
    }
    drop(sender);
    helper.join().unwrap();
}

#[test]
fn nothing_starts_once_a_drain_is_over() {
    let _watchdog = watchdog(60);
    for _ in 0..500 {
        let valve = built();
        let (drained, starts) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        match valve.try_acquire() {
                            Ok(permit) => {
                                assert!(!drained.load(Ordering::Acquire), "it runs after the drain");
                                starts.fetch_add(1, Ordering::Relaxed);
                                drop(permit);
                            }
                            Err(Error::Closed) => break,
                            Err(Error::WouldWait { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                });
            }
            while starts.load(Ordering::Relaxed) < 10 {
                thread::yield_now();
            }
            valve.drain(Duration::MAX).unwrap();
            drained.store(true, Ordering::Release);
        });
        assert_eq!(valve.stats().finished, 1 + starts.into_inner() as u64);
    }
}

#[test]
fn a_limit_set_later_counts_those_who_run() {
    let _watchdog = watchdog(60);
    let valve = built();
    let mut held: Vec<_> = (0..3).map(|_| valve.try_acquire().unwrap()).collect();
    valve.set_concurrency(limit(2)).unwrap();
    for left in [3, 2] {
        assert_eq!(valve.stats().running, left);
        let refused = valve.try_acquire();
        assert!(
            matches!(refused, Err(Error::WouldWait { blocked_by: Blocked::LocalConcurrency, .. })),
            "{refused:?}"
        );
        drop(held.pop());
    }
    let second = valve.try_acquire().unwrap();
    assert!(valve.try_acquire().is_err(), "one of before and one of after the limit run");
    drop(held);
    let third = valve.try_acquire().unwrap();
    assert!(valve.try_acquire().is_err());
    drop((second, third));
    assert_eq!((valve.stats().running, valve.stats().finished), (0, 6));

    // And back: those of the word and those of the stripes run side by side.
    let counted = valve.try_acquire().unwrap();
    valve.set_concurrency(Concurrency::unlimited()).unwrap();
    drop(valve.try_acquire().unwrap());
    let free = valve.try_acquire().unwrap();
    assert_eq!(valve.stats().running, 2);
    valve.set_concurrency(limit(1)).unwrap();
    drop(counted);
    assert!(valve.try_acquire().is_err());
    drop(free);
    assert!(valve.try_acquire().is_ok());
}

#[test]
fn who_waits_for_a_slot_starts_when_one_of_before_the_limit_ends() {
    let _watchdog = watchdog(60);
    for _ in 0..200 {
        let valve = built();
        let held = [(); 2].map(|()| valve.try_acquire().unwrap());
        valve.set_concurrency(limit(1)).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| valve.run(|| valve.stats().running).unwrap());
            while valve.stats().queued == 0 {
                thread::yield_now();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }
}

/// Jobs that started before may be more. From when they are few enough, there are never more.
#[test]
fn a_limit_set_meanwhile_is_never_passed() {
    let _watchdog = watchdog(120);
    let valve = built();
    let (running, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let kept = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let permit = valve.acquire().unwrap();
                    let now = 1 + running.fetch_add(1, Ordering::SeqCst);
                    let passed = now > 1 && kept.load(Ordering::SeqCst);
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                    assert!(!passed, "{now} run");
                }
            });
        }
        for _ in 0..300 {
            valve.set_concurrency(limit(1)).unwrap();
            while valve.stats().running > 1 {
                thread::yield_now();
            }
            // Whoever has its permit by now is counted above.
            kept.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(300) {
                thread::yield_now();
            }
            kept.store(false, Ordering::SeqCst);
            valve.set_concurrency(Concurrency::unlimited()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(valve.stats().running, 0);
}

/// Called when a quick call has been counted: before the store decides, or after.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
struct Interrupted {
    inner: MemoryStore,
    before: Arc<Mutex<Option<Hook>>>,
    after: Arc<Mutex<Option<Hook>>>,
}

struct InterruptedCounts {
    inner: Arc<dyn Counts>,
    of: Interrupted,
}

impl Store for Interrupted {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(InterruptedCounts { inner: self.inner.open(id)?, of: self.clone() }))
    }

    fn remote(&self) -> Option<Remote> {
        None
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.inner.watch(wake)
    }
}

impl Counts for InterruptedCounts {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        self.inner.admit(ask, answer)
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.inner.renew(leases, deadline, held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.inner.release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.inner.pause(length, deadline)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.resume(deadline)
    }

    fn quick(&self, rules: u64, cost: u32) -> Quick {
        let (before, after) = (self.of.before.lock().take(), self.of.after.lock().take());
        before.into_iter().for_each(|hook| hook());
        let quick = self.inner.quick(rules, cost);
        after.into_iter().for_each(|hook| hook());
        quick
    }

    fn part_quick(&self) -> bool {
        self.inner.part_quick()
    }
}

/// Makes a quick call, and `meanwhile` before the store decides it, or just after.
#[track_caller]
fn check_overtaken(
    meanwhile: impl Fn(&Valve) + Clone + Send + 'static,
    check: impl Fn(&Valve, Result<valve::OwnedPermit, Error>),
) {
    for early in [true, false] {
        let store = Interrupted::default();
        let valve = Valve::builder("id").rule(rule()).store(store.clone()).build().unwrap();
        drop(valve.try_acquire().unwrap());
        let (hooked, meanwhile) = (valve.clone(), meanwhile.clone());
        let hook: Hook = Box::new(move || meanwhile(&hooked));
        *if early { &store.before } else { &store.after }.lock() = Some(hook);
        let ended = valve.acquire_owned();
        assert!(store.before.lock().is_none() && store.after.lock().is_none(), "it was not quick");
        check(&valve, ended);
    }
}

#[test]
fn a_call_overtaken_by_a_limit_is_counted_by_it() {
    let _watchdog = watchdog(60);
    let overtaken = |valve: &Valve, ended: Result<_, _>| {
        let permit = ended.unwrap();
        assert_eq!(valve.stats().running, 1);
        assert!(valve.try_acquire().is_err(), "two run under a limit of one");
        drop(permit);
        drop(valve.try_acquire().unwrap());
        drop(valve.try_acquire().unwrap());
        assert_eq!(valve.stats().running, 0);
    };
    check_overtaken(|valve| valve.set_concurrency(limit(1)).unwrap(), overtaken);
    let other_rules = |valve: &Valve| valve.set_rules([rule(), rule()]).unwrap();
    check_overtaken(other_rules, |valve, ended| {
        assert_eq!(valve.stats().running, 1);
        drop(ended.unwrap());
        assert_eq!((valve.stats().running, valve.stats().finished), (0, 2));
    });
}

#[test]
fn a_call_overtaken_by_a_drain_does_not_run() {
    let _watchdog = watchdog(60);
    let (drained, done) = channel();
    let meanwhile = move |valve: &Valve| {
        let (valve, drained) = (valve.clone(), drained.clone());
        let other = valve.clone();
        thread::spawn(move || drained.send(valve.drain(Duration::MAX)).unwrap());
        while !matches!(other.try_acquire(), Err(Error::Closed)) {
            thread::yield_now();
        }
    };
    check_overtaken(meanwhile, |_, ended| {
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        done.recv().unwrap().unwrap();
    });
}
