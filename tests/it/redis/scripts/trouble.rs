//! What the scripts cannot do they say before anything is spent: out of memory, without a right, on keys of others.

use valve::{Executed, Redis, RedisStore, Rule, StoreError, StoreErrorKind};

use crate::redis::scripts::{LEASES, STATE, contents};
use crate::redis::server::Server;
use crate::redis::world::{Counter, leases};
use crate::support::secs;

fn one_in_a_minute() -> [Rule; 1] {
    [Rule::gcra(1, secs(60)).burst(2).into()]
}

fn open(url: &str) -> RedisStore {
    RedisStore::new(&Redis::open(url).unwrap())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind, names: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.executed()), (kind, Executed::No), "{error}");
    for name in names {
        assert!(error.to_string().contains(name), "{error} does not name {name}");
    }
}

/// Every script ends up writing, and none is refused: each has a first write that needs no memory.
#[test]
fn all_goes_on_when_the_server_is_out_of_memory() {
    let server = Server::start();
    let store = open(&server.url());
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(server.cli(&["HSET", "a", "b", "c"]).is_error());
    let rated = Counter::of("rated", &store, one_in_a_minute());
    for expected in [1, 1, 0] {
        assert_eq!(rated.admit(&[1]).unwrap().granted, expected);
    }
    let held = Counter::new(&store, [Rule::fixed_window(9, secs(3_600)).into()]);
    assert_eq!(held.take(2, secs(60), &[1]).unwrap().granted, 1);
    assert_eq!(held.take(2, secs(60), &[2, 3]).unwrap().granted, 1);
    assert_eq!(held.renew(secs(60), &[1, 2, 3]).unwrap(), [true, true, false]);
    held.release(&[1]).unwrap();
    assert_eq!(held.renew(secs(60), &[1, 2]).unwrap(), [false, true]);
    let paused = Counter::of("paused", &store, []);
    assert_eq!(paused.pause(secs(60)).unwrap(), secs(60));
    assert!(!paused.admits());
    paused.resume().unwrap();
    assert!(paused.admits());
}

/// A user who may do all that is needed but `without`.
fn user_without(server: &Server, without: &[&str]) -> RedisStore {
    let mut parts = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~valve:*", "&*", "+@all"];
    parts.extend(without);
    assert!(!server.cli(&parts).is_error(), "{parts:?}");
    open(&format!("redis://limited:secret@{}", server.address()))
}

/// The budget was spent, and then the notice failed: the job did not start, and nobody else could for a minute.
#[test]
fn a_user_without_the_channel_loses_no_budget() {
    let server = Server::start();
    let full = Counter::new(&open(&server.url()), one_in_a_minute());
    let limited = Counter::new(&user_without(&server, &["resetchannels"]), one_in_a_minute());
    assert_eq!(limited.take(2, secs(60), &[1, 2]).unwrap().granted, 2);
    assert_eq!(full.admit(&[1]).unwrap().granted, 0);
    assert_eq!(limited.renew(secs(60), &[1, 2]).unwrap(), [true, true]);
    limited.release(&[1]).unwrap();
    assert_eq!(limited.pause(secs(60)).unwrap(), secs(60));
    limited.resume().unwrap();
    assert_eq!(leases(&server), 1);
}

