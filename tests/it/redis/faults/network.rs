//! What networks do: hosts that vanish, replies that are late, cut or lost, commands that arrive when nobody waits for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use valve::{Executed, Rule, StoreError, StoreErrorKind};

use crate::redis::proxy::{Cut, Flow, Proxy, Slices, Way};
use crate::redis::server::Server;
use crate::redis::world::{Counter, builder, grants, hasty_store, leases, store, valve, wait_until};
use crate::redis::{Stopwatch, figure, nap};
use crate::support::{Random, ms, secs};

fn ample() -> Rule {
    Rule::fixed_window(1_000_000, secs(3_600)).into()
}

/// How many of two jobs start. On a busy machine an answer may take too long; the next does not.
#[track_caller]
fn good(counter: &Counter) -> usize {
    (0..5).find_map(|_| counter.admit(&[1, 1]).ok()).expect("five calls failed").granted
}

/// The outcome is not known, and the connection gone.
#[track_caller]
fn unknown<T: std::fmt::Debug>(result: Result<T, StoreError>, what: &str) -> StoreErrorKind {
    let error = result.expect_err(what);
    assert_eq!(error.executed(), Executed::Unknown, "{what}: {error}");
    error.kind()
}

#[test]
fn a_vanished_host_costs_each_call_its_timeout_and_no_more() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    proxy.vanish();
    let client = builder(&proxy.url()).timeout(ms(200)).connect_timeout(ms(200)).build().unwrap();
    let store = valve::RedisStore::new(&client);
    let counter = Counter::new(&store, [ample()]);
    for _ in 0..5 {
        let watch = Stopwatch::start();
        let error = counter.admit(&[1]).unwrap_err();
        assert_eq!(error.executed(), Executed::No, "{error}");
        assert!(watch.elapsed() < ms(200 + 200 + 100), "{:?}", watch.elapsed());
    }
    let valve = valve(&store).rule(ample()).build().unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..10).map(|_| scope.spawn(|| valve.run(|| ()))).collect();
        nap(1_500);
        proxy.heal();
        let watch = Stopwatch::start();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        assert!(watch.elapsed() <= secs(1), "the last starts {:?} after the path is back", watch.elapsed());
    });
}

#[test]
fn an_unknown_name_is_told_within_the_timeout() {
    let store = hasty_store("redis://no-such-host.invalid", ms(300));
    let counter = Counter::new(&store, [ample()]);
    for _ in 0..3 {
        let watch = Stopwatch::start();
        let error = counter.admit(&[1]).unwrap_err();
        assert_eq!(error.executed(), Executed::No, "{error}");
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
        assert!(watch.elapsed() < ms(300 + 200), "{:?}", watch.elapsed());
    }
}

#[test]
fn a_silent_server_is_given_up_and_its_connection_left() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(150));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    for lost in [Flow::Lost, Flow::Held, Flow::Unread] {
        proxy.both(lost);
        let watch = Stopwatch::start();
        let kind = unknown(counter.admit(&[1]), "it answered");
        assert_eq!(kind, StoreErrorKind::Timeout, "{lost:?}");
        assert!((ms(150)..ms(350)).contains(&watch.elapsed()), "{lost:?}: {:?}", watch.elapsed());
        proxy.heal();
        // Whatever comes late comes to nobody: batches of different sizes show whose answer it is.
        for jobs in [3, 5, 7] {
            assert_eq!(counter.admit(&vec![1; jobs]).unwrap().granted, jobs, "{lost:?}");
        }
    }
}

#[test]
fn a_frozen_server_is_given_up_and_good_again_after() {
    let server = Server::start();
    let store = hasty_store(&server.url(), ms(150));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    server.freeze();
    for _ in 0..3 {
        let watch = Stopwatch::start();
        assert!(counter.admit(&[1]).is_err());
        assert!(watch.elapsed() < ms(150 + 500 + 100), "{:?}", watch.elapsed());
    }
    server.thaw();
    for jobs in 1..10 {
        assert_eq!(counter.admit(&vec![1; jobs]).unwrap().granted, jobs);
    }
}

