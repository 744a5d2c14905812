//! Throttles that share windows on a server: what is stored, what goes over the wire, and one run per window between
//! processes.

mod fleet;
mod trouble;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use valve::testing::engine_contract;
use valve::{Engine, Phase, Ran, Redis, RedisEngine, SetOptions, ThrottleWindow};

use super::resp::{Client, Reply};
use super::server::Server;
use super::world::wait_until;
use super::{Stopwatch, nap};
use crate::support::ms;

type Throttle = ThrottleWindow<u32, std::io::Error>;

pub(crate) fn engine(url: &str) -> RedisEngine {
    RedisEngine::new(&Redis::open(url).unwrap())
}

pub(crate) fn throttle(prefix: &str, window: u64, engine: RedisEngine) -> Throttle {
    Throttle::builder(prefix).window(ms(window)).engine(engine).build().unwrap()
}

/// Runs the key's job, which does nothing.
fn call(throttle: &Throttle, key: &str) -> Ran {
    throttle.job(key, |_| Ok(1)).exec().unwrap()
}

fn pttl(server: &Server, key: &str) -> i64 {
    server.cli(&["PTTL", key]).int()
}

/// The stored end of a window, in milliseconds of the epoch.
fn end(server: &Server, key: &str) -> u64 {
    server.cli(&["GET", key]).text().parse().unwrap()
}

fn server_ms(server: &Server) -> u64 {
    server.time() / 1_000
}

#[test]
fn the_redis_engine_keeps_the_contract() {
    let server = Server::start();
    let url = server.url();
    let fresh = || {
        server.cli(&["FLUSHALL"]);
        engine(&url)
    };
    engine_contract(fresh, |length| nap(u64::try_from(length.as_millis()).unwrap() + 1));
}

#[test]
fn a_window_is_one_string_that_expires_by_itself() {
    let server = Server::start();
    let throttle = throttle("sync:room:", 300, engine(&server.url()));
    std::thread::scope(|scope| {
        let job = scope.spawn(|| {
            let run = |_: &valve::Run<'_>| {
                nap(120);
                Ok(1)
            };
            throttle.job("4{2}%", run).exec().unwrap()
        });
        wait_until("it runs", || server.cli(&["EXISTS", "sync:room:4{2}%"]).int() == 1);
        let (now, lease) = (server_ms(&server), end(&server, "sync:room:4{2}%"));
        // The lease while it runs is the longer of W and 2 * max(W/2, 100 ms).
        assert!((200..=300).contains(&(lease - now)), "{lease} at {now}");
        assert_eq!(job.join().unwrap(), Ran::Now);
    });

    let (now, over) = (server_ms(&server), end(&server, "sync:room:4{2}%"));
    assert!((200..=301).contains(&(over - now)), "the window ends at {over}, now is {now}");
    assert_eq!(server.cli(&["TYPE", "sync:room:4{2}%"]).text(), "string");
    let left = pttl(&server, "sync:room:4{2}%");
    assert!((1..=300).contains(&left), "{left} ms left");
    assert_eq!(server.keys(), [b"sync:room:4{2}%".to_vec()], "exactly prefix and key, and nothing else");
    wait_until("the window is over", || server.keys().is_empty());
    wait_until("it is forgotten here too", || throttle.stats().keys == 0);
}

