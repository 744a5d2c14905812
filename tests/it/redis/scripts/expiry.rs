//! No key is without a TTL, none goes while what it holds matters, and no process shortens what another needs.

use crate::redis::scripts::{LEASES, STATE};
use crate::redis::server::Server;
use crate::redis::world::{Counter, store};
use crate::support::{Random, ms, secs};
use valve::{Redis, RedisStore, Rule};

const HOUR_MS: i64 = 3_600_000;

#[track_caller]
fn ttl(server: &Server, key: &str) -> i64 {
    server.cli(&["PTTL", key]).int()
}

/// The key lives so many milliseconds more, less what the test has taken, and a second that is added.
#[track_caller]
fn check(server: &Server, key: &str, expected: i64) {
    let left = ttl(server, key);
    assert!((expected - 5_000..=expected + 1_100).contains(&left), "{key} lives {left} ms, not {expected}");
}

fn plain(server: &Server) -> RedisStore {
    RedisStore::new(&Redis::open(&server.url()).unwrap())
}

#[test]
fn a_state_lives_as_long_as_what_was_spent_matters() {
    let server = Server::start();
    let store = plain(&server);
    assert!(Counter::new(&store, [Rule::gcra(1, secs(100)).burst(5).into()]).admits());
    check(&server, STATE, 100_000);
    assert!(Counter::new(&store, [Rule::gcra(1, secs(100)).burst(5).into()]).admits());
    check(&server, STATE, 200_000);
    assert!(Counter::of("window", &store, [Rule::fixed_window(1, secs(10)).into()]).admits());
    let left = ttl(&server, "valve:{window}");
    assert!((1..=11_000).contains(&left), "{left}");
    Counter::of("paused", &store, []).pause(secs(300)).unwrap();
    check(&server, "valve:{paused}", 300_000);
}

#[test]
fn the_last_fencing_token_is_remembered_for_an_hour() {
    let server = Server::start();
    let counter = Counter::new(&plain(&server), []);
    counter.take(5, secs(60), &[1]).unwrap();
    check(&server, STATE, HOUR_MS);
    check(&server, LEASES, 60_000);
    counter.take(5, secs(7_200), &[2]).unwrap();
    check(&server, STATE, 2 * HOUR_MS);
    check(&server, LEASES, 2 * HOUR_MS);
    counter.release(&[1, 2]).unwrap();
    assert_eq!(ttl(&server, LEASES), -2, "the empty set is gone");
    check(&server, STATE, 2 * HOUR_MS);
    // A new set goes by its own leases.
    counter.take(5, secs(60), &[3]).unwrap();
    check(&server, LEASES, 60_000);
}

#[test]
fn nobody_shortens_what_another_needs() {
    let server = Server::start();
    let store = plain(&server);
    let patient = Counter::new(&store, [Rule::gcra(1, secs(1_000)).into()]);
    let hasty = Counter::new(&store, [Rule::gcra(1_000, secs(1)).into()]);
    assert!(patient.admits());
    assert_eq!(patient.take(9, secs(900), &[1]).unwrap().granted, 0, "it would have to wait");
    assert_eq!(hasty.take(9, secs(900), &[1]).unwrap().granted, 1);
    for token in 2..8 {
        hasty.admit(&[1]).unwrap();
        hasty.take(9, ms(100), &[token]).unwrap();
        hasty.renew(ms(100), &[token]).unwrap();
        hasty.pause(ms(1)).unwrap();
        hasty.resume().unwrap();
        hasty.release(&[token]).unwrap();
    }
    check(&server, STATE, HOUR_MS);
    check(&server, LEASES, 900_000);
    assert_eq!(hasty.renew(secs(900), &[1]).unwrap(), [true]);
}

#[test]
fn a_renewal_has_both_keys_live_on() {
    let server = Server::start();
    let counter = Counter::new(&plain(&server), []);
    counter.take(5, secs(60), &[1]).unwrap();
    server.cli(&["PEXPIRE", STATE, "70000"]);
    assert_eq!(counter.renew(secs(9_000), &[1]).unwrap(), [true]);
    check(&server, STATE, 9_000_000);
    check(&server, LEASES, 9_000_000);
}

/// The state was evicted, the leases were not: they are still held, and live as long as the longest.
#[test]
fn leases_outlive_a_state_that_is_lost() {
    let server = Server::start();
    let counter = Counter::new(&plain(&server), []);
    counter.take(2, secs(600), &[1]).unwrap();
    server.cli(&["DEL", STATE]);
    assert_eq!(counter.take(2, secs(5), &[2, 3]).unwrap().granted, 1);
    check(&server, LEASES, 600_000);
    server.cli(&["DEL", STATE]);
    assert_eq!(counter.renew(secs(5), &[2]).unwrap(), [true]);
    check(&server, LEASES, 600_000);
    check(&server, STATE, HOUR_MS);
}

#[test]
fn no_key_is_ever_without_a_ttl() {
    let server = Server::start();
    let store = store(&server.url());
    let counters: Vec<_> = (0..4)
        .map(|count| {
            let interval = [ms(1), ms(20), secs(3), secs(100)][count];
            let gcra = Rule::gcra(3, interval).burst(2).into();
            Counter::of(["a", "a", "b", "c"][count], &store, [gcra, Rule::fixed_window(5, interval).into()])
        })
        .collect();
    let random = &mut Random::new(7);
    for step in 0..600 {
        let counter = &counters[random.below(4) as usize];
        let token = u128::from(random.below(6));
        match random.below(7) {
            0 => assert!(counter.admit(&[1, 2]).unwrap().granted <= 2),
            1 | 2 => {
                let ttl = [ms(1), ms(200), secs(90)][random.below(3) as usize];
                assert!(counter.take(4, ttl, &[token]).unwrap().granted <= 1);
            }
            3 => assert_eq!(counter.renew(secs(1), &[token]).unwrap().len(), 1),
            4 => counter.release(&[token]).unwrap(),
            5 => assert!(counter.pause(ms(1)).unwrap() >= ms(1)),
            _ => counter.resume().unwrap(),
        }
        for key in server.keys() {
            let left = server.ask(&[b"PTTL", &key]).int();
            let log = key.starts_with(b"log");
            assert!(
                log || left > 0 || left == -2,
                "{} has a TTL of {left} in step {step}",
                String::from_utf8_lossy(&key)
            );
        }
    }
}
