//! When leases are renewed, in how many calls, and what a store does to them that fails, hangs, answers late or answers
//! nonsense.

use std::collections::HashMap;
use std::time::Duration;

use valve::{Error, Permit, Token, Valve};

use crate::fleet::{Fleet, Kind, Member, Reply, Step};
use crate::support::{Random, ms, secs, us};

/// V52.
#[test]
fn leases_are_renewed_each_third_of_their_length() {
    let fleet = Fleet::new();
    for store in [fleet.local(), fleet.remote()] {
        let valve = fleet.valve(&store, 2, secs(3));
        let began = fleet.clock.now();
        let job = fleet.spawn_lasting(&valve, secs(10) + ms(500));
        fleet.clock.advance(secs(20));
        assert!(job.result().is_ok());
        let sent: Vec<_> = store.sent(Kind::Renew).iter().map(|at| *at - began).collect();
        assert_eq!(sent, (1..=10).map(secs).collect::<Vec<_>>(), "not each second while the job ran");
    }
}

/// V52: leases of all ages in one batch, and a store that takes its time. None is older than a third when it is renewed.
#[test]
fn a_batch_renews_early_but_never_late() {
    for (store, delay) in [(Fleet::local as fn(&Fleet) -> Member, 0), (Fleet::remote, 0), (Fleet::remote, 40)]
    {
        let fleet = Fleet::new();
        let store = store(&fleet);
        store.then(Kind::Renew, Step { after: ms(delay), ..Step::AT_ONCE });
        let valve = fleet.valve(&store, 1_000, ms(900));
        for seed in 0..8 {
            let (clock, valve, mut random) = (fleet.clock.clone(), valve.clone(), Random::new(seed));
            fleet.clock.spawn("worker", move || {
                while clock.now() < secs(20) {
                    clock.sleep(ms(random.below(200)));
                    valve.run(|| clock.sleep(ms(random.below(4_000)))).unwrap();
                }
            });
        }
        fleet.clock.advance(secs(30));
        check_gaps(&store, ms(300));
    }
}

#[track_caller]
fn check_gaps(store: &Member, third: Duration) {
    let mut last: HashMap<Token, Duration> = HashMap::new();
    let asks = store.calls(Kind::Admit).into_iter();
    last.extend(asks.flat_map(|ask| ask.tokens.into_iter().map(move |token| (token, ask.sent))));
    let renewals = store.calls(Kind::Renew);
    assert!(renewals.len() > 60, "only {} renewals", renewals.len());
    for call in renewals {
        for token in call.tokens {
            let before = last.insert(token, call.sent).unwrap();
            assert!(call.sent - before <= third, "renewed at {:?}, last at {before:?}", call.sent);
        }
    }
}

#[test]
fn ten_thousand_leases_take_twenty_calls() {
    let fleet = Fleet::new();
    for store in [fleet.local(), fleet.remote()] {
        let valve = fleet.valve(&store, 20_000, secs(3));
        let permits: Vec<Permit<'_>> = (0..10_000).map(|_| valve.acquire().unwrap()).collect();
        for _ in 0..3 {
            let before = store.calls(Kind::Renew).len();
            fleet.clock.advance(secs(1));
            let calls = store.calls(Kind::Renew).split_off(before);
            assert!(calls.len() <= 20, "{} calls within a third", calls.len());
            assert_eq!(calls.iter().map(|call| call.tokens.len()).sum::<usize>(), 10_000);
            assert!(calls.iter().all(|call| call.tokens.len() <= 500));
        }
        assert!(permits.iter().all(|permit| !permit.is_aborted()));
        drop(permits);
        fleet.clock.advance(ms(2));
        assert_eq!(fleet.held(), 0);
        if store.calls(Kind::Release).len() < 10_000 {
            assert!(
                store.calls(Kind::Release).len() <= 20,
                "{} calls to release",
                store.calls(Kind::Release).len()
            );
        }
    }
}

/// O52: one error does not end the renewals, and without any success the job is told before its slot can be another's.
#[test]
fn a_failed_renewal_is_tried_again_until_the_leases_end() {
    let wrong = [Reply::Unreachable, Reply::Lost, Reply::Short, Reply::Panics];
    for reply in wrong {
        for failures in [1, 2, 3, 10] {
            let ended = run_with_failures(reply, failures);
            assert_eq!(ended, Ok(secs(1)), "{failures} times {reply:?}");
        }
    }
    // The lease is renewed at 100 ms for the last time, or without anybody's hearing of it.
    for reply in wrong {
        assert_eq!(run_with_failures(reply, usize::MAX), Err(ms(400)), "always {reply:?}");
    }
}

