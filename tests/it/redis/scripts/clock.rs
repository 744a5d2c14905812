//! The server's clock steps back, and one process's limits meet another's: on a clock that the test turns.

use valve::{Answer, Rule};

use crate::redis::scripts::{on_manual_time, turn_to};
use crate::redis::server::Server;
use crate::redis::world::Counter;
use crate::support::{SECOND, micros, ms, secs};

const HOUR: u64 = 3_600 * SECOND;
const START: u64 = 1_800_000_000 * SECOND;

/// How long the rate alone would have the next job wait, in microseconds.
#[track_caller]
fn wait(answer: &Answer) -> u64 {
    let refusal = answer.refusal.unwrap_or_else(|| panic!("not refused: {answer:?}"));
    micros(refusal.rate.unwrap_or_else(|| panic!("not for its rate: {answer:?}")).1)
}

#[test]
fn debts_leases_and_pauses_keep_their_length_when_the_clock_steps_back() {
    let server = Server::start();
    let store = on_manual_time(&server);
    let rated = Counter::of("rated", &store, [Rule::gcra(1, secs(60)).into()]);
    let (held, paused) = (Counter::of("held", &store, []), Counter::of("paused", &store, []));
    turn_to(&server, START);
    assert!(rated.admits());
    assert_eq!(held.take(1, secs(60), &[1]).unwrap().granted, 1);
    assert_eq!(paused.pause(secs(60)).unwrap(), secs(60));
    // Refusals keep the clock going, so that no time which has passed comes back.
    turn_to(&server, START + 40 * SECOND);
    assert_eq!(wait(&rated.admit(&[1]).unwrap()), 20 * SECOND);
    assert_eq!(held.take(1, secs(60), &[2]).unwrap().granted, 0);
    assert_eq!(paused.admit(&[1]).unwrap().refusal.unwrap().pause, Some(secs(20)));

    let back = START + 40 * SECOND - HOUR;
    for passed in [0, 5, 15] {
        turn_to(&server, back + passed * SECOND);
        let answer = rated.admit(&[1]).unwrap();
        assert_eq!(wait(&answer), (20 - passed) * SECOND);
        assert_eq!(answer.at, START + (40 + passed) * SECOND, "stamps go on from where they were");
        assert_eq!(held.take(1, secs(60), &[2]).unwrap().granted, 0);
        assert_eq!(paused.admit(&[1]).unwrap().refusal.unwrap().pause, Some(secs(20 - passed)));
    }
    turn_to(&server, back + 20 * SECOND - 1);
    assert!(!rated.admits() && !paused.admits());
    assert_eq!(held.take(1, secs(60), &[2]).unwrap().granted, 0);
    turn_to(&server, back + 20 * SECOND);
    assert!(rated.admits() && paused.admits());
    assert_eq!(held.take(1, secs(60), &[2]).unwrap().granted, 1);
}

#[test]
fn a_renewal_keeps_the_clock_too() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    turn_to(&server, START);
    counter.take(1, secs(60), &[1]).unwrap();
    turn_to(&server, START + 50 * SECOND);
    assert_eq!(counter.renew(secs(60), &[1]).unwrap(), [true]);
    turn_to(&server, START - HOUR);
    assert_eq!(counter.renew(secs(60), &[2]).unwrap(), [false]);
    turn_to(&server, START - HOUR + 60 * SECOND - 1);
    assert_eq!(counter.take(1, secs(60), &[3]).unwrap().granted, 0);
    turn_to(&server, START - HOUR + 60 * SECOND);
    assert_eq!(counter.take(1, secs(60), &[3]).unwrap().granted, 1);
}

#[test]
fn fencing_tokens_grow_when_the_clock_steps_back() {
    let server = Server::start();
    let counter = Counter::new(&on_manual_time(&server), []);
    let mut last = 0;
    for (token, now) in (1..).zip([START, START - HOUR, START - 2 * HOUR, START, START + 1]) {
        turn_to(&server, now);
        let fence = counter.take(9, secs(60), &[token]).unwrap().fence.unwrap().get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn a_later_window_becomes_the_current_one_with_its_count() {
    let server = Server::start();
    let store = on_manual_time(&server);
    let counter = Counter::new(&store, [Rule::fixed_window(5, secs(3_600)).into()]);
    turn_to(&server, START);
    assert_eq!(counter.admit(&[1; 3]).unwrap().granted, 3);
    turn_to(&server, START - 2 * HOUR);
    let answer = counter.admit(&[3]).unwrap();
    assert_eq!((answer.granted, wait(&answer)), (0, HOUR - START % HOUR), "its end is the current one's");
    // The refusal has moved it: an hour later nothing is left of it.
    turn_to(&server, START - HOUR);
    assert_eq!(counter.admit(&[1; 6]).unwrap().granted, 5);
    turn_to(&server, START);
    assert_eq!(counter.admit(&[1; 6]).unwrap().granted, 5);
}

/// A process with a smaller burst read a greater debt as its own maximum and wrote that back: 2,080 starts instead of 159.
#[test]
fn no_process_cuts_a_debt_down_to_its_own_limits() {
    let server = Server::start();
    let store = on_manual_time(&server);
    let large = Counter::new(&store, [Rule::gcra(1, secs(1)).burst(100).into()]);
    let small = Counter::new(&store, [Rule::gcra(1, secs(1)).burst(1).into()]);
    turn_to(&server, START);
    assert_eq!(large.admit(&[1; 64]).unwrap().granted, 64);
    assert_eq!(large.admit(&[1; 64]).unwrap().granted, 36);
    for _ in 0..20 {
        assert_eq!(wait(&small.admit(&[1]).unwrap()), 100 * SECOND);
        assert_eq!(large.admit(&[1]).unwrap().granted, 0);
    }
    // Leases of a process with a longer ttl, and pauses of one with a longer limit, the same.
    assert_eq!(small.renew(secs(1), &[1]).unwrap(), [false]);
    let pauses = Counter::of("pauses", &store, []);
    pauses.pause(secs(1_000)).unwrap();
    assert_eq!(pauses.pause(ms(1)).unwrap(), secs(1_000));
}
