//! A forked copy of the process, which has none of the threads that serve a valve.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use valve::{CancelToken, Error, Retry, Rule, Scheduler, Step, Valve};

use super::alone::alone;
use super::{check_sound, nap, seconds};

#[test]
fn a_forked_child_gets_an_error() {
    alone(concat!(module_path!(), "::a_forked_child_gets_an_error"), || {
        // Before anything of the crate was used, a fork is none of its business.
        in_a_child(|| {
            let valve = Valve::builder("child").rule(Rule::gcra(1_000, seconds(1))).build();
            let Ok(valve) = valve else { return 1 };
            let all_ran = (0..5).all(|_| valve.run(|| ()).is_ok());
            if all_ran { 0 } else { 2 }
        });

        let scheduler = Scheduler::new().unwrap();
        let rule = Rule::gcra(100_000, seconds(1)).burst(10);
        let valve =
            Valve::builder("parent").rule(rule).concurrency(2).scheduler(&scheduler).on_event(|_| ()).build();
        let valve = valve.unwrap();
        valve.run(|| ()).unwrap();
        let permit = valve.acquire_owned().unwrap();
        in_a_child(|| everything_is_refused(&valve, &scheduler, permit));
        assert_eq!(valve.stats().running, 0, "the parent dropped its own permit");
        check_sound(&valve, 2);

        // Whatever locks other threads hold at that instant, the child hangs on none.
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        valve.run(|| ()).unwrap();
                        let _ = valve.job().max_wait(Duration::from_micros(50)).run(|_| ());
                        let _ = valve.stats();
                    }
                });
            }
            for _ in 0..100 {
                let permit = valve.acquire_owned().unwrap();
                in_a_child(|| everything_is_refused(&valve, &scheduler, permit));
            }
            over.store(true, Ordering::Relaxed);
        });
        check_sound(&valve, 2);
        valve.drain(seconds(10)).unwrap();
        scheduler.shutdown(seconds(10)).unwrap();
    });
}

/// An attempt that forks ends in the child too, which gives nothing back and hangs on no lock.
#[test]
#[expect(unsafe_code, reason = "there is no safe fork")]
fn a_retry_whose_attempt_forks_ends_in_the_child() {
    alone(concat!(module_path!(), "::a_retry_whose_attempt_forks_ends_in_the_child"), || {
        let valve = Valve::builder("parent").concurrency(3).build().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        valve.run(|| ()).unwrap();
                        let _ = valve.job().max_wait(Duration::from_micros(50)).run(|_| ());
                    }
                });
            }
            for _ in 0..100 {
                let mut process = -1;
                let ran: Result<(), Error> = valve.job().retry(Retry::times(1)).run(|_, _| {
                    // SAFETY: the child ends an attempt, which promises to take no lock then, and calls `_exit`.
                    process = unsafe { libc::fork() };
                    Step::Done(())
                });
                if process == 0 {
                    let status = i32::from(!matches!(ran, Err(Error::Forked)));
                    // SAFETY: ends the child without running what belongs to its parent.
                    unsafe { libc::_exit(status) };
                }
                await_child(process);
                ran.unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        check_sound(&valve, 3);
    });
}

/// Gives the number of the first call in the list that did not answer as it should, or 0.
fn everything_is_refused(valve: &Valve, scheduler: &Scheduler, permit: valve::OwnedPermit) -> i32 {
    let refused = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
    let (soon, token) = (seconds(1), CancelToken::new());
    let job = || valve.job().max_wait(soon).cancel(&token);
    let mut answers = vec![
        refused(valve.run(|| ())),
        refused(valve.try_run(|| Ok(()))),
        refused(valve.acquire().map(drop)),
        refused(valve.acquire_owned().map(drop)),
        refused(valve.try_acquire().map(drop)),
        refused(job().run(|_| ())),
        refused(job().try_run(|_| Ok(()))),
        refused(job().acquire().map(drop)),
        refused(job().acquire_owned().map(drop)),
        refused(job().try_acquire().map(drop)),
        refused(valve.pause(soon)),
        refused(valve.resume()),
        refused(valve.drain(soon)),
        refused(Valve::builder("in the child").build().map(drop)),
        refused(Scheduler::new().map(drop)),
        refused(Scheduler::with_stack(1 << 16).map(drop)),
        refused(scheduler.shutdown(soon)),
    ];
    let ends = [valve.clone(), valve.clone()];
    valve.close();
    token.cancel();
    answers.push(valve.stats().running == 0);
    answers.push(refused(permit.finish()));
    drop(ends);
    answers.iter().position(|good| !good).map_or(0, |place| i32::try_from(place).unwrap_or(99) + 1)
}

/// Forks; the child ends with what `child` gives, and the test fails unless that is 0 and comes within 10 s.
#[track_caller]
#[expect(unsafe_code, reason = "there is no safe fork")]
pub(crate) fn in_a_child(child: impl FnOnce() -> i32) {
    // SAFETY: the child calls the crate under test, which promises to take no lock then, and `_exit`.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let status = child();
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit(status) };
    }
    await_child(process);
}

#[track_caller]
#[expect(unsafe_code, reason = "there is no safe fork")]
#[expect(clippy::disallowed_methods, reason = "how long the child takes in real time")]
fn await_child(process: libc::pid_t) {
    assert!(process >= 0, "{}", std::io::Error::last_os_error());
    let begin = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        let ended = unsafe { libc::waitpid(process, &mut status, libc::WNOHANG) };
        if ended == process {
            break;
        }
        if begin.elapsed() > seconds(10) {
            // SAFETY: a signal to our own child.
            unsafe { libc::kill(process, libc::SIGKILL) };
            panic!("the child hangs");
        }
        nap(1);
    }
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the first wrong answer");
}
