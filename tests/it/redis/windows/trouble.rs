//! Trouble with the server never keeps a job from running, nor is it told to whoever called.

use std::time::Duration;

use valve::{Ran, Redis, RedisEngine, ThrottleError};

use super::{Throttle, call, engine, throttle};
use crate::redis::server::Server;
use crate::redis::world::wait_until;
use crate::redis::{Stopwatch, nap};
use crate::support::ms;

/// A throttle whose calls to the server may take so long.
fn hasty(url: &str, window: u64, timeout: Duration) -> Throttle {
    let redis = Redis::builder(url).timeout(timeout).connect_timeout(timeout).build().unwrap();
    throttle("t:", window, RedisEngine::new(&redis))
}

#[test]
fn a_frozen_server_delays_a_run_by_the_clients_timeout() {
    let server = Server::start();
    let throttle = hasty(&server.url(), 100, ms(300));
    assert_eq!(call(&throttle, "warm"), Ran::Now);
    server.freeze();
    let watch = Stopwatch::start();
    let started = throttle.job("1", move |_| {
        let took = watch.elapsed();
        assert!(took >= ms(290), "it did not wait for the engine: {took:?}");
        assert!(took < ms(2_000), "it waited for more than a timeout: {took:?}");
        Ok(1)
    });
    assert_eq!(started.exec().unwrap(), Ran::Now);
    // The window was closed by a second call, which timed out as well.
    assert!(watch.elapsed() < ms(4_000), "{:?}", watch.elapsed());
    server.thaw();
}

#[test]
fn five_calls_to_a_frozen_server_are_waited_for_and_no_more() {
    let server = Server::start();
    let timeout = ms(400);
    let throttle = hasty(&server.url(), 100, timeout);
    assert_eq!(call(&throttle, "warm"), Ran::Now);
    server.freeze();
    let took: Vec<_> = ["1", "2", "3", "4"]
        .map(|key| {
            let watch = Stopwatch::start();
            assert_eq!(call(&throttle, key), Ran::Now);
            watch.elapsed()
        })
        .into();
    // Two calls for each run, of which the first waits for all its time; a later one may learn from the attempt to connect
    // that an earlier one began. The fifth opens the breaker.
    assert!(took[..3].iter().sum::<Duration>() >= timeout * 2, "{took:?}");
    assert!(took[3] < timeout, "an engine that hung five times is still waited for: {took:?}");
    server.thaw();
    let watch = Stopwatch::start();
    wait_until("a window is on the server again", || {
        let _ = call(&throttle, "again");
        nap(20);
        server.cli(&["EXISTS", "t:again"]).int() == 1
    });
    assert!(watch.elapsed() < Duration::from_secs(20), "{:?}", watch.elapsed());
}

#[test]
fn jobs_run_while_the_server_is_gone_and_windows_are_shared_again_once_it_is_back() {
    let mut server = Server::start();
    let throttle = hasty(&server.url(), 200, ms(300));
    server.kill();
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(call(&throttle, key), Ran::Now, "key {key}");
    }
    server.restart();
    // The breaker opened: within ten seconds and a probe the server is used again.
    let watch = Stopwatch::start();
    wait_until("a window is on the server", || {
        let _ = call(&throttle, "again");
        nap(60);
        !server.keys().is_empty()
    });
    assert!(watch.elapsed() < Duration::from_secs(20), "{:?}", watch.elapsed());
}

#[test]
fn a_flushed_server_and_one_without_memory_stop_no_job() {
    let server = Server::start();
    let throttle = throttle("t:", 50, engine(&server.url()));
    assert_eq!(call(&throttle, "1"), Ran::Now);
    server.cli(&["FLUSHALL"]);
    assert_eq!(call(&throttle, "2"), Ran::Now);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(call(&throttle, "3"), Ran::Now);
    wait_until("all windows are over", || throttle.stats().keys == 0);
}

#[test]
fn a_foreign_value_is_waited_for_one_window_at_a_time_and_given_up() {
    let server = Server::start();
    let throttle = throttle("t:", 20, engine(&server.url()));
    for (key, foreign) in [("text", &["SET", "t:text", "12abc"][..]), ("list", &["RPUSH", "t:list", "x"])] {
        server.cli(foreign);
        let watch = Stopwatch::start();
        let result = throttle.job(key, |_| Ok(1)).wait_finish().timeout(Duration::from_secs(10)).exec();
        // Ten races lost, a window apart: the tenth ends it.
        assert!(matches!(result, Err(ThrottleError::Dropped { .. })), "{key}: {result:?}");
        assert!(watch.elapsed() >= ms(9 * 20), "{key} after {:?}", watch.elapsed());
        assert_eq!(server.cli(&["EXISTS", &format!("t:{key}")]).int(), 1, "the foreign value is gone");
        server.cli(&["DEL", &format!("t:{key}")]);
        assert_eq!(call(&throttle, key), Ran::Now);
    }
}

#[test]
fn a_password_is_in_no_debug_output() {
    let redis = Redis::open("redis://user:hunter2@127.0.0.1:1").unwrap();
    assert!(!format!("{:?}", RedisEngine::new(&redis)).contains("hunter2"));
}
