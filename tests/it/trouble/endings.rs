//! A program that ends while valves wait.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use valve::{MemoryStore, Remote, Rule, Valve};

use super::alone::{command, is_alone};
use super::{millis, seconds};
use crate::hooked::Hooked;
use crate::watchdog::watchdog;

const LAST_WORDS: &str = "main is over";

#[test]
fn a_waiting_timer_keeps_no_process_alive() {
    let test = concat!(module_path!(), "::a_waiting_timer_keeps_no_process_alive");
    if is_alone() {
        return a_program();
    }
    let _watchdog = watchdog(60);
    // One run in which the machine has something better to do proves nothing.
    let took: Vec<_> = (0..3).map(|_| until_its_exit(test)).collect();
    assert!(took.iter().min() <= Some(&millis(200)), "it went on for {took:?}");
    assert!(took.iter().max() <= Some(&seconds(10)), "it went on for {took:?}");
}

/// Leaves behind all that could wait: calls that wait for a rule, a pause and a deadline, and threads of every kind.
fn a_program() {
    let rule = || Rule::gcra(1, seconds(60));
    let used = Valve::builder("used").rule(rule()).build().unwrap();
    used.run(|| ()).unwrap();
    let waited_for = Valve::builder("waited for").rule(rule()).build().unwrap();
    let paused = Valve::builder("paused").on_event(|_| ()).build().unwrap();
    let store = Hooked::new(MemoryStore::new(), Some(Remote::default()), |_| Ok(()));
    let remote = Valve::builder("remote").rule(rule()).store(store).build().unwrap();
    paused.pause(seconds(60)).unwrap();
    for valve in [&waited_for, &paused, &remote] {
        for wait in [seconds(120), Duration::MAX] {
            let valve = valve.clone();
            let calls = move || while valve.job().max_wait(wait).run(|_| ()).is_ok() {};
            thread::Builder::new().spawn(calls).unwrap();
        }
    }
    for valve in [&waited_for, &paused, &remote] {
        while valve.stats().queued < 2 {
            thread::yield_now();
        }
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
    for line in output.lines() {
        if line.unwrap().contains(LAST_WORDS) {
            over = Some(Instant::now());
        }
    }
    let status = program.wait().unwrap();
    assert!(status.success(), "{status}");
    over.expect("it never came to its end").elapsed()
}
