//! A command that comes after its caller gave up changes nothing, except that what it gives back is given back.

use crate::redis::resp::Reply;
use crate::redis::scripts::notices::{Listener, take};
use crate::redis::scripts::{LEASES, STATE, contents, on_manual_time, turn_to};
use crate::redis::server::Server;
use crate::redis::world::Counter;
use crate::support::{SECOND, secs};

const START: u64 = 1_800_000_000 * SECOND;

/// The scripts as the library puts them together, on the test's clock.
macro_rules! script {
    ($($name:literal),*) => {
        concat!($(include_str!(concat!("../../../../src/store/redis/scripts/", $name, ".lua"))),*)
    };
}

const ADMIT: &str = script!("manual", "prelude", "short", "state", "admit");
const RENEW: &str = script!("manual", "prelude", "state", "renew");
const PAUSE: &str = script!("manual", "prelude", "state", "pause");
const RESUME: &str = script!("manual", "prelude", "state", "resume");

fn doubles(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|&value| (value as f64).to_be_bytes()).collect()
}

/// Runs a script of the id with this not-after; whether it says that it came too late.
#[track_caller]
fn late(server: &Server, script: &str, not_after: u64, numbers: &[u8], rest: &[&[u8]]) -> bool {
    let not_after = doubles(&[not_after]);
    let mut parts: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"2", STATE.as_bytes(), LEASES.as_bytes()];
    parts.extend([&not_after[..], numbers]);
    parts.extend(rest);
    match server.ask(&parts) {
        Reply::Bytes(reply) => {
            assert_eq!(&reply[..8], &doubles(&[START])[..], "the time in the reply");
            assert_eq!(reply[8] == 1, reply.len() == 9 && reply[8] == 1, "a stale reply says nothing else");
            reply[8] == 1
        }
        other => panic!("{other:?}"),
    }
}

/// What `admit.lua` is asked for one job with a slot, and this many releases.
fn ask(releases: u64) -> Vec<u8> {
    doubles(&[0, 1, 1, 5, 60 * SECOND, 0, releases, 0])
}

/// With a not-after of now the script does what it is to do; a microsecond earlier it changes nothing.
#[track_caller]
fn check(script: &str, numbers: &[u8], rest: &[&[u8]]) {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START - SECOND);
    counter.take(5, secs(60), &[1]).unwrap();
    counter.pause(secs(1)).unwrap();
    turn_to(&server, START);
    let before = (contents(&server, STATE), contents(&server, LEASES));
    assert!(late(&server, script, START - 1, numbers, rest));
    assert_eq!((contents(&server, STATE), contents(&server, LEASES)), before);
    assert!(!late(&server, script, START, numbers, rest));
    let after = (contents(&server, STATE), contents(&server, LEASES));
    assert_ne!(after, before, "the script does something");
    assert!(!late(&server, script, 0, numbers, rest), "0 is no bound");
}

#[test]
fn a_late_ask_takes_nothing() {
    check(ADMIT, &ask(0), &[&7_u128.to_be_bytes()]);
}

#[test]
fn a_late_renewal_extends_nothing() {
    check(RENEW, &doubles(&[1, 60 * SECOND]), &[&1_u128.to_be_bytes()]);
}

#[test]
fn a_late_pause_pauses_nothing() {
    check(PAUSE, &doubles(&[60 * SECOND]), &[b"valve:notices", b"id"]);
}

#[test]
fn a_late_resume_lifts_nothing() {
    check(RESUME, b"", &[b"valve:notices", b"id"]);
}

#[test]
fn a_late_ask_still_gives_back_what_it_carries() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    counter.take(5, secs(60), &[1, 2]).unwrap();
    let release: [&[u8]; 4] = [b"valve:notices", b"id", &1_u128.to_be_bytes(), &7_u128.to_be_bytes()];
    assert!(late(&server, ADMIT, START - 1, &ask(1), &release));
    assert_eq!(counter.renew(secs(60), &[1, 2, 7]).unwrap(), [false, true, false]);
}

#[test]
fn those_who_wait_are_told_of_what_a_late_ask_gave_back() {
    let server = Server::start();
    let store = on_manual_time(&server);
    turn_to(&server, START);
    take(&store, &[1, 2, 3], &[], true);
    let mut listener = Listener::new(&server);
    let release: [&[u8]; 4] = [b"valve:notices", b"id", &1_u128.to_be_bytes(), &7_u128.to_be_bytes()];
    assert!(late(&server, ADMIT, START - 1, &ask(1), &release));
    assert_eq!(listener.heard(&server), ["fid"]);
}
