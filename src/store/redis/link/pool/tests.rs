//! Pools against servers that go away, come back, and answer late.

use super::super::fake::{Fake, Then, bulk, pause, pool, within_ms};
use super::*;
use crate::store::redis::link::Reply;
use crossbeam_channel::unbounded;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

fn ping(pool: &Pool) -> Result<Reply, StoreError> {
    pool.command(&[b"PING"], &Deadline::never())
}

#[track_caller]
fn check_error<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind, executed: Executed) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.executed()), (kind, executed), "{error}");
}

fn pong() -> Reply {
    Reply::Status("PONG".to_owned())
}

#[test]
fn a_late_reply_never_answers_another_command() {
    let timeout = Duration::from_millis(8);
    let fake = Fake::answering(|peer, command| {
        let token: u64 = std::str::from_utf8(&command[1]).unwrap().parse().unwrap();
        // Around the time limit: some come in time, some late.
        pause(Duration::from_micros(token % 16 * 1_000));
        peer.say(&bulk(&command[1]));
        Then::Listen
    });
    let pool = fake.pool(2, timeout);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for first in [0, 1] {
            let (pool, answered) = (&pool, &answered);
            scope.spawn(move || {
                for token in (first..300_u64).step_by(2) {
                    let token = token.to_string();
                    match pool.command(&[b"ECHO", token.as_bytes()], &Deadline::never()) {
                        Ok(reply) => {
                            assert_eq!(reply, Reply::Bytes(token.into_bytes()));
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert!(
                            matches!(error.kind(), StoreErrorKind::Timeout | StoreErrorKind::Unreachable),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    let answered = answered.into_inner();
    assert!((1..290).contains(&answered), "{answered} answered: the delay was not around the limit");
}

#[test]
fn a_connection_is_kept_for_the_next_call() {
    let fake = Fake::answering(|peer, _| {
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(4, LONG);
    assert!(!pool.ready());
    for _ in 0..10 {
        assert_eq!(ping(&pool).unwrap(), pong());
        assert!(pool.ready());
    }
    assert_eq!(fake.accepted(), 1);
}

#[test]
fn an_error_reply_keeps_the_connection_and_a_broken_one_does_not() {
    let fake = Fake::answering(|peer, command| {
        match command[0].as_slice() {
            b"PING" => peer.say(b"+PONG\r\n"),
            b"BAD" => peer.say(b"-WRONGTYPE Operation against a key\r\n"),
            _ => return Then::HangUp,
        };
        Then::Listen
    });
    let pool = fake.pool(1, LONG);
    check_error(pool.command(&[b"BAD"], &Deadline::never()), StoreErrorKind::Corrupt, Executed::No);
    ping(&pool).unwrap();
    assert_eq!(fake.accepted(), 1);
    check_error(pool.command(&[b"END"], &Deadline::never()), StoreErrorKind::Unreachable, Executed::Unknown);
    ping(&pool).unwrap();
    assert_eq!(fake.accepted(), 2);
}

#[test]
fn a_refused_connection_is_reported_at_once_and_each_time() {
    let target = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        crate::store::redis::url::Target::parse(&format!("redis://{place}")).unwrap()
    };
    let pool = pool(2, LONG, move || Link::connect(&target, &within_ms(60_000)));
    let begin = Clock::System.now();
    for _ in 0..20 {
        check_error(ping(&pool), StoreErrorKind::Unreachable, Executed::No);
    }
    // r2d2 alone would have taken its time-out, a minute, for each.
    assert!(Clock::System.now() - begin < 30_000_000);
}

#[test]
fn a_panic_while_connecting_costs_no_place_in_the_pool() {
    let fake = Fake::answering(|peer, _| {
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let (target, tries) = (fake.target(), AtomicUsize::new(0));
    let pool = pool(2, LONG, move || {
        let before = tries.fetch_add(1, Ordering::Relaxed);
        assert!(before >= 5, "planned");
        Link::connect(&target, &within_ms(5_000))
    });
    for _ in 0..5 {
        check_error(ping(&pool), StoreErrorKind::Panicked, Executed::No);
    }
    assert_eq!(ping(&pool).unwrap(), pong());
}

#[test]
fn who_waits_for_a_connection_that_hangs_waits_no_longer_than_the_timeout() {
    let (hold, held) = unbounded::<()>();
    let pool = pool(1, Duration::from_millis(50), move || {
        let _ = held.recv();
        Err(StoreError::new(StoreErrorKind::Other, Executed::No, "over"))
    });
    let begin = Clock::System.now();
    for _ in 0..2 {
        check_error(ping(&pool), StoreErrorKind::Unreachable, Executed::No);
    }
    assert!(Clock::System.now() - begin < 10_000_000);
    drop(hold);
}

#[test]
fn when_all_connections_are_in_use_a_call_waits_to_its_deadline_only() {
    let (said, saying) = unbounded::<()>();
    let fake = Fake::answering(move |peer, command| {
        if command[0] == b"HOLD" {
            saying.recv().unwrap();
        }
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(1, LONG);
    ping(&pool).unwrap();
    thread::scope(|scope| {
        let holder = scope.spawn(|| pool.command(&[b"HOLD"], &Deadline::never()));
        while pool.ready() {
            thread::yield_now();
        }
        let error = pool.command(&[b"PING"], &within_ms(50)).unwrap_err();
        assert!(error.to_string().contains("all 1 connections"), "{error}");
        assert_eq!((error.kind(), error.executed()), (StoreErrorKind::Timeout, Executed::No));
        said.send(()).unwrap();
        assert_eq!(holder.join().unwrap().unwrap(), pong());
    });
    assert_eq!(ping(&pool).unwrap(), pong());
    assert_eq!(fake.accepted(), 1);
}

#[test]
fn who_waits_gets_the_place_of_a_connection_that_broke() {
    let (end, ending) = unbounded::<()>();
    let fake = Fake::answering(move |peer, command| {
        if command[0] == b"HOLD" {
            ending.recv().unwrap();
            return Then::HangUp;
        }
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(1, LONG);
    ping(&pool).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.command(&[b"HOLD"], &Deadline::never()).unwrap_err());
        while pool.ready() {
            thread::yield_now();
        }
        let begin = Clock::System.now();
        let waiter = scope.spawn(|| ping(&pool));
        pause(Duration::from_millis(10));
        end.send(()).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), pong());
        assert!(Clock::System.now() - begin < 30_000_000);
    });
}

/// Fills a pool with two connections, has the server close both, and says how the next call goes.
fn after_a_restart(doubt: impl FnOnce(&Pool)) -> (Result<Reply, StoreError>, usize) {
    let both = Arc::new(std::sync::Barrier::new(2));
    let (over, restarted) = (Arc::new(AtomicBool::new(false)), unbounded::<()>());
    let (its_over, its_end) = (Arc::clone(&over), restarted.1);
    let fake = Fake::answering(move |peer, _| {
        if its_over.load(Ordering::SeqCst) {
            peer.say(b"+PONG\r\n");
            return Then::Listen;
        }
        both.wait();
        peer.say(b"+PONG\r\n");
        let _ = its_end.recv();
        Then::HangUp
    });
    let pool = fake.pool(2, LONG);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| ping(&pool).unwrap());
        }
    });
    assert_eq!(fake.accepted(), 2);
    over.store(true, Ordering::SeqCst);
    drop(restarted.0);
    // Until both have heard that the server closed them.
    pause(Duration::from_millis(50));
    doubt(&pool);
    (ping(&pool), fake.accepted())
}

#[test]
fn connections_that_died_while_idle_fail_no_call_once_one_was_lost() {
    let (result, accepted) = after_a_restart(|pool| {
        pool.traffic.losses.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(result.unwrap(), pong());
    assert_eq!(accepted, 3);
}

#[test]
fn connections_that_died_while_idle_fail_one_call_at_most() {
    let mut failed = 0;
    let (result, _) = after_a_restart(|pool| failed += usize::from(ping(pool).is_err()));
    assert_eq!(result.unwrap(), pong());
    assert!(failed <= 1);
}

#[test]
fn a_command_of_which_nothing_could_be_sent_goes_out_on_another_connection() {
    let fake = Fake::answering(|peer, _| {
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(1, LONG);
    let closer = pool.on_link(&within_ms(60_000), |link| Ok(link.closer())).unwrap().unwrap();
    closer.close();
    assert_eq!(ping(&pool).unwrap(), pong());
    assert_eq!(fake.accepted(), 2);
}

#[test]
fn a_long_idle_connection_is_looked_at_before_it_is_used() {
    let fake = Fake::answering(|_, _| Then::HangUp);
    let traffic = Traffic::new("the fake".to_owned(), SECOND);
    let mut link = fake.link();
    assert!(traffic.trusts(&mut link), "an open one is fine");
    link.used = link.used.saturating_sub(DOUBTED_AFTER);
    assert!(traffic.trusts(&mut link), "an open one is still fine");
    link.send(&[b"QUIT"], &within_ms(5_000)).unwrap();
    link.receive(&within_ms(5_000)).unwrap_err();
    assert!(traffic.trusts(&mut link), "nobody looks so soon after its last use");
    link.used = 0;
    link.losses = 1;
    assert!(!traffic.trusts(&mut link));
}

#[test]
fn a_replica_is_looked_up_anew_on_every_connection() {
    let demoted = Arc::new(AtomicBool::new(false));
    let its_demoted = Arc::clone(&demoted);
    let fake = Fake::answering(move |peer, _| {
        let old = peer.number < 2;
        let answer: &[u8] = if old && its_demoted.load(Ordering::SeqCst) {
            b"-READONLY You can't write against a read only replica.\r\n"
        } else {
            pause(Duration::from_millis(10));
            b"+PONG\r\n"
        };
        peer.say(answer);
        Then::Listen
    });
    let pool = fake.pool(2, LONG);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| ping(&pool).unwrap());
        }
    });
    // The two calls may have used one connection after the other.
    let before = fake.accepted();
    demoted.store(true, Ordering::SeqCst);
    check_error(ping(&pool), StoreErrorKind::ReadOnly, Executed::No);
    if before == 2 {
        assert_eq!(ping(&pool).unwrap(), pong(), "the other connection goes to the same server");
    }
}

#[test]
fn a_call_gives_up_at_the_earlier_of_its_deadline_and_the_timeout() {
    let fake = Fake::answering(|peer, _| {
        peer.stall();
        Then::HangUp
    });
    for (timeout, deadline) in [(Duration::from_millis(30), within_ms(60_000)), (LONG, within_ms(30))] {
        let pool = fake.pool(1, timeout);
        let begin = Clock::System.now();
        let error = pool.command(&[b"PING"], &deadline);
        // Connecting may have used it up.
        assert!(error.is_err_and(|error| error.kind() != StoreErrorKind::Protocol));
        assert!(Clock::System.now() - begin < 30_000_000);
    }
}

#[test]
fn after_close_every_call_is_refused_and_those_under_way_are_waited_for() {
    let (said, saying) = unbounded::<()>();
    let fake = Fake::answering(move |peer, _| {
        saying.recv().unwrap();
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(2, LONG);
    thread::scope(|scope| {
        let call = scope.spawn(|| ping(&pool));
        while pool.traffic.calls.lock().running == 0 {
            thread::yield_now();
        }
        assert!(matches!(pool.traffic.close(Duration::from_millis(10)), Err(Error::Timeout { .. })));
        check_error(ping(&pool), StoreErrorKind::Other, Executed::No);
        said.send(()).unwrap();
        pool.traffic.close(LONG).unwrap();
        assert_eq!(call.join().unwrap().unwrap(), pong(), "what was under way is answered");
    });
}

/// A call whose time is over before anything was sent says nothing against the connections.
#[test]
fn a_call_that_comes_too_late_costs_no_connection() {
    let fake = Fake::answering(|peer, _| {
        peer.say(b"+PONG\r\n");
        Then::Listen
    });
    let pool = fake.pool(3, LONG);
    let together = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let both = pool.on_link(&Deadline::never(), |link| {
                    together.wait();
                    Ok(link.ask(&[b"PING"], &Deadline::after(&Clock::System, LONG))?)
                });
                assert_eq!(both.unwrap().unwrap(), pong());
            });
        }
    });
    let idle = || pool.links.as_ref().unwrap().state().idle_connections;
    assert_eq!(idle(), 3);
    let over = Deadline::after(&Clock::System, Duration::ZERO);
    check_error(pool.command(&[b"PING"], &over), StoreErrorKind::Timeout, Executed::No);
    assert!(idle() >= 2, "{} are left", idle());
}