#[test]
fn a_missing_right_is_found_before_anything_is_spent() {
    let server = Server::start();
    let full = Counter::new(&open(&server.url()), one_in_a_minute());
    for right in ["time", "hmget", "hset", "pexpire", "zadd", "zcard", "zcount", "zrem"] {
        server.cli(&["FLUSHALL"]);
        let limited = Counter::new(&user_without(&server, &[&format!("-{right}")]), one_in_a_minute());
        if right == "zcount" {
            // Asked only where there are leases.
            full.take(2, secs(60), &[9]).unwrap();
        }
        let before = (contents(&server, STATE), leases(&server));
        let result = limited.take(2, secs(60), &[1]);
        if right == "zrem" {
            assert_eq!(result.unwrap().granted, 1);
            let error = limited.release(&[1]).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Permission, "{error}");
            continue;
        }
        let error = result.unwrap_err();
        let refused = (StoreErrorKind::Permission, Executed::No);
        assert_eq!((error.kind(), error.executed()), refused, "without {right}: {error}");
        assert_eq!((contents(&server, STATE), leases(&server)), before, "without {right}: {error}");
        let left = if right == "zcount" { 1 } else { 2 };
        assert_eq!(full.admit(&[1; 3]).unwrap().granted, left, "without {right}");
    }
}

#[test]
fn keys_of_another_type_are_named_and_left_alone() {
    let server = Server::start();
    let counter = Counter::new(&open(&server.url()), one_in_a_minute());
    for key in [STATE, LEASES] {
        server.cli(&["FLUSHALL"]);
        server.cli(&["LPUSH", key, "theirs"]);
        let before = contents(&server, key);
        refused(counter.take(2, secs(60), &[1]), StoreErrorKind::Corrupt, &[key]);
        refused(counter.renew(secs(60), &[1]), StoreErrorKind::Corrupt, &[key]);
        if key == STATE {
            refused(counter.admit(&[1]), StoreErrorKind::Corrupt, &[key]);
            refused(counter.pause(secs(1)), StoreErrorKind::Corrupt, &[key]);
            refused(counter.resume(), StoreErrorKind::Corrupt, &[key]);
        } else {
            refused(counter.release(&[1]), StoreErrorKind::Corrupt, &[key]);
        }
        assert_eq!(contents(&server, key), before);
        assert_eq!(server.keys(), [key.as_bytes()]);
    }
}

#[test]
fn fields_of_another_layout_are_named_and_left_alone() {
    let server = Server::start();
    let store = open(&server.url());
    let window = Counter::new(&store, [Rule::fixed_window(2, secs(60)).into()]);
    let rated = Counter::new(&store, one_in_a_minute());
    let none = Counter::new(&store, []);
    for (field, value, counter) in [
        ("h", "", &none),
        ("h", "\x01too short", &none),
        ("h", &"\x02".repeat(57), &rated),
        ("gcra/1min", "theirs", &rated),
        ("gcra/1min", &"\x09".repeat(25), &rated),
        ("window/1min", "\x02", &window),
        ("window/1min", &"\x01".repeat(17), &window),
    ] {
        server.cli(&["FLUSHALL"]);
        assert!(counter.admits());
        server.cli(&["HSET", STATE, field, value]);
        let before = contents(&server, STATE);
        refused(counter.admit(&[1]), StoreErrorKind::Corrupt, &[STATE, field]);
        refused(counter.take(2, secs(60), &[1]), StoreErrorKind::Corrupt, &[STATE, field]);
        if field == "h" {
            refused(counter.renew(secs(60), &[1]), StoreErrorKind::Corrupt, &[STATE, field]);
            refused(counter.pause(secs(1)), StoreErrorKind::Corrupt, &[STATE, field]);
            refused(counter.resume(), StoreErrorKind::Corrupt, &[STATE, field]);
        }
        assert_eq!(contents(&server, STATE), before, "{field} {value:?}");
        assert_eq!(leases(&server), 0);
    }
}

/// Slots come free even if nobody can say who waits for them.
#[test]
fn a_release_needs_no_state() {
    let server = Server::start();
    let counter = Counter::new(&open(&server.url()), []);
    counter.take(2, secs(60), &[1, 2]).unwrap();
    server.cli(&["HSET", STATE, "h", "theirs"]);
    counter.release(&[1]).unwrap();
    assert_eq!(leases(&server), 1);
    server.cli(&["DEL", STATE]);
    counter.release(&[2]).unwrap();
    assert_eq!(leases(&server), 0);
}
