//! Servers that answer nonsense: a typed error each, in time, without a grant, a crash, a spin or a gigabyte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use valve::{Executed, Rule, StoreErrorKind};

use crate::redis::Stopwatch;
use crate::redis::fake::{Answer, Fake};
use crate::redis::world::{Counter, hasty_store, valve};
use crate::support::{ms, secs};

fn ample() -> Rule {
    Rule::gcra(1_000, secs(1)).burst(1_000).into()
}

fn is_script(parts: &[Vec<u8>]) -> bool {
    parts[0].to_ascii_uppercase().starts_with(b"EVAL")
}

/// What the script says with no error: its time, a byte and what follows.
fn payload(state: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = 1.7e15_f64.to_be_bytes().to_vec();
    bytes.push(state);
    bytes.extend(rest);
    bytes
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Jobs admitted, now, the first fencing token, the rule that refuses, how long, the pause, and flags.
fn admitted(numbers: [f64; 6], flags: u8) -> Vec<u8> {
    let mut rest: Vec<u8> = numbers.into_iter().flat_map(f64::to_be_bytes).collect();
    rest.push(flags);
    bulk(&payload(0, &rest))
}

const NOW: f64 = 1.7e15;

/// From this one on they are frames of the protocol.
const FIRST_WHOLE: usize = 10;

/// Answers to a script that admits a job.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    let good = [1.0, NOW, 0.0, -1.0, 0.0, 0.0];
    let with = |place: usize, value: f64| {
        let mut numbers = good;
        numbers[place] = value;
        admitted(numbers, 0)
    };
    vec![
        ("an HTTP server", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("garbage", b"\x00\xff\xfe garbage\r\n".to_vec()),
        ("an empty line", b"\r\n".to_vec()),
        ("an endless line", vec![b'+'; 1 << 20]),
        ("a huge bulk", b"$999999999999\r\nxx".to_vec()),
        ("a bulk beyond numbers", b"$99999999999999999999999\r\n".to_vec()),
        ("a bulk below nothing", b"$-7\r\n".to_vec()),
        ("a huge array", b"*999999999\r\n".to_vec()),
        ("nesting without end", b"*1\r\n".repeat(100_000)),
        ("a wrong end of a bulk", b"$3\r\nabcdef\r\n".to_vec()),
        ("nil", b"$-1\r\n".to_vec()),
        ("no array", b"*-1\r\n".to_vec()),
        ("an empty array", b"*0\r\n".to_vec()),
        ("a status", b"+OK\r\n".to_vec()),
        ("a number", b":1\r\n".to_vec()),
        ("an array of what was wanted", [b"*1\r\n".to_vec(), admitted(good, 0)].concat()),
        ("an empty bulk", b"$0\r\n\r\n".to_vec()),
        ("a short answer", bulk(&payload(0, &[0; 48]))),
        ("a long answer", bulk(&payload(0, &[0; 60]))),
        ("an unknown state", bulk(&payload(9, &[0; 49]))),
        ("a time that is none", bulk(&[f64::NAN.to_be_bytes().to_vec(), vec![0; 50]].concat())),
        ("more grants than jobs", with(0, 2.0)),
        ("fewer grants than none", with(0, -1.0)),
        ("half a grant", with(0, 0.5)),
        ("grants that are no number", with(0, f64::NAN)),
        ("a time before all", with(1, -1.0)),
        ("a rule that there is not", admitted([0.0, NOW, 0.0, 7.0, 5.0, 0.0], 0)),
        ("a wait below nothing", admitted([0.0, NOW, 0.0, 0.0, -5.0, 0.0], 0)),
        ("a wait that is no number", admitted([0.0, NOW, 0.0, 0.0, f64::NAN, 0.0], 0)),
        ("a pause below nothing", admitted([0.0, NOW, 0.0, -1.0, 0.0, -5.0], 0)),
        ("a pause without end", admitted([0.0, NOW, 0.0, -1.0, 0.0, f64::INFINITY], 0)),
        ("a denial without a reason", admitted([0.0, NOW, 0.0, -1.0, 0.0, 0.0], 0)),
        ("a fencing token without a slot", with(2, -3.0)),
    ]
}

#[test]
fn a_senseless_answer_is_an_error_and_admits_nobody() {
    for (number, (what, bytes)) in nonsense().into_iter().enumerate() {
        let is_whole = number >= FIRST_WHOLE;
        let fake = Fake::new(
            move |parts| {
                if is_script(parts) { Answer::Bytes(bytes.clone()) } else { Answer::Usual }
            },
        );
        let store = hasty_store(&fake.url(), ms(200));
        let counter = Counter::new(&store, [ample()]);
        let watch = Stopwatch::start();
        let error = counter.admit(&[1]).expect_err(what);
        assert_eq!(error.executed(), Executed::Unknown, "{what}: {error}");
        let fits = matches!(error.kind(), StoreErrorKind::Protocol | StoreErrorKind::Timeout);
        assert!(fits, "{what}: {error}");
        assert!(watch.elapsed() < ms(400), "{what}: {:?}", watch.elapsed());
        if !is_whole {
            // The bytes that follow are nobody's answer: the connection is not used again.
            let before = fake.count("TIME");
            let _ = counter.admit(&[1]);
            assert!(fake.count("TIME") > before, "{what}: the next call used the same connection");
        }
        let valve = valve(&store).rule(ample()).build().unwrap();
        assert!(valve.job().max_wait(ms(50)).run(|_| ()).is_err(), "{what}: a job started");
    }
}

#[test]
fn senseless_answers_to_other_scripts_are_errors_too() {
    let answers: [(&str, Vec<u8>); 6] = [
        ("nil", b"$-1\r\n".to_vec()),
        ("a number", b":1\r\n".to_vec()),
        ("a short answer", bulk(&payload(0, b""))),
        ("a long answer", bulk(&payload(0, &[1; 40]))),
        ("neither yes nor no", bulk(&payload(0, &[7, 7]))),
        ("an unknown state", bulk(&payload(3, &[1, 1]))),
    ];
    for (what, bytes) in answers {
        let fake = Fake::new(
            move |parts| {
                if is_script(parts) { Answer::Bytes(bytes.clone()) } else { Answer::Usual }
            },
        );
        let counter = Counter::new(&hasty_store(&fake.url(), ms(200)), [ample()]);
        let renewed = counter.renew(secs(1), &[1, 2]).map(drop);
        let paused = counter.pause(secs(1)).map(drop);
        for (call, result) in [("renew", renewed), ("pause", paused), ("resume", counter.resume())] {
            if call == "resume" && what == "neither yes nor no" {
                continue;
            }
            let error = result.expect_err(what);
            assert_eq!(
                (error.kind(), error.executed()),
                (StoreErrorKind::Protocol, Executed::Unknown),
                "{call}: {what}"
            );
        }
    }
}

#[test]
fn a_senseless_handshake_is_an_error() {
    for bytes in
        ["HTTP/1.1 400 Bad Request\r\n\r\n", "+OK\r\n", "*2\r\n$1\r\nx\r\n$1\r\ny\r\n", "*0\r\n", ":5\r\n"]
    {
        let fake = Fake::new(move |parts| match parts[0].to_ascii_uppercase().as_slice() {
            b"TIME" => Answer::text(bytes),
            _ => Answer::Usual,
        });
        let counter = Counter::new(&hasty_store(&fake.url(), ms(200)), [ample()]);
        let watch = Stopwatch::start();
        let error = counter.admit(&[1]).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol, "{error}");
        assert!(watch.elapsed() < ms(900), "{:?}", watch.elapsed());
    }
}