#[test]
fn only_three_commands_go_over_the_wire() {
    let server = Server::start();
    let mut monitor: Client = server.client();
    assert_eq!(monitor.ask(&[b"MONITOR"]).unwrap(), Reply::Status("OK".to_owned()));
    let shared = engine(&server.url());
    let (one, two) = (throttle("k:", 150, shared.clone()), throttle("k:", 150, shared.clone()));
    assert_eq!(call(&one, "a"), Ran::Now);
    // It loses the race, reads the window's end, and runs then.
    assert_eq!(call(&two, "a"), Ran::Later);
    wait_until("its run is over", || two.stats().keys == 0);
    shared.del("k:a").unwrap();
    shared.clear().unwrap();
    server.cli(&["ECHO", "over"]);

    let mut seen = Vec::new();
    loop {
        let Reply::Status(line) = monitor.receive().unwrap() else { panic!("no line of MONITOR") };
        let command = line.split_once("] ").unwrap().1.to_owned();
        if command == r#""ECHO" "over""# {
            break;
        }
        seen.push(command);
    }
    let mut ours: Vec<_> = seen.iter().filter(|line| line.contains("k:a")).map(|line| shape(line)).collect();
    let others: Vec<_> = seen.iter().filter(|line| !line.contains("k:a")).collect();
    assert!(others.iter().all(|line| line.as_str() == r#""TIME""#), "{others:?}");
    // The stored end was taken before it was sent: who tries again then may be a little early, and loses once more.
    while ours[3..].starts_with(&["GET k:a".into(), "SET k:a end PX 200 NX".into(), "GET k:a".into()]) {
        ours.drain(3..5);
    }
    assert_eq!(
        ours,
        [
            "SET k:a end PX 200 NX",
            "SET k:a end PX 150",
            "SET k:a end PX 200 NX",
            "GET k:a",
            "SET k:a end PX 200 NX",
            "SET k:a end PX 150",
            "DEL k:a",
        ]
    );
}

/// The command without quotes, and a time as what it is.
fn shape(line: &str) -> String {
    let words = line.split(' ').map(|word| word.trim_matches('"'));
    let known = words.map(|word| if word.len() == 13 && word.parse::<u64>().is_ok() { "end" } else { word });
    known.collect::<Vec<_>>().join(" ")
}

#[test]
fn prefixes_keep_throttles_on_one_engine_apart() {
    let server = Server::start();
    let shared = engine(&server.url());
    let (one, two) = (throttle("a:", 500, shared.clone()), throttle("b:", 500, shared));
    assert_eq!((call(&one, "42"), call(&two, "42")), (Ran::Now, Ran::Now));
}

#[test]
fn destroy_leaves_the_engine_and_its_keys() {
    let server = Server::start();
    let shared = engine(&server.url());
    let throttle = throttle("a:", 5_000, shared.clone());
    let _ = call(&throttle, "1");
    throttle.destroy();
    assert_eq!(server.keys(), [b"a:1".to_vec()]);
    assert!(!shared.set("a:1", "0", SetOptions::new(ms(10)).if_absent()).unwrap());
}

#[test]
fn a_run_that_lasts_many_windows_is_never_overlapped() {
    let server = Server::start();
    let tries = poach_during_a_run(&server, |_| ());
    assert!(tries >= 15, "{tries} tries");
}

#[test]
fn the_loser_runs_its_calls_when_the_winners_window_ends() {
    let server = Server::start();
    let (one, two) = (throttle("a:", 200, engine(&server.url())), throttle("a:", 200, engine(&server.url())));
    assert_eq!(call(&one, "1"), Ran::Now);
    let window = Stopwatch::start();
    let covered = two.job("1", |run| {
        assert_eq!(run.phase, Phase::Trailing);
        Ok(7)
    });
    assert_eq!(covered.wait_finish().timeout(Duration::from_secs(5)).exec().unwrap(), 7);
    assert!(window.elapsed() >= ms(190), "within the other's window, after {:?}", window.elapsed());
}

#[test]
fn a_destroyed_throttles_run_keeps_its_key_until_it_ends() {
    let server = Server::start();
    poach_during_a_run(&server, Throttle::destroy);
}

/// Another instance tries to take a key all the while that a run of 14 windows executes; how often it tried in vain.
fn poach_during_a_run(server: &Server, meanwhile: impl FnOnce(&Throttle)) -> usize {
    let (throttle, other) = (throttle("a:", 50, engine(&server.url())), engine(&server.url()));
    let over = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let job = scope.spawn(|| {
            let over = Arc::clone(&over);
            let run = move |_: &valve::Run<'_>| {
                nap(700);
                over.store(1, Ordering::SeqCst);
                Ok(1)
            };
            throttle.job("1", run).exec().unwrap()
        });
        wait_until("it runs", || !server.keys().is_empty());
        meanwhile(&throttle);
        let mut tries = 0;
        while over.load(Ordering::SeqCst) == 0 {
            let won = other.set("a:1", "0", SetOptions::new(ms(10)).if_absent()).unwrap();
            assert!(
                !won || over.load(Ordering::SeqCst) == 1,
                "another instance could run it, at try {tries}"
            );
            tries += 1;
            nap(10);
        }
        assert_eq!(job.join().unwrap(), Ran::Now);
        tries
    })
}

#[test]
fn flush_never_overlaps_a_run_elsewhere() {
    let server = Server::start();
    let (one, two) = (throttle("a:", 500, engine(&server.url())), throttle("a:", 500, engine(&server.url())));
    let running = Arc::new(AtomicUsize::new(0));
    let run = |running: &Arc<AtomicUsize>| {
        let running = Arc::clone(running);
        move |_: &valve::Run<'_>| {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two instances run the key");
            nap(300);
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(1)
        }
    };
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| one.job("1", run(&running)).exec().unwrap());
        wait_until("it runs", || running.load(Ordering::SeqCst) == 1);
        assert_eq!(two.job("1", run(&running)).exec().unwrap(), Ran::Later);
        // It cannot tell the other's window from its run, and waits for both.
        assert_eq!(two.flush(), 1);
        assert_eq!(two.stats().trailing, 1);
        assert_eq!(leader.join().unwrap(), Ran::Now);
    });
}
