//! How much one call does at most, whatever it finds and however many it serves.

use valve::Rule;

use crate::redis::scripts::{LEASES, STATE, on_manual_time, turn_to};
use crate::redis::server::Server;
use crate::redis::world::{Counter, leases};
use crate::support::{SECOND, secs};

const START: u64 = 1_800_000_000 * SECOND;

/// Adds so many leases of others that end together.
fn add(server: &Server, count: u64, end: u64) {
    let before = leases(server);
    let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[2], 'x' .. i) end \
                  redis.call('PEXPIRE', KEYS[1], 600000)";
    server.cli(&["EVAL", script, "1", LEASES, &count.to_string(), &end.to_string()]);
    assert_eq!(leases(server) - before, count as i64);
}

#[test]
fn a_call_clears_away_256_ended_leases_and_counts_none() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    add(&server, 300, START);
    assert_eq!(counter.take(3, secs(60), &[1, 2]).unwrap().granted, 2);
    assert_eq!(leases(&server), 300 - 256 + 2);
    assert_eq!(counter.take(3, secs(60), &[3, 4]).unwrap().granted, 1);
    assert_eq!(leases(&server), 3);
    assert_eq!(counter.renew(secs(60), &[1, 2, 3, 4]).unwrap(), [true, true, true, false]);
}

#[test]
fn a_renewal_revives_no_ended_lease_that_is_still_there() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    assert_eq!(counter.take(9, secs(2), &[1]).unwrap().granted, 1);
    assert_eq!(counter.take(9, secs(60), &[2]).unwrap().granted, 1);
    add(&server, 600, START + SECOND);
    turn_to(&server, START + 3 * SECOND);
    // 602 are there, 601 have ended, and 256 go: the first token is the last of those.
    assert_eq!(counter.renew(secs(60), &[1, 2]).unwrap(), [false, true]);
    assert_eq!(leases(&server), 602 - 256);
    assert_eq!(counter.renew(secs(60), &[2, 1, 2]).unwrap(), [true, false, true]);
    assert_eq!(counter.renew(secs(60), &[1, 2]).unwrap(), [false, true]);
    assert_eq!(leases(&server), 1);
}

#[test]
fn a_renewal_in_the_same_microsecond_holds() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    counter.take(9, secs(60), &[1, 2]).unwrap();
    for _ in 0..2 {
        assert_eq!(counter.renew(secs(60), &[1, 7, 2]).unwrap(), [true, false, true]);
    }
}

/// The calls of the server's commands that one ask makes, itself included.
fn commands(server: &Server, ask: impl FnOnce()) -> u64 {
    server.cli(&["CONFIG", "RESETSTAT"]);
    ask();
    let stats = server.cli(&["INFO", "commandstats"]).text();
    let calls = |line: &str| Some(line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().unwrap());
    let scripts = stats.lines().filter(|line| !line.starts_with("cmdstat_config"));
    scripts.filter_map(calls).sum()
}

#[test]
fn the_number_of_commands_does_not_grow_with_the_batch() {
    let server = Server::start();
    let store = on_manual_time(&server);
    let rule = |limit| Rule::gcra(limit, secs(1)).burst(500).into();
    for (id, rules) in [
        ("none", vec![]),
        ("one", vec![rule(7)]),
        ("two", vec![rule(7), Rule::fixed_window(500, secs(9)).into()]),
    ] {
        let counter = Counter::of(id, &store, rules);
        turn_to(&server, START);
        let take = |tokens: std::ops::Range<u128>| {
            let tokens: Vec<_> = tokens.collect();
            commands(&server, || {
                assert_eq!(counter.take(500, secs(60), &tokens).unwrap().granted, tokens.len())
            })
        };
        take(0..1);
        let (one, many) = (take(1..2), take(2..66));
        assert!(many <= one && one <= 9, "{id}: {one} commands for one job, {many} for 64");
        let admit =
            |count| commands(&server, || assert_eq!(counter.admit(&vec![1; count]).unwrap().granted, count));
        admit(1);
        let (one, many) = (admit(1), admit(64));
        assert!(many <= one && one <= 5, "{id}: {one} commands for one job, {many} for 64");
        let renew = |count: u128| {
            let tokens: Vec<_> = (0..count).collect();
            commands(&server, || {
                assert!(!counter.renew(secs(400 - count as u64), &tokens).unwrap().contains(&false))
            })
        };
        renew(2);
        let (one, many) = (renew(1), renew(64));
        assert!(many <= one && one <= 8, "{id}: {one} commands for one lease, {many} for 64");
    }
}

/// How long the server was busy with its slowest command, in microseconds.
fn slowest(server: &Server, ask: impl FnOnce()) -> i64 {
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    server.cli(&["SLOWLOG", "RESET"]);
    ask();
    let log = server.cli(&["SLOWLOG", "GET", "50"]);
    log.array().iter().map(|entry| entry.array()[2].int()).max().unwrap()
}

#[test]
fn a_hundred_thousand_leases_hold_nobody_up() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    for (end, free) in [(START + 60 * SECOND, 1), (START, 2)] {
        server.cli(&["DEL", STATE, LEASES]);
        add(&server, 100_000, end);
        let held = 100_001 - u32::from(free == 2) * 100_000;
        let time = slowest(&server, || {
            assert_eq!(counter.take(held + 1, secs(60), &[1, 2]).unwrap().granted, 2);
            assert_eq!(counter.take(held + 1, secs(60), &[3]).unwrap().granted, 0);
            counter.renew(secs(60), &[1, 3]).unwrap();
            counter.release(&[1, 2]).unwrap();
        });
        // To clear all of them away at once takes 17 ms here, and holds up every client of the server.
        assert!(time < 10_000, "a script ran for {time} us");
    }
}