#[test]
fn a_server_that_hangs_up_during_the_handshake_is_told_at_once() {
    let fake = Fake::new(|_| Answer::Last(Vec::new()));
    let counter = Counter::new(&hasty_store(&fake.url(), secs(2)), [ample()]);
    let watch = Stopwatch::start();
    let error = counter.admit(&[1]).unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Unreachable, Executed::No), "{error}");
    assert!(watch.elapsed() < secs(1), "{:?}", watch.elapsed());
}

#[test]
fn a_server_that_forgets_every_script_is_asked_twice_and_no_more() {
    let fake = Fake::new(|parts| {
        if is_script(parts) { Answer::text("-NOSCRIPT No matching script.\r\n") } else { Answer::Usual }
    });
    let counter = Counter::new(&hasty_store(&fake.url(), ms(300)), [ample()]);
    let error = counter.admit(&[1]).unwrap_err();
    assert!(error.to_string().contains("NOSCRIPT"), "{error}");
    assert_eq!((fake.count("EVALSHA"), fake.count("EVAL")), (1, 1));
    // Those who wait ask at the pace of a failing store.
    let valve = valve(&hasty_store(&fake.url(), ms(300))).rule(ample()).build().unwrap();
    assert!(valve.job().max_wait(secs(1)).run(|_| ()).is_err());
    assert!(fake.count("EVAL") < 12, "{} asks within a second", fake.count("EVAL"));
}

#[test]
fn a_server_that_always_calls_a_command_stale_is_given_up() {
    let fake =
        Fake::new(
            |parts| if is_script(parts) { Answer::Bytes(bulk(&payload(1, b""))) } else { Answer::Usual },
        );
    let counter = Counter::new(&hasty_store(&fake.url(), ms(300)), [ample()]);
    let error = counter.admit(&[1]).unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Timeout, Executed::No), "{error}");
    assert!(fake.count("EVALSHA") <= 3, "{} attempts", fake.count("EVALSHA"));
}

/// Each error that a server may answer with is one of ours, whatever else it says.
#[test]
fn errors_that_nobody_knows_are_passed_on() {
    for line in ["-ERR something new\r\n", "-WEIRD\r\n", "-\r\n", "-ERR \u{1}\u{2}control\r\n"] {
        let fake = Fake::new(move |parts| if is_script(parts) { Answer::text(line) } else { Answer::Usual });
        let error = Counter::new(&hasty_store(&fake.url(), ms(200)), [ample()]).admit(&[1]).unwrap_err();
        let shown = error.to_string();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
    let long = format!("-ERR {}\r\n", "x".repeat(100_000));
    let fake = Fake::new(move |parts| if is_script(parts) { Answer::text(&long) } else { Answer::Usual });
    let error = Counter::new(&hasty_store(&fake.url(), ms(200)), [ample()]).admit(&[1]).unwrap_err();
    assert!(error.to_string().len() < 1_000, "{} bytes of somebody else's text", error.to_string().len());
}

#[test]
fn a_crowd_that_a_broken_server_answers_gets_out() {
    let broken = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&broken);
    let fake = Fake::new(move |parts| match (is_script(parts), state.load(Ordering::Relaxed)) {
        (true, true) => Answer::text("?\r\n"),
        (true, false) => Answer::Bytes(admitted([1.0, NOW, 0.0, -1.0, 0.0, 0.0], 0)),
        _ => Answer::Usual,
    });
    let valve = valve(&hasty_store(&fake.url(), ms(200))).rule(ample()).build().unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..20).map(|_| scope.spawn(|| valve.job().max_wait(ms(400)).run(|_| ()))).collect();
        for waiter in waiters {
            assert!(waiter.join().unwrap().is_err());
        }
    });
    broken.store(false, Ordering::Relaxed);
    valve.job().max_wait(secs(2)).run(|_| ()).unwrap();
}
