//! The contract suite for stores, kept by the Redis store: on the server's own clock, and to the tick on one that the test
//! turns.

use std::cell::Cell;
use std::time::Duration;

use valve::testing::store_contract;
use valve::{Redis, RedisBuilder, RedisStore};

use super::scripts::turn_to;
use super::server::Server;
use crate::support::{SECOND, micros};

/// Each store is empty: it has a prefix of its own.
fn stores(server: &Server, set: impl Fn(RedisBuilder) -> RedisBuilder) -> impl Fn() -> RedisStore {
    let (url, count) = (server.url(), Cell::new(0));
    move || {
        count.set(count.get() + 1);
        let builder = Redis::builder(&url).prefix(format!("store {}:", count.get()));
        RedisStore::new(&set(builder).build().unwrap())
    }
}

#[test]
fn the_redis_store_keeps_the_contract() {
    let server = Server::start();
    #[expect(
        clippy::disallowed_methods,
        reason = "the store's clock is the server's, and only that makes it go on"
    )]
    store_contract(stores(&server, |builder| builder), std::thread::sleep);
}

#[test]
fn the_redis_store_keeps_the_contract_to_the_tick() {
    let server = Server::start();
    let now = Cell::new(1_764_529_329 * SECOND + 876_543);
    turn_to(&server, now.get());
    store_contract(stores(&server, RedisBuilder::manual_time), |length: Duration| {
        now.set(now.get() + micros(length));
        turn_to(&server, now.get());
    });
}
