//! What is sent for a script, how often, and what is made of the answers.

use super::*;
use crate::clock::Clock;
use crate::store::redis::link::fake::{Command, Fake, Then, bulk, within_ms};
use crate::store::redis::link::sha1;
use crossbeam_channel::{Receiver, unbounded};
use std::time::Duration;

const TEXT: &str = "return 1";
const LONG: Duration = Duration::from_secs(60);

/// What the fake's clock shows in the handshake, in microseconds.
const GREETED: u64 = 1_000_000_000;

fn answer(time: f64, state: u8, payload: &[u8]) -> Vec<u8> {
    bulk(&[&time.to_be_bytes()[..], &[state], payload].concat())
}

/// A server that gives these answers in turn, and what it heard.
fn scripted(answers: Vec<Vec<u8>>) -> (Fake, Receiver<Command>) {
    let (heard, commands) = unbounded();
    let at = std::sync::atomic::AtomicUsize::new(0);
    let fake = Fake::answering(move |peer, command| {
        heard.send(command.clone()).unwrap();
        let next = at.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        peer.say(answers.get(next).map_or(b"-ERR no more\r\n", |answer| answer));
        Then::Listen
    });
    (fake, commands)
}

fn call<'a>(keys: &'a [&'a [u8]], fence: NotAfter) -> Call<'a> {
    Call { keys, args: &[b"packed"], fence }
}

fn run(pool: &Pool, fence: NotAfter) -> Result<Done, StoreError> {
    Script::new(TEXT).run(pool, &call(&[b"k"], fence), &Deadline::never())
}

fn not_after_of(command: &Command) -> f64 {
    f64::from_be_bytes(command[4].as_slice().try_into().unwrap())
}

#[test]
fn a_script_is_called_by_its_name_with_keys_time_limit_and_arguments() {
    let (fake, commands) = scripted(vec![answer(2e9, 0, b"payload")]);
    let pool = fake.pool(1, LONG);
    let done = run(&pool, NotAfter::Held).unwrap();
    assert_eq!((done.time, done.payload()), (2_000_000_000, &b"payload"[..]));
    let command = commands.try_recv().unwrap();
    // The SHA-1 of this text, from sha1sum.
    assert_eq!(sha1(TEXT), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    assert_eq!(command[..4], [&b"EVALSHA"[..], sha1(TEXT).as_bytes(), b"1", b"k"]);
    assert_eq!(command[5], b"packed");
    assert_eq!(command.len(), 6);
}

#[test]
fn a_held_script_ends_with_its_caller_and_a_free_one_never() {
    let (fake, commands) = scripted(vec![answer(5e9, 0, b""), answer(5e9, 0, b""), answer(5e9, 0, b"")]);
    let pool = fake.pool(1, LONG);
    let minute = LONG.as_micros() as f64;
    let second = 1e6;
    for (fence, deadline, base, left) in [
        // The handshake said so; and no deadline is later than the client's timeout.
        (NotAfter::Held, Deadline::never(), GREETED as f64, minute),
        // The first answer said so.
        (NotAfter::Held, within_ms(10_000), 5e9, 10.0 * second),
    ] {
        Script::new(TEXT).run(&pool, &call(&[b"k"], fence), &deadline).unwrap();
        let until = not_after_of(&commands.try_recv().unwrap());
        // Estimate and remaining time are read one after the other.
        assert!((base + left - second..base + left + second).contains(&until), "{until}");
    }
    run(&pool, NotAfter::Free).unwrap();
    assert_eq!(not_after_of(&commands.try_recv().unwrap()), 0.0);
}

#[test]
fn a_server_that_does_not_know_the_script_gets_its_text_once() {
    let (fake, commands) = scripted(vec![b"-NOSCRIPT No matching script.\r\n".to_vec(), answer(1e9, 0, b"")]);
    let pool = fake.pool(1, LONG);
    run(&pool, NotAfter::Held).unwrap();
    let commands: Vec<_> = commands.try_iter().collect();
    assert_eq!(commands[0][0], b"EVALSHA");
    assert_eq!(commands[1][..2], [b"EVAL".to_vec(), TEXT.as_bytes().to_vec()]);
    assert_eq!(commands[0][2..4], commands[1][2..4]);
    assert_eq!(fake.accepted(), 1);
}

#[test]
fn a_server_that_never_knows_the_script_is_asked_no_third_time() {
    let never = b"-NOSCRIPT No matching script.\r\n".to_vec();
    let (fake, commands) = scripted(vec![never; 10]);
    let error = run(&fake.pool(1, LONG), NotAfter::Held).unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Other, Executed::No));
    assert_eq!(commands.len(), 2);
}