/// A job of a second with a lease of 300 ms: the end of its call, or when it was told of its loss.
fn run_with_failures(reply: Reply, failures: usize) -> Result<Duration, Duration> {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1, ms(300));
    store.next(Kind::Renew, [Step::AT_ONCE]);
    store.next(Kind::Renew, std::iter::repeat_n(Step::reply(reply), failures.min(1_000)));
    let clock = fleet.clock.clone();
    let job = fleet.spawn(&valve, move |running| {
        while clock.now() < secs(1) && !running.is_aborted() {
            clock.sleep(ms(1));
        }
        running.is_aborted().then(|| clock.now())
    });
    fleet.clock.advance(secs(2));
    match job.end().unwrap() {
        (at, Ok(None)) => Ok(at),
        (at, Err(Error::LeaseLost)) => Err(at),
        other => panic!("{other:?}"),
    }
}

/// Neither the renewal's thread nor the deadline that the store ignores keeps the loss back, and no other valve suffers.
#[test]
fn a_renewal_that_hangs_ends_with_the_lease() {
    let fleet = Fleet::new();
    let (hanging, well) = (fleet.remote(), fleet.local());
    hanging.then(Kind::Renew, Step { before: secs(3600), ..Step::AT_ONCE });
    let (valve, other) = (fleet.valve(&hanging, 2, ms(900)), fleet.valve(&well, 2, ms(900)));
    let sound = fleet.spawn_lasting(&other, secs(5));
    let clock = fleet.clock.clone();
    let job = fleet.spawn(&valve, move |running| {
        clock.sleep(ms(900) - us(1));
        let before = running.is_aborted();
        clock.sleep(us(1));
        (before, running.is_aborted())
    });
    fleet.clock.advance(ms(901));
    assert!(matches!(job.result(), Err(Error::LeaseLost)));
    // A new job is granted, and lost in its turn: the one renewal thread of this valve still hangs.
    let next = fleet.spawn_lasting(&valve, secs(2));
    fleet.clock.advance(secs(10));
    assert!(matches!(next.result(), Err(Error::LeaseLost)));
    assert!(sound.result().is_ok());
    assert_eq!(hanging.calls(Kind::Renew).len(), 1, "more calls went where one hangs");
}

/// One slow process of two that share a client: the other's leases have a thread left.
#[test]
fn one_hanging_renewal_leaves_a_thread_to_the_rest_of_the_client() {
    let fleet = Fleet::new();
    let store = fleet.remote();
    let build =
        |id: &str| Valve::builder(id).store(store.clone()).global_concurrency(1, ms(900)).build().unwrap();
    let (one, other) = (build("one"), build("other"));
    store.next(Kind::Renew, [Step { before: secs(3600), ..Step::AT_ONCE }]);
    let first = fleet.spawn_lasting(&one, secs(3));
    fleet.clock.advance(ms(1));
    let second = fleet.spawn_lasting(&other, secs(3));
    fleet.clock.advance(secs(5));
    assert!(matches!(first.result(), Err(Error::LeaseLost)));
    assert!(second.result().is_ok());
}

/// V57: the store carries the renewal out, its answer comes after the lease's end by our clock.
#[test]
fn a_late_good_answer_gives_nothing_back() {
    for late in [us(0), us(1), ms(100), secs(2)] {
        let fleet = Fleet::new();
        let store = fleet.remote();
        let valve = fleet.valve(&store, 1, ms(900));
        store.then(Kind::Renew, Step { after: ms(600) + late, ..Step::AT_ONCE });
        let clock = fleet.clock.clone();
        let job = fleet.spawn(&valve, move |running| {
            clock.sleep(ms(900) - us(1));
            let mut seen = vec![running.is_aborted()];
            for _ in 0..100 {
                clock.sleep(if seen.len() == 1 { us(1) } else { ms(50) });
                seen.push(running.is_aborted());
            }
            assert!(!seen[0] && seen[1..].iter().all(|lost| *lost), "{late:?}: {seen:?}");
        });
        fleet.clock.advance(ms(900));
        assert_eq!(fleet.held(), 1, "the store has renewed it");
        fleet.clock.advance(secs(10));
        assert!(matches!(job.result(), Err(Error::LeaseLost)), "{late:?}");
    }
    // An answer in the last microsecond is in time, and counts from when the renewal was sent.
    let fleet = Fleet::new();
    let store = fleet.remote();
    let valve = fleet.valve(&store, 1, ms(900));
    store.next(Kind::Renew, [Step { after: ms(600) - us(1), ..Step::AT_ONCE }]);
    store.then(Kind::Renew, Step::reply(Reply::Unreachable));
    let clock = fleet.clock.clone();
    let job = fleet.spawn(&valve, move |running| {
        while !running.is_aborted() {
            clock.sleep(ms(1));
        }
        assert_eq!(clock.now(), ms(300) + ms(900));
    });
    fleet.clock.advance(secs(10));
    assert!(matches!(job.result(), Err(Error::LeaseLost)));
}
