//! `Redis::check`: what would stop a valve is said at start-up, with the cure, and nothing is left behind.

use std::time::Duration;

use valve::{Executed, Redis, StoreErrorKind as Kind};

use super::Stopwatch;
use super::server::{Server, free_address};

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
