//! An instance of a service in a process of its own: calls keys at random, and writes calls and runs down on the server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::{Throttle, engine};
use crate::peers::stepped_clock;
use crate::redis::process::Orders;
use crate::redis::resp::Client;
use crate::redis::{Stopwatch, nap};
use crate::support::{Random, ms};

/// Where calls and runs are written down, in their order by the server.
pub(crate) const RUNS: &str = "runs";

thread_local! {
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Writes an entry down; its id is the server's time in milliseconds.
fn note(address: SocketAddr, what: &str, key: &str, name: &str) {
    CLIENT.with_borrow_mut(|client| {
        let client = client.get_or_insert_with(|| Client::connect(address).unwrap());
        let parts = ["XADD", RUNS, "*", "what", what, "key", key, "by", name];
        client.ask(&parts.map(str::as_bytes)).unwrap();
    });
}

/// Runs until its time is up and no call of its own waits any more.
pub(crate) fn work(orders: &Orders) {
    if let Some(skew) = orders.get("skew") {
        stepped_clock::set_wrong(skew.parse().unwrap());
    }
    let (name, address) = (orders.text("name"), orders.text("log").parse::<SocketAddr>().unwrap());
    let (keys, lasts, length) = (orders.number("keys"), orders.number("lasts"), ms(orders.number("ms")));
    let throttle: Throttle = Throttle::builder("w:")
        .window(ms(orders.number("window")))
        .engine(engine(&orders.text("url")))
        .build()
        .unwrap();
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for thread in 0..orders.number("threads") {
            let (throttle, name) = (&throttle, &name);
            scope.spawn(move || {
                let mut random = Random::new(orders.number("seed") * 100 + thread);
                while watch.elapsed() < length {
                    let key = format!("{}", random.below(keys));
                    note(address, "call", &key, name);
                    let (its_key, its_name) = (key.clone(), name.clone());
                    let job = throttle.job(&key, move |_| {
                        note(address, "start", &its_key, &its_name);
                        nap(lasts);
                        note(address, "end", &its_key, &its_name);
                        Ok(1)
                    });
                    // One in four waits for its run.
                    if random.below(4) == 0 {
                        let _ = job.wait_finish().timeout(Duration::from_secs(3)).exec();
                    } else {
                        let _ = job.exec().unwrap();
                    }
                    nap(random.below(orders.number("pause")));
                }
            });
        }
    });
    let over = Stopwatch::start();
    while throttle.stats().pending + throttle.stats().active > 0 && over.elapsed() < Duration::from_secs(30) {
        nap(10);
    }
    orders.say(&format!("left {} dropped {}", throttle.stats().pending, throttle.stats().dropped));
    if orders.get("stay").is_some() {
        orders.hear();
    }
}
