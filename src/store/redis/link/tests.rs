//! One connection against servers that behave, and servers that do not.

use super::fake::{Fake, Then, bulk, pause, within_ms};
use super::*;
use crate::error::StoreErrorKind as Kind;
use crossbeam_channel::unbounded;
use std::time::Duration;

#[test]
fn the_handshake_logs_in_then_selects_then_asks_the_time() {
    let (heard, commands) = unbounded();
    let fake = Fake::new(move |peer| {
        while let Some(command) = peer.command() {
            let answer: &[u8] =
                if command[0] == b"TIME" { b"*2\r\n$10\r\n1700000000\r\n$2\r\n25\r\n" } else { b"+OK\r\n" };
            heard
                .send(
                    command.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>(),
                )
                .unwrap();
            peer.say(answer);
        }
    });
    let place = fake.target().to_string();
    for (url, expected) in [
        (format!("redis://{place}"), vec!["TIME"]),
        (format!("redis://:secret@{place}/0"), vec!["AUTH secret", "TIME"]),
        (format!("redis://me:s%20t@{place}/7"), vec!["AUTH me s t", "SELECT 7", "TIME"]),
    ] {
        let link = Link::connect(&Target::parse(&url).unwrap(), &within_ms(5_000)).unwrap();
        let said: Vec<String> = commands.try_iter().map(|parts: Vec<String>| parts.join(" ")).collect();
        assert_eq!(said, expected);
        assert!((1_700_000_000_000_025..1_700_000_010_000_000).contains(&link.server_time()));
    }
}

/// Connecting to a server that answers the first command so fails for certain, with this kind of error.
#[track_caller]
fn check_refused(answer: &'static [u8], kind: Kind, says: &str) -> StoreError {
    let fake = Fake::new(move |peer| {
        peer.command();
        peer.say(answer);
    });
    let target = Target::parse(&format!("redis://me:hunter2@{}", fake.target())).unwrap();
    let error = Link::connect(&target, &within_ms(5_000)).err().unwrap();
    assert_eq!((error.kind(), error.executed()), (kind, Executed::No), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    error
}

#[test]
fn a_login_that_is_refused_says_why_and_never_the_password() {
    check_refused(
        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        Kind::Auth,
        "correct it",
    );
    check_refused(b"-ERR invalid password\r\n", Kind::Auth, "correct it");
    check_refused(
        b"-ERR Client sent AUTH, but no password is set\r\n",
        Kind::Auth,
        "the server has no password: take it out of the URL",
    );
    check_refused(
        b"-ERR unknown command `AUTH`, with args beginning with: `me`, `hunter2`, \r\n",
        Kind::Permission,
        "lacks a command",
    );
    check_refused(b"-hunter2 hunter2\r\n", Kind::Auth, "to AUTH");
    check_refused(b"-ERR max number of clients reached\r\n", Kind::Busy, "maxclients");
    check_refused(
        b"-DENIED Redis is running in protected mode because\r\n",
        Kind::Permission,
        "protected mode",
    );
    check_refused(b"-LOADING Redis is loading the dataset in memory\r\n", Kind::Busy, "loading");
    check_refused(b"HTTP/1.1 400 Bad Request\r\n\r\n", Kind::Protocol, "makes no sense");
    check_refused(b"", Kind::Unreachable, "closed the connection");
}

#[test]
fn a_server_that_hangs_in_the_handshake_is_given_up_at_the_deadline() {
    let fake = Fake::new(|peer| peer.stall());
    let target = Target::parse(&format!("redis://:hunter2@{}", fake.target())).unwrap();
    let error = Link::connect(&target, &within_ms(50)).err().unwrap();
    assert_eq!((error.kind(), error.executed()), (Kind::Timeout, Executed::No), "{error}");
}

#[test]
fn whatever_fails_in_the_handshake_nothing_was_done() {
    for stalls in [false, true] {
        let fake = Fake::new(move |peer| {
            peer.command();
            if stalls {
                peer.stall();
            }
        });
        let error = Link::connect(&fake.target(), &within_ms(200)).err().unwrap();
        assert_eq!(error.executed(), Executed::No, "{error}");
    }
}

#[test]
fn a_time_that_is_none_is_no_handshake() {
    for answer in [&b"+OK\r\n"[..], b"*1\r\n$1\r\n1\r\n", b"*2\r\n$1\r\nx\r\n$1\r\n1\r\n", b":5\r\n"] {
        let fake = Fake::new(move |peer| {
            peer.command();
            peer.say(answer);
        });
        let error = Link::connect(&fake.target(), &within_ms(5_000)).err().unwrap();
        assert_eq!((error.kind(), error.executed()), (Kind::Protocol, Executed::No), "{error}");
    }
}

#[test]
fn replies_are_read_whole_and_leave_the_connection_good() {
    let text = bulk(&[b'x'; 100_000]);
    let long = vec![b'x'; 100_000];
    for (bytes, expected) in [
        (b"+OK\r\n".to_vec(), Ok(Reply::Status("OK".to_owned()))),
        (b"+QUEUED\r\n".to_vec(), Ok(Reply::Status("QUEUED".to_owned()))),
        (b":-7\r\n".to_vec(), Ok(Reply::Int(-7))),
        (b"$-1\r\n".to_vec(), Ok(Reply::Nil)),
        (text, Ok(Reply::Bytes(long))),
        (
            b"*2\r\n$1\r\na\r\n:1\r\n".to_vec(),
            Ok(Reply::Array(vec![Reply::Bytes(b"a".to_vec()), Reply::Int(1)])),
        ),
        (b"-ERR no\r\n".to_vec(), Err("ERR no".to_owned())),
    ] {
        let fake = Fake::answering(move |peer, _| {
            // In two parts, so that the first read never has it all.
            let (head, tail) = bytes.split_at(bytes.len() / 2);
            peer.say(head);
            pause(Duration::from_millis(1));
            peer.say(tail);
            Then::Listen
        });
        let mut link = fake.link();
        for _ in 0..2 {
            assert_eq!(link.ask(&[b"GET"], &within_ms(5_000)).unwrap(), expected);
            assert!(!link.bad);
        }
    }
}

/// After such bytes the connection is never used again; the error says how it went.
#[track_caller]
fn check_lost(bytes: &[u8], end: Then, kind: Kind) {
    let (said, bytes) = (bytes.to_vec(), bytes);
    let hang_up = end == Then::HangUp;
    let fake = Fake::answering(move |peer, _| {
        peer.say(&said);
        if hang_up { Then::HangUp } else { Then::Listen }
    });
    let mut link = fake.link();
    assert!(!link.bad);
    let lost = link.ask(&[b"GET"], &within_ms(30)).unwrap_err();
    let error = lost.error("the fake", Executed::Unknown);
    let what = String::from_utf8_lossy(bytes);
    assert_eq!((error.kind(), error.executed()), (kind, Executed::Unknown), "{what}");
    assert!(link.bad, "{what}");
    assert!(link.received.capacity() < 1 << 20, "{what}");
}

#[test]
fn a_reply_that_is_cut_anywhere_is_no_reply() {
    let reply = b"*2\r\n$5\r\nhello\r\n:12\r\n";
    for cut in 0..reply.len() {
        check_lost(&reply[..cut], Then::HangUp, Kind::Unreachable);
    }
    for cut in (0..reply.len()).step_by(3) {
        check_lost(&reply[..cut], Then::Listen, Kind::Timeout);
    }
}

#[test]
fn what_no_redis_would_say_is_no_reply() {
    let nested = [b"*1\r\n".repeat(100_000), b":1\r\n".to_vec()].concat();
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..],
        b"$999999999999\r\n",
        b"*999999999\r\n",
        b"*1048576\r\n$1048577\r\n",
        b":twelve\r\n",
        b"+\xff\xfe\r\n",
        b"*2\r\n-ERR within\r\n:1\r\n",
        &nested,
    ] {
        check_lost(bytes, Then::Listen, Kind::Protocol);
    }
}

