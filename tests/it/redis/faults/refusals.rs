//! The server refuses before it runs anything: typed, definite, saying what to do; waited out, and good again after.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use valve::{Error, Event, Executed, OnStoreError, RedisStore, Rule, StoreError, StoreErrorKind};

use crate::redis::proxy::Proxy;
use crate::redis::server::{Server, free_address};
use crate::redis::world::{Counter, grants, hasty_store, leases, store, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

pub(super) fn ample() -> Rule {
    Rule::gcra(1_000, secs(1)).burst(1_000).into()
}

/// The refusal is of this kind, names this, and was given before anything was done.
#[track_caller]
pub(super) fn check<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind, names: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.executed()), (kind, Executed::No), "{error}");
    assert!(error.to_string().contains(names), "{error:?} does not name {names:?}");
}

/// With the server as it is, a failing valve fails and a waiting one waits, until `repair` has been called.
#[track_caller]
pub(super) fn check_modes(store: &RedisStore, kind: StoreErrorKind, repair: impl FnOnce()) {
    let build = |mode| valve(store).rule(ample()).on_store_error(mode).build().unwrap();
    let (failing, waiting) = (build(OnStoreError::Fail), build(OnStoreError::Wait));
    match failing.run(|| ()) {
        Err(error @ Error::StoreUnavailable(_)) => {
            assert_eq!(error.code(), 8);
            let Error::StoreUnavailable(why) = error else { unreachable!() };
            assert_eq!(why.kind(), kind, "{why}");
        }
        other => panic!("{other:?}"),
    }
    let short = waiting.job().max_wait(ms(150)).run(|_| ());
    assert!(matches!(short, Err(Error::Timeout { .. })), "{short:?}");
    thread::scope(|scope| {
        let patient = scope.spawn(|| waiting.run(|| ()));
        wait_until("it waits", || waiting.stats().queued == 1);
        nap(100);
        repair();
        let watch = Stopwatch::start();
        patient.join().unwrap().unwrap();
        assert!(watch.elapsed() < secs(1), "it starts {:?} after the repair", watch.elapsed());
    });
    failing.run(|| ()).unwrap();
}

#[test]
fn without_memory_leases_are_kept_and_given_back() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    assert_eq!(counter.take(2, secs(60), &[1, 2]).unwrap().granted, 2);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(server.cli(&["SET", "a", "1"]).is_error(), "the server has memory");
    for _ in 0..3 {
        assert_eq!(counter.renew(secs(60), &[1, 2]).unwrap(), [true, true]);
    }
    counter.release(&[1]).unwrap();
    assert_eq!(leases(&server), 1);
    // An ask is admitted or refused: nothing in between.
    let before = grants(&server).len();
    match counter.take(2, secs(60), &[3]) {
        Ok(answer) => assert_eq!(answer.granted, 1),
        Err(error) => {
            assert_eq!(
                (error.kind(), error.executed()),
                (StoreErrorKind::OutOfMemory, Executed::No),
                "{error}"
            );
            assert_eq!((leases(&server), grants(&server).len()), (1, before));
        }
    }
    let fresh = Counter::of("fresh", &store, [ample()]);
    if let Err(error) = fresh.admit(&[1]) {
        assert_eq!((error.kind(), error.executed()), (StoreErrorKind::OutOfMemory, Executed::No), "{error}");
    }
    if let Err(error) = fresh.pause(secs(1)) {
        assert_eq!((error.kind(), error.executed()), (StoreErrorKind::OutOfMemory, Executed::No), "{error}");
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(counter.renew(secs(60), &[2]).unwrap(), [true]);
    assert!(counter.admits());
}

#[test]
fn a_demoted_server_is_left() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = store(&proxy.url());
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    let nobody = free_address().port().to_string();
    server.cli(&["REPLICAOF", "127.0.0.1", &nobody]);
    let before = proxy.accepted();
    for round in 1..=3 {
        check(counter.admit(&[1]), StoreErrorKind::ReadOnly, "replica");
        // The name may stand for another server by now, so it is looked up again.
        let expected = before + round - 1;
        assert!(
            proxy.accepted() >= expected,
            "a connection to a replica is used again: {}",
            proxy.accepted()
        );
    }
    check_modes(&store, StoreErrorKind::ReadOnly, || {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
    });
}

/// So many keys take about a millisecond each to load, with `--key-load-delay`.
fn populate(server: &Server, keys: usize) {
    let script = format!("for key = 1, {keys} do redis.call('SET', 'key' .. key, key) end");
    assert!(!server.cli(&["EVAL", &script, "0"]).is_error());
}