/// Every call has a token of its own, the script writes down which fencing token it gave it, and the caller must have heard
/// that one.
#[test]
fn a_reply_at_the_timeout_never_reaches_another_call() {
    const THREADS: u64 = 10;
    const CALLS: u64 = 1_000;
    let server = Server::start();
    let (late, heard) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let told = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (server, late, heard, told) = (server.address(), &late, &heard, &told);
            scope.spawn(move || {
                let proxy = Proxy::to(server);
                let client = builder(&proxy.url()).timeout(ms(12)).connections(1).build().unwrap();
                let counter = Counter::of(&format!("id{number}"), &valve::RedisStore::new(&client), []);
                let mut random = Random::new(number);
                for call in 0..CALLS {
                    // From well in time to just not in time, for the way itself takes some milliseconds.
                    proxy.delay(Way::Down, Duration::from_micros(5_000 + random.below(8_000)));
                    let token = u128::from(number * CALLS + call + 1);
                    match counter.take(u32::MAX, secs(600), &[token]) {
                        Ok(answer) => {
                            heard.fetch_add(1, Ordering::Relaxed);
                            told.lock().push((token, answer.fence.unwrap().get(), answer.granted));
                        }
                        Err(_) => {
                            late.fetch_add(1, Ordering::Relaxed);
                            // A new connection's handshake should not be as slow.
                            proxy.delay(Way::Down, Duration::ZERO);
                        }
                    }
                }
            });
        }
    });
    let written = grants(&server).into_iter().map(|grant| (grant.token.unwrap(), grant.fence));
    let written: std::collections::HashMap<_, _> = written.collect();
    let (late, heard) = (late.into_inner(), heard.into_inner());
    for (token, fence, granted) in told.into_inner() {
        assert_eq!(
            (written.get(&token), granted),
            (Some(&fence), 1),
            "token {token} heard of another's grant"
        );
    }
    figure(&format!("{late} calls were given up, {heard} answered; none heard another's answer"));
    assert_eq!(late + heard, (THREADS * CALLS) as usize);
    assert!(late > 500 && heard > 500, "the delays miss the timeout: {late} late, {heard} heard");
}

#[test]
fn a_reply_cut_anywhere_is_no_reply() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(100));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    // The first connection has another ask beside it for what the server is set to.
    nap(200);
    let before = proxy.passed(Way::Down);
    assert!(counter.admits());
    let length = (proxy.passed(Way::Down) - before) as usize;
    assert!(length > 20, "an answer of {length} bytes");
    for cut in [Cut::Stall, Cut::Close, Cut::Reset] {
        for bytes in (0..length).step_by(if cut == Cut::Stall { 5 } else { 1 }) {
            proxy.cut_after(Way::Down, bytes, cut);
            let kind = unknown(counter.admit(&[1]), "a cut reply");
            let expected =
                if cut == Cut::Stall { StoreErrorKind::Timeout } else { StoreErrorKind::Unreachable };
            assert_eq!(kind, expected, "{cut:?} after {bytes}");
            proxy.heal();
            assert_eq!(good(&counter), 2, "{cut:?} after {bytes}");
        }
    }
}

#[test]
fn a_request_cut_anywhere_never_runs_by_half() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(100));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    nap(200);
    let before = proxy.passed(Way::Up);
    assert!(counter.admits());
    let length = (proxy.passed(Way::Up) - before) as usize;
    for cut in [Cut::Stall, Cut::Close, Cut::Reset] {
        for bytes in (0..length).step_by(if cut == Cut::Stall { 23 } else { 3 }) {
            proxy.cut_after(Way::Up, bytes, cut);
            assert!(counter.admit(&[7]).is_err(), "{cut:?} after {bytes}");
            // What stalled goes on, and comes too late.
            proxy.heal();
            assert_eq!(good(&counter), 2, "{cut:?} after {bytes}");
        }
    }
    nap(50);
    assert!(
        grants(&server).iter().all(|grant| grant.cost == 1),
        "half a request was made whole later and ran"
    );
}

#[test]
fn a_reply_that_drips_cannot_stretch_a_call() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(200));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    proxy.slice(Way::Down, Slices { bytes: 1, apart: ms(50) });
    let watch = Stopwatch::start();
    assert_eq!(unknown(counter.admit(&[1]), "a dripping reply"), StoreErrorKind::Timeout);
    assert!((ms(200)..ms(350)).contains(&watch.elapsed()), "{:?}", watch.elapsed());
    proxy.heal();
    // One that drips fast enough is a reply.
    proxy.slice(Way::Down, Slices { bytes: 7, apart: ms(2) });
    assert_eq!(counter.admit(&[1, 1]).unwrap().granted, 2);
}

#[test]
fn connections_that_the_server_closed_while_idle_cost_no_call() {
    let server = Server::start();
    server.cli(&["CONFIG", "SET", "timeout", "1"]);
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    let before = server.info("connected_clients");
    wait_until("the server closes them", || server.info("connected_clients") < before);
    nap(1_100);
    for _ in 0..3 {
        assert!(counter.admits());
    }
}

