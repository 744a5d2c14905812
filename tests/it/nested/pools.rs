//! Jobs on a Rayon pool, whose threads run other tasks while they wait for one.

use std::sync::atomic::AtomicUsize;

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use valve::{Error, Rule, Valve};

use crate::fleet::add;
use crate::support::{ms, secs};
use crate::watchdog::watchdog;

fn pool(threads: usize) -> rayon::ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn sum() -> u64 {
    (0..2_000_u64).into_par_iter().map(|number| number % 7).sum()
}

/// O76: whichever thread steals what, each item ends, with its sum or with an error that says why not.
#[test]
fn nested_parallel_iterators_end() {
    let _hangs = watchdog(5);
    let expected = sum();
    for _ in 0..20 {
        let valve = Valve::builder("id").concurrency(1).build().unwrap();
        let ends: Vec<Result<u64, Error>> = pool(2).install(|| {
            (0..8).into_par_iter().map(|_| valve.job().max_wait(ms(20)).run(|_| sum())).collect()
        });
        assert_eq!(ends.len(), 8);
        for end in &ends {
            match end {
                Ok(sum) => assert_eq!(*sum, expected),
                Err(Error::Timeout { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(ends.iter().any(Result::is_ok));
        assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
        valve.run(|| ()).unwrap();
    }
}

/// O76: rates hold nobody up for ever.
#[test]
fn nested_parallel_iterators_under_a_rate_all_finish() {
    let _hangs = watchdog(5);
    let valve = Valve::builder("id").rule(Rule::gcra(8, ms(400))).build().unwrap();
    let expected = sum();
    let ends: Vec<_> = pool(2).install(|| (0..8).into_par_iter().map(|_| valve.run(sum).unwrap()).collect());
    assert_eq!(ends, [expected; 8]);
}

/// O76, made certain: a job that lets its thread take up another task, which wants the same slot.
#[test]
fn a_task_stolen_inside_a_job_would_deadlock() {
    let _hangs = watchdog(5);
    for global in [false, true] {
        let builder = Valve::builder("id");
        let valve = if global { builder.global_concurrency(1, secs(3)) } else { builder.concurrency(1) }
            .build()
            .unwrap();
        let (ran, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool(1).scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|_| {
                    match valve.run(|| while rayon::yield_now() == Some(rayon::Yield::Executed) {}) {
                        Ok(()) => add(&ran, 1),
                        Err(Error::WouldDeadlock) => add(&told, 1),
                        Err(other) => panic!("{other:?}"),
                    }
                });
            }
        });
        assert_eq!((ran.into_inner(), told.into_inner()), (1, 7), "global {global}");
        assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
    }
}