#[test]
fn a_reply_too_many_is_never_taken_for_an_answer() {
    let fake = Fake::answering(|peer, _| {
        peer.say(b":1\r\n:2\r\n");
        Then::Listen
    });
    let mut link = fake.link();
    assert_eq!(link.ask(&[b"GET"], &within_ms(5_000)).unwrap(), Ok(Reply::Int(1)));
    assert!(link.bad || !link.stream.is_quiet(), "the second reply was not noticed");
}

#[test]
fn a_reply_that_drips_does_not_stretch_the_call() {
    let fake = Fake::answering(|peer, _| {
        while peer.say(b"+") {
            pause(Duration::from_millis(2));
        }
        Then::HangUp
    });
    let mut link = fake.link();
    let begin = Clock::System.now();
    let lost = link.ask(&[b"GET"], &within_ms(60)).unwrap_err();
    assert!(matches!(lost, Lost::Unanswered(error) if error.kind() == io::ErrorKind::TimedOut));
    // Each byte came well within a time limit for single reads.
    assert!(Clock::System.now() - begin < 1_000_000);
    assert!(link.bad);
}

#[test]
fn a_command_that_is_not_taken_is_given_up_at_the_deadline() {
    let fake = Fake::new(|peer| {
        peer.greet();
        peer.ignore(Duration::from_secs(20));
    });
    let mut link = fake.link();
    let begin = Clock::System.now();
    let lost = link.ask(&[b"SET", b"key", &vec![0; 16 << 20]], &within_ms(500)).unwrap_err();
    assert!(matches!(lost, Lost::Unanswered(error) if error.kind() == io::ErrorKind::TimedOut));
    assert!(Clock::System.now() - begin < 10_000_000);
    assert!(link.bad);
}

#[test]
fn a_message_that_is_cut_by_a_deadline_is_not_lost() {
    let (go_on, may) = unbounded::<()>();
    let fake = Fake::answering(move |peer, _| {
        for part in [&b"*3\r\n$7\r\nmess"[..], b"age\r\n$1\r\nc\r\n$2\r\n", b"hi\r\n:5\r\n"] {
            peer.say(part);
            let _ = may.recv();
        }
        Then::Listen
    });
    let mut link = fake.link();
    link.send(&[b"SUBSCRIBE", b"c"], &within_ms(5_000)).unwrap();
    for _ in 0..2 {
        assert_eq!(link.receive(&within_ms(20)).unwrap(), None);
        go_on.send(()).unwrap();
    }
    let parts = [&b"message"[..], b"c", b"hi"].map(|part| Reply::Bytes(part.to_vec()));
    assert_eq!(link.receive(&within_ms(5_000)).unwrap(), Some(Reply::Array(parts.to_vec())));
    assert_eq!(link.receive(&within_ms(5_000)).unwrap(), Some(Reply::Int(5)));
    go_on.send(()).unwrap();
}

#[test]
fn who_waits_on_a_connection_is_woken_by_its_closer() {
    let fake = Fake::answering(|peer, _| {
        peer.stall();
        Then::HangUp
    });
    let mut link = fake.link();
    let closer = link.closer().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pause(Duration::from_millis(20));
            closer.close();
        });
        let begin = Clock::System.now();
        link.send(&[b"SUBSCRIBE", b"c"], &within_ms(5_000)).unwrap();
        link.receive(&within_ms(60_000)).unwrap_err();
        assert!(Clock::System.now() - begin < 30_000_000);
    });
}
