//! What outlives the process, and what does not keep it alive.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use valve::{MemoryEngine, Ran, Scheduler, ThrottleError};

use super::stage::Throttle;
use crate::support::{ms, secs};
use crate::trouble::Footprint;
use crate::trouble::alone::{alone, command, is_alone};
use crate::trouble::fork::in_a_child;
use crate::watchdog::watchdog;

const LAST_WORDS: &str = "main is over";
const NEVER: &str = "a run that never happens";

#[test]
fn a_pending_run_is_lost_with_the_process_and_keeps_none_alive() {
    let test = concat!(module_path!(), "::a_pending_run_is_lost_with_the_process_and_keeps_none_alive");
    if is_alone() {
        return a_program();
    }
    let _watchdog = watchdog(60);
    // One run in which the machine has something better to do proves nothing.
    let took: Vec<_> = (0..3).map(|_| until_its_exit(test)).collect();
    assert!(took.iter().min() <= Some(&ms(200)), "it went on for {took:?}");
    assert!(took.iter().max() <= Some(&secs(8)), "it went on for {took:?}");
}

/// Leaves behind an open window, one with a pending run, and workers and extensions that have threads.
fn a_program() {
    let engine = MemoryEngine::new();
    let builder = |prefix: &str, window| Throttle::builder(prefix).window(window);
    let private = builder("private:", secs(10)).build().unwrap();
    let shared = builder("shared:", secs(10)).engine(engine).build().unwrap();
    for throttle in [&private, &shared] {
        for key in ["idle", "pending"] {
            let _ = throttle.job(key, |_run| Ok(0)).exec().unwrap();
        }
        let given = throttle.job("pending", |_run| {
            say(NEVER);
            Ok(0)
        });
        assert_eq!(given.exec().unwrap(), Ran::Later);
    }
    let used = builder("used:", ms(5)).build().unwrap();
    for _ in 0..2 {
        used.job("k", |_run| Ok(0)).wait_finish().timeout(secs(5)).exec().unwrap();
    }
    say(LAST_WORDS);
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn say(words: &str) {
    println!("{words}");
}

/// How long the program goes on after its last words.
#[expect(clippy::disallowed_methods, reason = "how long a process takes in real time")]
fn until_its_exit(test: &str) -> Duration {
    let mut program = command(test, "yes").stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(program.stdout.take().unwrap());
    let mut over = None;
    for line in output.lines().map(Result::unwrap) {
        assert!(!line.contains(NEVER), "it ran what was pending");
        if line.contains(LAST_WORDS) {
            over = Some(Instant::now());
        }
    }
    let status = program.wait().unwrap();
    assert!(status.success(), "{status}");
    over.expect("it never came to its end").elapsed()
}

#[test]
fn the_last_handle_may_go_inside_a_run_and_no_thread_stays() {
    alone(concat!(module_path!(), "::the_last_handle_may_go_inside_a_run_and_no_thread_stays"), || {
        let before = Footprint::settled();
        for shared in [false, true] {
            let scheduler = Scheduler::new().unwrap();
            let builder = Throttle::builder("p:").window(ms(150)).scheduler(&scheduler);
            let builder = if shared { builder.engine(MemoryEngine::new()) } else { builder };
            let throttle = builder.build().unwrap();
            drop(scheduler);
            let (went, gone) = std::sync::mpsc::channel();
            // Also by a run that outlasts its lease.
            for (key, lasts) in [("a", 0), ("b", 0), ("long", 400)] {
                assert_eq!(throttle.job(key, |_run| Ok(0)).exec().unwrap(), Ran::Now);
                let (held, went) = (throttle.clone(), went.clone());
                let job = throttle.job(key, move |_run| {
                    nap(lasts);
                    went.send(()).unwrap();
                    drop(held);
                    Ok(0)
                });
                assert_eq!(job.exec().unwrap(), Ran::Later);
            }
            drop((throttle, went));
            for _ in 0..3 {
                gone.recv_timeout(secs(10)).unwrap();
            }
            assert!(gone.recv_timeout(secs(10)).is_err(), "a closure is kept after its run");
            if !shared {
                // A shared engine sweeps on the process's own scheduler, which stays.
                before.check_back();
            }
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "a run that takes real time")]
fn nap(lasts: u64) {
    std::thread::sleep(ms(lasts));
}

#[test]
fn a_forked_child_gets_an_error_from_its_throttle() {
    alone(concat!(module_path!(), "::a_forked_child_gets_an_error_from_its_throttle"), || {
        let engine = MemoryEngine::new();
        let throttle = Throttle::builder("p:").window(secs(60)).engine(engine.clone()).build().unwrap();
        for _ in 0..2 {
            let _ = throttle.job("k", |_run| Ok(0)).exec().unwrap();
        }
        in_a_child(|| everything_is_refused(&throttle, &engine));
        assert_eq!(throttle.stats().pending, 1);
        throttle.destroy();
    });
}

/// Gives the number of the first call in the list that did not answer as it should, or 0.
fn everything_is_refused(throttle: &Throttle, engine: &MemoryEngine) -> i32 {
    use valve::{Engine, SetOptions};
    fn forked<T>(given: Result<T, ThrottleError<String>>) -> bool {
        matches!(given, Err(ThrottleError::Forked))
    }
    let job = || throttle.job("k", |_run| Ok(0));
    let answers = [
        forked(job().exec()),
        forked(job().wait_finish().exec()),
        forked(job().wait_finish().timeout(secs(1)).exec()),
        throttle.flush() == 0,
        matches!(throttle.shutdown(secs(1)), Err(valve::Error::Forked)),
        throttle.stats().keys == 0,
        matches!(Throttle::builder("q:").build(), Err(valve::Error::Forked)),
        engine.get("p:k").is_err(),
        engine.set("p:k", "1", SetOptions::new(secs(1))).is_err(),
        engine.del("p:k").is_err(),
        engine.clear().is_err(),
    ];
    throttle.destroy();
    drop((throttle.clone(), engine.clone()));
    answers.iter().position(|good| !good).map_or(0, |place| i32::try_from(place).unwrap_or(99) + 1)
}