#[test]
fn a_stale_script_is_sent_again_with_the_time_that_it_told() {
    let (fake, commands) = scripted(vec![answer(7e9, 1, b""), answer(7.5e9, 0, b"late")]);
    let pool = fake.pool(1, LONG);
    assert_eq!(run(&pool, NotAfter::Held).unwrap().payload(), b"late");
    let limits: Vec<f64> = commands.try_iter().map(|command| not_after_of(&command)).collect();
    assert!(limits[0] < 2e9, "{limits:?}");
    assert!((7.05e9..7.08e9).contains(&limits[1]), "{limits:?}");
}

#[test]
fn a_script_that_is_always_stale_is_sent_three_times_and_did_nothing() {
    let (fake, commands) = scripted(vec![answer(7e9, 1, b""); 10]);
    let pool = fake.pool(1, LONG);
    let error = run(&pool, NotAfter::Held).unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Timeout, Executed::No));
    assert_eq!(commands.len(), 3);
    assert!(pool.ready(), "the connection answered all");
}

#[test]
fn an_answer_of_the_wrong_shape_is_none_and_its_connection_is_dropped() {
    for wrong in [
        b"+OK\r\n".to_vec(),
        b":1\r\n".to_vec(),
        b"$-1\r\n".to_vec(),
        b"*1\r\n:1\r\n".to_vec(),
        bulk(b""),
        bulk(&1e9_f64.to_be_bytes()),
        answer(1e9, 2, b""),
        answer(-1.0, 0, b""),
        answer(0.5, 0, b""),
        answer(1e17, 0, b""),
        answer(f64::NAN, 0, b""),
        answer(f64::INFINITY, 1, b""),
    ] {
        let (fake, _commands) = scripted(vec![wrong.clone()]);
        let pool = fake.pool(1, LONG);
        let error = run(&pool, NotAfter::Held).unwrap_err();
        let seen = (error.kind(), error.executed());
        assert_eq!(seen, (StoreErrorKind::Protocol, Executed::Unknown), "{wrong:?}");
        assert!(!pool.ready(), "{wrong:?}");
    }
}

#[test]
fn a_foreign_value_under_a_key_is_reported_with_the_key() {
    let wrong = b"-WRONGTYPE Operation against a key holding the wrong kind of value script: 1, on @user_script:1.\r\n";
    let (fake, _commands) = scripted(vec![wrong.to_vec()]);
    let pool = fake.pool(1, LONG);
    let keys: [&[u8]; 2] = [b"valve:{a}", b"valve:{a}:l"];
    let error = Script::new(TEXT).run(&pool, &call(&keys, NotAfter::Held), &Deadline::never()).unwrap_err();
    assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Corrupt, Executed::No));
    assert!(error.to_string().contains("key valve:{a} or valve:{a}:l"), "{error}");
}

#[test]
fn all_that_a_script_takes_is_within_one_deadline() {
    let fake = Fake::answering(|peer, _| {
        // Each answer comes in time for itself; together they would take for ever.
        crossbeam_channel::after(Duration::from_millis(40)).recv().unwrap();
        peer.say(&answer(7e9, 1, b""));
        Then::Listen
    });
    let pool = fake.pool(1, Duration::from_millis(70));
    let begin = Clock::System.now();
    let error = run(&pool, NotAfter::Held).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(Clock::System.now() - begin < 10_000_000);
}