#[test]
fn a_server_that_loads_is_waited_for_and_leases_last_till_their_ends() {
    let mut server = Server::start();
    populate(&server, 3_000);
    let store = store(&server.url());
    let ttl = ms(900);
    let valve = valve(&store).global_concurrency(1, ttl).build().unwrap();
    server.cli(&["SAVE"]);
    let result = valve.job().run(|running| {
        let watch = Stopwatch::start();
        server.kill();
        server.option("--key-load-delay", "1000");
        server.option("--loading-process-events-interval-bytes", "1024");
        server.launch();
        wait_until("it loads", || server.is_loading());
        // A connection that the old server closed may cost one call.
        let _ = Counter::new(&store, [ample()]).admit(&[1]);
        check(Counter::new(&store, [ample()]).admit(&[1]), StoreErrorKind::Busy, "loading");
        wait_until("the job is told of its loss", || running.is_aborted());
        watch.elapsed()
    });
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    assert!(server.is_loading(), "it was to load longer than the lease lasts");
    let loads = Counter::new(&store, [ample()]);
    check(loads.admit(&[1]), StoreErrorKind::Busy, "loading");
    server.await_ready();
    assert!(loads.admits());
    valve.run(|| ()).unwrap();
}

#[test]
fn a_lease_outlasts_a_short_load() {
    let mut server = Server::start();
    populate(&server, 500);
    let store = store(&server.url());
    let valve = valve(&store).global_concurrency(1, secs(6)).build().unwrap();
    let result = valve.job().run(|running| {
        server.cli(&["SAVE"]);
        server.kill();
        server.option("--key-load-delay", "1000");
        server.option("--loading-process-events-interval-bytes", "1024");
        server.launch();
        server.await_ready();
        // Past the renewal that was due meanwhile, whatever became of it.
        nap(2_500);
        running.is_aborted()
    });
    assert!(!result.unwrap());
}

#[test]
fn a_server_with_a_long_script_is_waited_for_and_left_alone() {
    let server = Server::with(&["--busy-reply-threshold", "50"]);
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    let mut other = server.client();
    other.send(&[b"EVAL", b"while true do end", b"0"]).unwrap();
    wait_until("it is busy", || server.cli(&["PING"]).is_error());
    check(counter.admit(&[1]), StoreErrorKind::Busy, "script");
    check(counter.renew(secs(1), &[1]), StoreErrorKind::Busy, "script");
    check_modes(&store, StoreErrorKind::Busy, || {
        assert!(server.cli(&["PING"]).is_error(), "somebody killed another's script");
        assert_eq!(server.cli(&["SCRIPT", "KILL"]).text(), "OK");
    });
    assert!(other.receive().unwrap().is_error());
}

#[test]
fn a_replica_without_its_master_is_waited_for() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    let nobody = free_address().port().to_string();
    server.cli(&["REPLICAOF", "127.0.0.1", &nobody]);
    check(counter.admit(&[1]), StoreErrorKind::Busy, "master");
    check_modes(&store, StoreErrorKind::Busy, || {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
    });
}

#[test]
fn a_master_without_its_replicas_is_waited_for() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    check(counter.admit(&[1]), StoreErrorKind::ReadOnly, "replicas");
    check_modes(&store, StoreErrorKind::ReadOnly, || {
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    });
}

#[test]
fn a_full_server_is_waited_for() {
    let server = Server::start();
    // Kept by the test, which asks on it below.
    server.cli(&["CONFIG", "SET", "maxclients", "1"]);
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    check(counter.admit(&[1]), StoreErrorKind::Busy, "clients");
    let before: u64 = server.info("total_connections_received").parse().unwrap();
    check_modes(&store, StoreErrorKind::Busy, || {
        let tried = server.info("total_connections_received").parse::<u64>().unwrap() - before;
        assert!(tried < 40, "it is not spared: {tried} attempts");
        server.cli(&["CONFIG", "SET", "maxclients", "100"]);
    });
}

#[test]
fn a_closed_port_is_told_at_once() {
    let mut server = Server::start();
    let store = store(&server.url());
    server.kill();
    let counter = Counter::new(&store, [ample()]);
    let watch = Stopwatch::start();
    for _ in 0..5 {
        check(counter.admit(&[1]), StoreErrorKind::Unreachable, "refuse");
        check(counter.renew(secs(1), &[1]), StoreErrorKind::Unreachable, "refuse");
    }
    assert!(watch.elapsed() < ms(450), "ten refusals took {:?}: less than one timeout", watch.elapsed());
    check_modes(&store, StoreErrorKind::Unreachable, || server.restart());
}

