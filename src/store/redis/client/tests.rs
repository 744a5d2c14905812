//! Settings of a client, and the script with which it checks the server.

use super::*;
use crate::error::{Executed, StoreErrorKind};
use crate::store::redis::link::fake::{Command, Fake, Peer, Then, bulk};
use std::collections::BTreeSet;

#[track_caller]
fn check_invalid(builder: RedisBuilder, field: &str) {
    match builder.build() {
        Err(Error::Invalid { field: its_field, .. }) => assert_eq!(its_field, field),
        other => panic!("{field}: {other:?}"),
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let builder = || Redis::builder("redis://localhost");
    check_invalid(Redis::builder("redis//localhost"), "url");
    for length in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3601), Duration::MAX] {
        check_invalid(builder().timeout(length), "timeout");
        check_invalid(builder().connect_timeout(length), "connect_timeout");
    }
    for connections in [0, 65, u32::MAX] {
        check_invalid(builder().connections(connections), "connections");
    }
    for prefix in ["{", "a}b", &"x".repeat(257)] {
        check_invalid(builder().prefix(prefix), "prefix");
    }
    for good in [
        builder().timeout(Duration::from_millis(1)).connect_timeout(Duration::from_secs(3600)),
        builder().connections(1).prefix("").subscriber(Subscriber::Off),
        builder().connections(64).prefix("x".repeat(256)),
    ] {
        good.build().unwrap();
    }
}

#[test]
fn no_debug_output_shows_a_password() {
    let builder = Redis::builder("redis://me:hunter2@localhost/3");
    assert!(!format!("{builder:?}").contains("hunter2"));
    let redis = builder.build().unwrap();
    let shown = format!("{redis:?}");
    assert!(!shown.contains("hunter2") && shown.contains("localhost:6379"), "{shown}");
}

#[test]
fn after_close_the_server_is_not_asked() {
    let fake = Fake::answering(|_, _| Then::HangUp);
    let redis = Redis::open(&format!("redis://{}", fake.target())).unwrap();
    assert_eq!(fake.accepted(), 0, "nothing is asked before the first call");
    redis.close(Duration::from_secs(1)).unwrap();
    let error = redis.check().unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    assert_eq!(fake.accepted(), 0);
}

/// Answers a script with success, and everything else with a refusal.
fn willing(peer: &mut Peer, command: &Command) -> Then {
    let answer = match command[0].as_slice() {
        b"EVALSHA" => bulk(&[&1e9_f64.to_be_bytes()[..], &[0]].concat()),
        _ => b"-NOPERM no\r\n".to_vec(),
    };
    peer.say(&answer);
    Then::Listen
}

#[test]
fn the_check_passes_where_the_script_does() {
    let fake = Fake::answering(willing);
    let redis = Redis::open(&format!("redis://{}", fake.target())).unwrap();
    redis.check().unwrap();
}

#[test]
fn close_ends_the_connections() {
    let (gone, ended) = crossbeam_channel::unbounded();
    let fake = Fake::new(move |peer| {
        peer.greet();
        while let Some(command) = peer.command() {
            willing(peer, &command);
        }
        gone.send(()).unwrap();
    });
    let redis = Redis::open(&format!("redis://{}", fake.target())).unwrap();
    redis.check().unwrap();
    redis.close(Duration::from_secs(60)).unwrap();
    // The one that asked for the policy, and the pool's.
    for _ in 0..2 {
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn a_server_that_hangs_in_the_handshake_is_named_within_the_timeout() {
    let fake = Fake::new(Peer::stall);
    let redis = Redis::open(&format!("redis://:hunter2@{}", fake.target())).unwrap();
    let begin = Clock::System.now();
    let error = redis.check().unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Timeout, Executed::No), "{error}");
    assert!(error.to_string().contains("has not answered in time"), "{error}");
    assert!(Clock::System.now() - begin < 10_000_000);
}

/// The names of the commands in a script: they alone are more than three quoted capitals, but for one option.
fn commands(script: &str) -> BTreeSet<&str> {
    let quoted = script.split('\'').filter(|part| part.bytes().all(|byte| byte.is_ascii_uppercase()));
    quoted.filter(|part| part.len() > 3 && *part != "WITHSCORES").collect()
}

#[test]
fn the_check_tries_every_command_that_the_scripts_use() {
    let tried = commands(include_str!("../scripts/check.lua"));
    let scripts = Scripts::new(&Probe::default());
    let used = [&scripts.admit, &scripts.renew, &scripts.release, &scripts.pause, &scripts.resume];
    let used: BTreeSet<&str> = used.into_iter().flat_map(|script| commands(script.text())).collect();
    assert!(used.contains("TIME") && used.contains("PUBLISH"), "{used:?}");
    assert_eq!(tried, used);
}
