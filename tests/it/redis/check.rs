//! `Redis::check`: what would stop a valve is said at start-up, with the cure, and nothing is left behind.

use std::thread;
use std::time::Duration;

use valve::{
    Engine, Executed, OnStoreError, Redis, RedisEngine, RedisStore, Rule, SetOptions, StoreErrorKind as Kind,
    Valve, ValveBuilder,
};

use super::server::{Server, free_address};
use super::world::logged;
use super::{Stopwatch, nap};
use crate::repository::read;
use crate::support::{ms, secs};

/// The check fails for certain, for this reason, and names it.
#[track_caller]
fn check_fails(url: &str, kind: Kind, says: &str) {
    let watch = Stopwatch::start();
    let error = Redis::open(url).unwrap().check().unwrap_err();
    assert_eq!((error.kind(), error.executed()), (kind, Executed::No), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert!(watch.elapsed() < Duration::from_secs(10));
}

#[track_caller]
fn check_passes(url: &str) {
    Redis::open(url).unwrap().check().unwrap();
}

#[test]
fn a_sound_server_passes_and_keeps_nothing() {
    let server = Server::start();
    for end in ["", "/", "/15", "/0?"] {
        check_passes(&format!("{}{end}", server.url()));
    }
    let redis = Redis::open(&server.url()).unwrap();
    for _ in 0..10 {
        redis.check().unwrap();
    }
    let watch = Stopwatch::start();
    while !server.keys().is_empty() {
        assert!(watch.elapsed() < Duration::from_secs(10), "{:?}", server.keys());
    }
}

#[test]
fn a_wrong_address_password_or_database_is_named() {
    let server = Server::start();
    let place = server.address();
    server.cli(&["ACL", "SETUSER", "me", "on", ">hunter2", "~*", "&*", "+@all"]);
    check_passes(&format!("redis://me:hunter2@{place}/3"));
    check_fails(&format!("redis://me:hunter2@{place}/16"), Kind::Other, "no such database");
    check_fails(&format!("redis://me:hunter23@{place}"), Kind::Auth, "correct it");
    check_fails(&format!("redis://you:hunter2@{place}"), Kind::Auth, "correct it");
    check_fails(&format!("redis://:hunter2@{place}"), Kind::Auth, "the server has no password");
    server.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    check_fails(&server.url(), Kind::Auth, "put it into the URL");
    check_passes(&format!("redis://:hunter2@{place}"));
    check_fails(&format!("redis://{}", free_address()), Kind::Unreachable, "refuses connections");
}

#[test]
fn each_missing_right_is_named() {
    let server = Server::start();
    let url = format!("redis://me:hunter2@{}", server.address());
    for (command, says) in [
        ("evalsha", "'evalsha'"),
        ("eval", "'eval'"),
        ("time", "'time'"),
        ("zremrangebyrank", "ZREMRANGEBYRANK"),
        ("zadd", "ZADD"),
        ("pexpire", "PEXPIRE"),
        ("hdel", "HDEL"),
        ("zcard", "ZCARD"),
        ("zcount", "ZCOUNT"),
        ("zmscore", "ZMSCORE"),
        ("zrevrange", "ZREVRANGE"),
        ("zrem", "ZREM"),
        ("hset", "HSET"),
        ("hget", "HGET"),
        ("hmget", "HMGET"),
        ("publish", "PUBLISH"),
    ] {
        let right = format!("-{command}");
        server.cli(&[
            "ACL", "SETUSER", "me", "reset", "on", ">hunter2", "~valve:*", "&valve:*", "+@all", &right,
        ]);
        server.cli(&["SCRIPT", "FLUSH"]);
        let error = Redis::open(&url).unwrap().check().unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{command}: {error}");
        assert!(error.to_string().contains(says) && error.to_string().contains("ACL SETUSER"), "{error}");
    }
    let base = ["ACL", "SETUSER", "me", "reset", "on", ">hunter2", "+@all"];
    server.cli(&[&base[..], &["~valve:*"]].concat());
    check_permission(&url, "(at PUBLISH)");
    server.cli(&[&base[..], &["&valve:*", "~other:*"]].concat());
    check_permission(&url, "keys");
    server.cli(&[&base[..], &["&valve:*", "~valve:*"]].concat());
    check_passes(&url);
}

/// A valve of everything, and a throttle: nothing is refused, and nobody is warned.
#[test]
fn the_rights_that_the_documentation_lists_are_enough() {
    let server = Server::start();
    logged();
    let page = read("src/store/redis/client.rs");
    let from = page.find("ACL SETUSER app").unwrap();
    let listed = page[from..].split("```").next().unwrap().replace("///", " ");
    let listed: Vec<_> = listed.split_whitespace().collect();
    assert!(!server.cli(&[&listed[..], &["~room:*", "+get", "+set", "+del"]].concat()).is_error());
    let url = format!("redis://app:password@{}/3", server.address());
    check_passes(&url);
    let (one, two) = (Redis::open(&url).unwrap(), Redis::open(&url).unwrap());
    let build = |redis| {
        let rates =
            [Rule::from(Rule::gcra(1_000, ms(1_000)).burst(9)), Rule::fixed_window(1_000, secs(1)).into()];
        let builder = rates.into_iter().fold(Valve::builder("id"), ValveBuilder::rule);
        let builder = builder.global_concurrency(1, secs(2)).on_store_error(OnStoreError::Fail);
        builder.store(RedisStore::new(redis)).build().unwrap()
    };
    let (here, there) = (build(&one), build(&two));
    thread::scope(|scope| {
        let held = here.acquire().unwrap();
        let waiter = scope.spawn(|| there.run(|| ()));
        nap(1_300);
        held.finish().unwrap();
        waiter.join().unwrap().unwrap();
    });
    here.pause(secs(60)).unwrap();
    assert!(there.try_acquire().is_err());
    here.resume().unwrap();
    let engine = RedisEngine::new(&one);
    let options = SetOptions::new(secs(1));
    assert!(
        engine.set("room:1", "1", options).unwrap()
            && !engine.set("room:1", "1", options.if_absent()).unwrap()
    );
    assert_eq!(engine.get("room:1").unwrap().as_deref(), Some("1"));
    engine.del("room:1").unwrap();
    let warned: Vec<_> = logged().into_iter().filter(|line| line.starts_with("WARN")).collect();
    assert!(warned.is_empty(), "{warned:?}");
}

#[track_caller]
fn check_permission(url: &str, says: &str) {
    let error = Redis::open(url).unwrap().check().unwrap_err();
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_server_that_takes_no_writes_is_named() {
    let server = Server::start();
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    check_fails(&server.url(), Kind::ReadOnly, "min-replicas-to-write");
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    check_fails(&server.url(), Kind::ReadOnly, "point the URL at the master");
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    check_fails(&server.url(), Kind::Busy, "lost its master");
}

#[test]
fn a_foreign_value_under_the_checks_key_is_named_and_kept() {
    let server = Server::start();
    let key = "valve:check:{check}";
    server.cli(&["SET", key, "mine"]);
    check_fails(&server.url(), Kind::Corrupt, key);
    assert_eq!(server.cli(&["GET", key]).text(), "mine");
}

#[test]
fn a_server_that_does_not_know_auth_gets_the_password_into_no_error() {
    let server = Server::with(&["--rename-command", "AUTH", ""]);
    check_fails(&format!("redis://me:hunter2@{}", server.address()), Kind::Permission, "lacks a command");
}