#[test]
fn open_starts_jobs_under_the_local_limit_alone() {
    let mut server = Server::start();
    let store = store(&server.url());
    let failures = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failures);
    let on_event = move |event: &Event| {
        if matches!(event, Event::StoreError { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let rule = Rule::fixed_window(2, secs(3_600));
    let valve = valve(&store).rule(rule).concurrency(3).on_store_error(OnStoreError::Open).on_event(on_event);
    let valve = valve.build().unwrap();
    let kept: Vec<_> = (0..2).map(|_| valve.try_acquire().unwrap()).collect();
    server.kill();
    let third = valve.try_acquire().unwrap();
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. })), "the local limit holds");
    drop((kept, third));
    for _ in 0..10 {
        valve.run(|| ()).unwrap();
    }
    wait_until("the outage is told", || failures.load(Ordering::Relaxed) == 1);
    server.restart();
    wait_until("the rule holds again", || valve.try_acquire().is_err());
    assert_eq!(failures.load(Ordering::Relaxed), 1, "a denial is no failure");
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { .. })), "a denial opens nothing");
}

#[test]
fn each_mode_does_with_a_dead_server_what_it_says() {
    let mut server = Server::start();
    server.kill();
    for (mode, least, most) in [
        (OnStoreError::Wait, ms(200), ms(400)),
        (OnStoreError::Fail, ms(0), ms(100)),
        (OnStoreError::Open, ms(0), ms(100)),
    ] {
        let failures = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&failures);
        let on_event = move |event: &Event| {
            if matches!(event, Event::StoreError { .. }) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let valve = valve(&store(&server.url())).rule(ample()).on_store_error(mode).on_event(on_event);
        let valve = valve.build().unwrap();
        let started = AtomicUsize::new(0);
        let watch = Stopwatch::start();
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    let result =
                        valve.job().max_wait(ms(200)).run(|_| started.fetch_add(1, Ordering::Relaxed));
                    let fits = match mode {
                        OnStoreError::Wait => matches!(result, Err(Error::Timeout { .. })),
                        OnStoreError::Fail => matches!(result, Err(Error::StoreUnavailable(_))),
                        _ => result.is_ok(),
                    };
                    assert!(fits, "{mode:?}: {result:?}");
                });
            }
        });
        let took = watch.elapsed();
        assert!((least..most).contains(&took), "{mode:?}: {took:?}");
        let starts = if mode == OnStoreError::Open { 5 } else { 0 };
        assert_eq!(started.load(Ordering::Relaxed), starts, "{mode:?}");
        wait_until("the outage is told", || failures.load(Ordering::Relaxed) >= 1);
    }
}

#[test]
fn waiters_keep_their_own_deadlines_through_an_outage() {
    let mut server = Server::start();
    let valve = valve(&store(&server.url())).rule(ample()).build().unwrap();
    server.kill();
    thread::scope(|scope| {
        let call = |wait: Duration| {
            let valve = &valve;
            scope.spawn(move || {
                let watch = Stopwatch::start();
                (valve.job().max_wait(wait).run(|_| ()), watch.elapsed())
            })
        };
        let calls = [call(ms(400)), call(ms(800)), call(Duration::MAX)];
        nap(1_200);
        server.restart();
        let [first, second, third] = calls.map(|call| call.join().unwrap());
        for ((result, took), wait) in [(first, ms(400)), (second, ms(800))] {
            assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
            assert!((wait..wait + ms(200)).contains(&took), "{took:?} instead of {wait:?}");
        }
        assert!(third.0.is_ok(), "{:?}", third.0);
        assert!((ms(1_200)..ms(2_500)).contains(&third.1), "{:?}", third.1);
    });
}

#[test]
fn a_server_that_refuses_is_tried_again_while_someone_waits() {
    let mut server = Server::start();
    let valve = valve(&hasty_store(&server.url(), ms(200))).rule(ample()).build().unwrap();
    valve.run(|| ()).unwrap();
    server.kill();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..20).map(|_| scope.spawn(|| valve.run(|| ()))).collect();
        wait_until("all wait", || valve.stats().queued == 20);
        server.restart();
        let watch = Stopwatch::start();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        assert!(watch.elapsed() < secs(1), "{:?}", watch.elapsed());
    });
}
