//! The scripts by themselves: what they leave on the server, how much they do at once, and that an error spends nothing.

mod bounds;
mod clock;
mod exact;
mod expiry;
mod notices;
mod stale;
mod trouble;

use valve::{Redis, RedisStore};

use super::server::Server;

/// The keys of the id that most tests use.
const STATE: &str = "valve:{id}";
const LEASES: &str = "valve:{id}:l";

/// A store whose time the test sets with [`turn_to`].
fn on_manual_time(server: &Server) -> RedisStore {
    RedisStore::new(&Redis::builder(&server.url()).manual_time().build().unwrap())
}

/// Sets what the scripts of such a store take for the server's clock, in microseconds.
pub(super) fn turn_to(server: &Server, now: u64) {
    let (seconds, rest) = ((now / 1_000_000).to_string(), (now % 1_000_000).to_string());
    server.cli(&["HSET", "valve-manual-time", "seconds", &seconds, "microseconds", &rest]);
}

/// What a key holds, to compare with later.
fn contents(server: &Server, key: &str) -> super::resp::Reply {
    server.cli(&["DUMP", key])
}
