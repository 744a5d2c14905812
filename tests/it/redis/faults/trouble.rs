//! Everything at once, at random, and the returns from it: no bound breaks, every call ends, and all go on when it is over.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use valve::{Error, OnStoreError, RedisStore, Rule, Valve};

use crate::redis::proxy::Proxy;
use crate::redis::server::Server;
use crate::redis::world::{Counter, Entry, builder_as, log, most_held, store, valve, wait_until};
use crate::redis::{Stopwatch, figure, nap, world};
use crate::support::{Random, SECOND, most_in_any, ms, secs};

/// How long the random trouble lasts; `VALVE_TROUBLE_SECONDS` makes it longer.
fn trouble_length() -> Duration {
    let seconds = std::env::var("VALVE_TROUBLE_SECONDS").ok().and_then(|text| text.parse().ok());
    secs(seconds.unwrap_or(15))
}

const MAX_WAIT: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_millis(200);

#[test]
fn bounds_hold_and_every_call_ends_whatever_the_network_does() {
    let server = Server::start();
    let proxies = [Proxy::to(server.address()), Proxy::to(server.address())];
    let (over, ended, started, latest) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    let valves: Vec<_> = proxies
        .iter()
        .zip(["one", "two"])
        .flat_map(|(proxy, name)| {
            let client = builder_as(name, &proxy.url()).timeout(TIMEOUT).build().unwrap();
            let store = RedisStore::new(&client);
            let rates: [Rule; 2] =
                [Rule::gcra(50, secs(1)).burst(5).into(), Rule::fixed_window(40, secs(1)).into()];
            let both = rates.into_iter().fold(valve(&store), valve::ValveBuilder::rule);
            let slots = Valve::builder("slots").store(store).on_store_error(OnStoreError::Fail);
            [both.build().unwrap(), slots.global_concurrency(4, ms(600)).build().unwrap()]
        })
        .collect();
    let call = |valve: &Valve, random: &mut Random| {
        let watch = Stopwatch::start();
        let result = valve.job().max_wait(MAX_WAIT).run(|_| {
            started.fetch_add(1, Ordering::Relaxed);
            nap(random.below(20));
        });
        ended.fetch_add(1, Ordering::Relaxed);
        latest.fetch_max(watch.elapsed().as_millis() as u64, Ordering::Relaxed);
        match result {
            Ok(()) | Err(Error::Timeout { .. } | Error::LeaseLost) => {}
            // In haste to be refused again, the others would get no time.
            Err(Error::StoreUnavailable(_)) => nap(20),
            Err(other) => panic!("{other:?}"),
        }
    };
    thread::scope(|scope| {
        for (number, valve) in valves.iter().cycle().take(12).enumerate() {
            let (over, call) = (&over, &call);
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                while !over.load(Ordering::Relaxed) {
                    call(valve, &mut random);
                }
            });
        }
        let troubled: Vec<_> = proxies
            .iter()
            .zip([11, 12])
            .map(|(proxy, seed)| {
                scope.spawn({
                    let over = &over;
                    move || proxy.trouble(seed, over)
                })
            })
            .collect();
        nap(trouble_length().as_millis() as u64);
        over.store(true, Ordering::Relaxed);
        let done: u64 = troubled.into_iter().map(|troubled| troubled.join().unwrap()).sum();
        assert!(done > 20, "it was troubled {done} times");
        figure(&format!("{done} troubles, {} calls ended", ended.load(Ordering::Relaxed)));
    });
    let (latest, started) = (latest.into_inner(), started.into_inner());
    figure(&format!("{started} jobs started; a call that may wait 300 ms took at most {latest} ms"));
    assert!(latest < 1_500, "a call that may wait 300 ms took {latest} ms");
    for valve in &valves {
        valve.job().max_wait(secs(2)).run(|_| ()).expect("it goes on when all is well again");
    }
    check(&log(&server), started);
}

/// Every bound holds in what the server did, whoever heard of it.
#[track_caller]
fn check(log: &[Entry], started: usize) {
    let of = |id: &str| -> Vec<Entry> { log.iter().filter(|entry| entry.id == id).cloned().collect() };
    let rates = world::units(&world::grants_in(&of("id")));
    assert!(most_in_any(&rates, SECOND) < 50 + 5, "{}", most_in_any(&rates, SECOND));
    for window in rates.chunk_by(|one, other| one.0 / SECOND == other.0 / SECOND) {
        assert!(window.len() <= 40, "{} in one window", window.len());
    }
    assert!(most_held(&of("slots")) <= 4);
    let granted = world::grants_in(log).len();
    assert!(started <= granted, "{started} jobs started by {granted} grants");
    assert!(started > 100, "{started} jobs started");
}

#[test]
fn all_waiters_go_on_within_a_second_of_the_servers_return() {
    let mut server = Server::start();
    let store = store(&server.url());
    let valves = ["one", "two"].map(|id| {
        let rule = Rule::gcra(1_000, secs(1)).burst(1_000);
        Valve::builder(id).store(store.clone()).rule(rule).build().unwrap()
    });
    let mut random = Random::new(7);
    let mut slowest = Duration::ZERO;
    for round in 0..20 {
        for valve in &valves {
            valve.run(|| ()).unwrap();
        }
        let took = thread::scope(|scope| {
            server.kill();
            let waiters: Vec<_> =
                valves.iter().cycle().take(10).map(|valve| scope.spawn(|| valve.run(|| ()))).collect();
            wait_until("all wait", || valves.iter().all(|valve| valve.stats().queued == 5));
            nap(random.below(900));
            server.launch();
            server.await_ready();
            let watch = Stopwatch::start();
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
            watch.elapsed()
        });
        assert!(took <= secs(1), "round {round}: {took:?} after the first PONG");
        slowest = slowest.max(took);
    }
    figure(&format!("20 restarts, the last of 10 waiters started at most {slowest:?} after the first PONG"));
}

/// There is no queue of commands for a server that is away.
#[test]
fn calls_made_while_the_server_is_away_are_never_sent() {
    let mut server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [Rule::gcra(1_000, secs(1)).burst(1_000).into()]);
    assert!(counter.admits());
    server.kill();
    for token in 0..20 {
        assert!(counter.take(100, secs(60), &[token]).is_err());
        assert!(counter.pause(secs(60)).is_err());
    }
    server.launch();
    server.await_ready();
    nap(500);
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 0, "something was sent later");
    assert!(server.keys().is_empty(), "{:?}", server.keys());
    assert_eq!(counter.take(100, secs(60), &[20]).unwrap().granted, 1);
}

#[test]
fn all_waiters_go_on_within_a_second_of_a_thaw() {
    let server = Server::start();
    let store = world::hasty_store(&server.url(), ms(200));
    let valve = valve(&store).rule(Rule::gcra(1_000, secs(1)).burst(1_000)).build().unwrap();
    for stop in [300, 900, 1_500] {
        valve.run(|| ()).unwrap();
        thread::scope(|scope| {
            server.freeze();
            let waiters: Vec<_> = (0..10).map(|_| scope.spawn(|| valve.run(|| ()))).collect();
            nap(stop);
            server.thaw();
            let watch = Stopwatch::start();
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
            assert!(watch.elapsed() <= secs(1), "{:?} after {stop} ms", watch.elapsed());
        });
    }
}