/// Held back until its caller has given up, each command arrives late.
#[test]
fn a_command_that_arrives_late_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(150));
    let rule = || [Rule::fixed_window(5, secs(3_600)).into()];
    let counter = Counter::new(&store, rule());
    let direct = Counter::new(&crate::redis::world::store(&server.url()), rule());
    assert!(counter.admits());
    assert_eq!(direct.take(1, ms(600), &[9]).unwrap().granted, 1);
    let executed = || server.calls("evalsha");
    let warm = Counter::of("warm", &store, []);
    let late = |what: &str, call: &dyn Fn() -> bool| {
        // Connections are there, so what is held back is the command.
        assert!(warm.admits());
        warm.renew(secs(1), &[1]).unwrap();
        proxy.flow(Way::Up, Flow::Held);
        assert!(call(), "{what}");
        let before = executed();
        nap(50);
        proxy.heal();
        wait_until("it arrives", || executed() > before);
        nap(10);
    };
    late("acquire", &|| unknown(counter.admit(&[1]), "acquire") == StoreErrorKind::Timeout);
    late("take", &|| unknown(counter.take(5, secs(60), &[1]), "take") == StoreErrorKind::Timeout);
    late("renew", &|| unknown(counter.renew(secs(60), &[9]), "renew") == StoreErrorKind::Timeout);
    late("pause", &|| unknown(counter.pause(secs(60)), "pause") == StoreErrorKind::Timeout);
    let ours = grants(&server).iter().filter(|grant| grant.id == "id").count();
    assert_eq!(ours, 2, "a late grant");
    assert_eq!(direct.admit(&[1; 5]).unwrap().granted, 3, "a late pause, or a late spending");
    wait_until("the lease ends as if nobody had renewed it", || {
        leases(&server) == 0 || { direct.renew(secs(1), &[9]).unwrap() == [false] }
    });

    direct.pause(secs(60)).unwrap();
    late("resume", &|| unknown(counter.resume(), "resume") == StoreErrorKind::Timeout);
    assert!(direct.admit(&[1]).unwrap().refusal.unwrap().pause.is_some(), "a late resume");
    direct.resume().unwrap();

    // A release is worth doing late, and does it to its own token only.
    let slots = Counter::of("slots", &store, []);
    let beside = Counter::of("slots", &crate::redis::world::store(&server.url()), []);
    assert_eq!(beside.take(5, secs(60), &[1, 2]).unwrap().granted, 2);
    // The server knows the script already.
    slots.release(&[3]).unwrap();
    late("release", &|| slots.release(&[1]).is_err());
    assert_eq!(beside.renew(secs(60), &[1, 2]).unwrap(), [false, true]);
}

/// The server itself is slow: what it does after its caller has gone is done too late.
#[test]
fn a_server_that_wakes_late_changes_nothing() {
    let server = Server::start();
    let store = hasty_store(&server.url(), ms(150));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    let before = server.calls("evalsha");
    server.freeze();
    unknown(counter.take(1, secs(60), &[1]), "the server sleeps");
    nap(100);
    server.thaw();
    wait_until("it does what it was sent", || server.calls("evalsha") > before);
    assert_eq!((grants(&server).len(), leases(&server)), (1, 0));
    assert_eq!(counter.take(1, secs(60), &[2]).unwrap().granted, 1);
}

/// Its reply is lost, so nobody knows of the grant: the unit stays spent, and the slot comes back with the lease's end.
#[test]
fn a_grant_that_nobody_hears_of_stays_spent_and_starts_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(150));
    let ttl = ms(600);
    let rule = Rule::fixed_window(3, secs(3_600));
    let valve = valve(&store).rule(rule).global_concurrency(1, ttl).build().unwrap();
    valve.run(|| ()).unwrap();
    proxy.delay(Way::Down, ms(250));
    let waited = Stopwatch::start();
    thread::scope(|scope| {
        let retried = scope.spawn(|| valve.run(|| ()));
        wait_until("the orphan is granted", || grants(&server).len() == 2);
        proxy.delay(Way::Down, Duration::ZERO);
        retried.join().unwrap().unwrap();
    });
    let grants = grants(&server);
    assert_eq!(grants.len(), 3, "one that ran, one that nobody heard of, one that ran: {grants:?}");
    let apart = grants[2].at - grants[1].at;
    // Released for safety's sake, it is free sooner than it ends.
    assert!(apart <= 660_000, "the slot of the orphan came back after {apart} us");
    assert!(waited.elapsed() < secs(3), "{:?}", waited.elapsed());
    assert!(valve.try_acquire().is_err(), "the unit of the orphan was given back");
    assert_eq!(valve.stats().started, 2);
}
