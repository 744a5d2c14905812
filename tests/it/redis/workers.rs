//! What worker processes do, by name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use valve::{Redis, RedisStore, Rule, Valve};

use super::process::Orders;
use super::world::{builder, builder_as, valve};
use super::{Stopwatch, nap};
use crate::peers::stepped_clock;

/// Runs in a process of its own until the work is done.
pub(crate) fn work(name: &str, orders: &Orders) {
    match name {
        "echo" => {
            orders.say(&format!("greeting {}", orders.text("greeting")));
            orders.say(&format!("heard {}", orders.hear()));
        }
        "hold" => hold(orders),
        "hold-many" => hold_many(orders),
        "saturate" => saturate(orders),
        "throttle" => super::windows::worker::work(orders),
        "wait" => wait(orders),
        other => panic!("no worker is called {other}"),
    }
}

fn client(orders: &Orders) -> Redis {
    let url = orders.text("url");
    orders.get("name").map_or_else(|| builder(&url), |name| builder_as(name, &url)).build().unwrap()
}

fn ttl(orders: &Orders) -> Duration {
    Duration::from_millis(orders.number("ttl"))
}

/// Holds a slot in one job, and says what it sees of it when asked to look.
fn hold(orders: &Orders) {
    let store = RedisStore::new(&client(orders));
    let limit = orders.number("limit") as u32;
    let valve = valve(&store).global_concurrency(limit, ttl(orders)).build().unwrap();
    let called = std::sync::Arc::new(AtomicUsize::new(0));
    let counting = std::sync::Arc::clone(&called);
    let result = valve.job().run(|running| {
        let _guard = running.on_abort(move |_| {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        orders.say(&format!("holds {}", running.fencing_token().unwrap()));
        while orders.hear() == "look" {
            orders.say(&format!("aborted {}", running.is_aborted()));
        }
        // The callback has a thread of its own.
        nap(100);
    });
    orders.say(&format!("callback {}", called.load(Ordering::Relaxed)));
    orders.say(&format!("ended {}", result.map_or_else(|error| error.code(), |()| 0)));
}

/// Holds a slot of each of many ids until it is killed.
fn hold_many(orders: &Orders) {
    let store = RedisStore::new(&client(orders));
    let permits: Vec<_> = (0..orders.number("ids"))
        .map(|number| {
            let valve = Valve::builder(format!("id{number}")).store(store.clone());
            valve.global_concurrency(1, ttl(orders)).build().unwrap().acquire_owned().unwrap()
        })
        .collect();
    orders.say(&format!("holds {}", permits.len()));
    orders.hear();
}

/// Starts jobs as fast as it may. A rule is `limit/ms/burst`, or `limit/ms` for a window.
fn saturate(orders: &Orders) {
    if let Some(skew) = orders.get("skew") {
        stepped_clock::set_wrong(skew.parse().unwrap());
    }
    let wall = wall();
    orders.say(&format!("wall {wall}"));
    let store = RedisStore::new(&client(orders));
    let mut builder = Valve::builder(orders.get("id").unwrap_or("id")).store(store);
    for rule in orders.text("rule").split(' ') {
        builder = builder.rule(parse(rule));
    }
    if let Some(slots) = orders.get("slots") {
        builder = builder.global_concurrency(slots.parse().unwrap(), ttl(orders));
    }
    let valve = builder.build().unwrap();
    let length = Duration::from_millis(orders.number("ms"));
    let lasts = orders.get("lasts").map_or(0, |text| text.parse().unwrap());
    let (watch, started) = (Stopwatch::start(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..orders.get("threads").map_or(2, |text| text.parse().unwrap()) {
            scope.spawn(|| {
                while watch.elapsed() < length {
                    let wait = length.saturating_sub(watch.elapsed());
                    if valve.job().max_wait(wait).run(|_| nap(lasts)).is_ok() {
                        started.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    orders.say(&format!("started {}", started.load(Ordering::Relaxed)));
}

fn parse(rule: &str) -> Rule {
    let parts: Vec<u64> = rule.split('/').map(|part| part.parse().unwrap()).collect();
    let (limit, interval) = (parts[0] as u32, Duration::from_millis(parts[1]));
    match parts.get(2) {
        Some(&burst) => Rule::gcra(limit, interval).burst(burst as u32).into(),
        None => Rule::fixed_window(limit, interval).into(),
    }
}

/// Waits for one start after the other and says how long each took, until it hears of no more.
fn wait(orders: &Orders) {
    let store = RedisStore::new(&client(orders));
    let valve = valve(&store).rule(parse(&orders.text("rule"))).build().unwrap();
    orders.say("ready");
    while orders.hear() == "start" {
        let watch = Stopwatch::start();
        let result = valve.job().max_wait(Duration::from_secs(20)).run(|_| ());
        orders.say(&format!("waited {} {}", watch.elapsed().as_millis(), result.is_ok()));
    }
}

#[expect(clippy::disallowed_methods, reason = "what this process takes the time to be")]
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
