//! What most tests here begin with: a client, its store and valves, asks of a store by hand, and the log of all grants.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use valve::{
    Answer, Ask, Counts, Deadline, Lease, Redis, RedisBuilder, RedisStore, Rule, RuleSet, Slots, Store,
    StoreError, Token, Valve, ValveBuilder,
};

use super::Stopwatch;
use super::resp::Reply;
use super::server::Server;

/// The stream that the scripts write each grant to.
pub(crate) const LOG: &str = "log";

/// A client whose grants are logged on the server.
pub(crate) fn builder(url: &str) -> RedisBuilder {
    builder_as("test", url)
}

/// One that is called so in the log.
pub(crate) fn builder_as(worker: &str, url: &str) -> RedisBuilder {
    Redis::builder(url).log_grants(LOG, worker)
}

pub(crate) fn store(url: &str) -> RedisStore {
    RedisStore::new(&builder(url).build().unwrap())
}

/// One whose calls may take so long.
pub(crate) fn hasty_store(url: &str, timeout: Duration) -> RedisStore {
    RedisStore::new(&builder(url).timeout(timeout).build().unwrap())
}

/// A valve of the id that every test's valves have.
pub(crate) fn valve(store: &RedisStore) -> ValveBuilder {
    Valve::builder("id").store(store.clone())
}

/// One id of a store, asked by hand.
pub(crate) struct Counter {
    counts: Arc<dyn Counts>,
    rules: RuleSet,
}

impl Counter {
    pub(crate) fn new(store: &RedisStore, rules: impl IntoIterator<Item = Rule>) -> Counter {
        Counter::of("id", store, rules)
    }

    pub(crate) fn of(id: &str, store: &RedisStore, rules: impl IntoIterator<Item = Rule>) -> Counter {
        let rules = RuleSet::new(rules.into_iter().collect()).unwrap();
        Counter { counts: store.open(id).unwrap(), rules }
    }

    /// Asks for jobs of these costs.
    pub(crate) fn admit(&self, costs: &[u32]) -> Result<Answer, StoreError> {
        self.ask(&Ask::new(&self.rules, costs))
    }

    /// Whether a job of cost 1 may start.
    #[track_caller]
    pub(crate) fn admits(&self) -> bool {
        self.admit(&[1]).unwrap().granted == 1
    }

    /// Asks for a job for each token, with a slot.
    pub(crate) fn take(&self, limit: u32, ttl: Duration, tokens: &[u128]) -> Result<Answer, StoreError> {
        let costs = vec![1; tokens.len()];
        let tokens: Vec<_> = tokens.iter().copied().map(Token).collect();
        let mut ask = Ask::new(&self.rules, &costs);
        ask.slots = Some(Slots::new(limit, ttl, &tokens));
        self.ask(&ask)
    }

    fn ask(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let mut answer = Answer::default();
        self.counts.admit(ask, &mut answer).map(|()| answer)
    }

    /// Which of the tokens still hold.
    pub(crate) fn renew(&self, ttl: Duration, tokens: &[u128]) -> Result<Vec<bool>, StoreError> {
        let leases: Vec<_> = tokens.iter().map(|&token| Lease { token: Token(token), ttl }).collect();
        let mut held = Vec::new();
        self.counts.renew(&leases, Deadline::never(), &mut held).map(|()| held)
    }

    pub(crate) fn release(&self, tokens: &[u128]) -> Result<(), StoreError> {
        let tokens: Vec<_> = tokens.iter().copied().map(Token).collect();
        self.counts.release(&tokens)
    }

    pub(crate) fn pause(&self, length: Duration) -> Result<Duration, StoreError> {
        self.counts.pause(length, Deadline::never())
    }

    pub(crate) fn resume(&self) -> Result<(), StoreError> {
        self.counts.resume(Deadline::never())
    }
}

/// What the scripts wrote down of something they did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    /// In microseconds, by the server's clock.
    pub(crate) at: u64,
    pub(crate) id: String,
    pub(crate) worker: String,
    pub(crate) token: Option<u128>,
}

/// The end of a lease is 0 if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Release,
    Renewal { end: u64 },
    Grant { cost: u32, fence: u64, end: u64 },
}

/// All that was written down so far, in the order in which it happened.
#[track_caller]
pub(crate) fn log(server: &Server) -> Vec<Entry> {
    let read = |stream: &str| server.cli(&["XRANGE", stream, "-", "+"]).array().iter().map(entry).collect();
    let mut all: Vec<Entry> = read(LOG);
    let leases: Vec<Entry> = read(&format!("{LOG}:leases"));
    all.extend(leases);
    // One script releases before it grants.
    all.sort_by_key(|entry| {
        (
            entry.at,
            match entry.what {
                What::Release => 0,
                What::Renewal { .. } => 1,
                What::Grant { .. } => 2,
            },
        )
    });
    all
}

#[track_caller]
fn entry(entry: &Reply) -> Entry {
    let fields = entry.array()[1].array();
    let find = |name: &str| {
        let place = fields.iter().step_by(2).position(|field| field.text() == name);
        place.map(|place| &fields[2 * place + 1])
    };
    let text = |name: &str| find(name).unwrap_or_else(|| panic!("no {name}: {fields:?}")).text();
    let number = |name: &str| text(name).parse::<u64>().unwrap();
    let token = match find("token") {
        Some(Reply::Bytes(token)) if !token.is_empty() => {
            Some(u128::from_be_bytes(token[..].try_into().unwrap()))
        }
        _ => None,
    };
    let what = match find("kind").map(Reply::text).as_deref() {
        None => What::Grant { cost: number("cost") as u32, fence: number("fence"), end: number("end") },
        Some("renew") => What::Renewal { end: number("end") },
        Some("release") => What::Release,
        Some(other) => panic!("what is {other}?"),
    };
    Entry { what, at: number("time"), id: text("id"), worker: text("worker"), token }
}

/// A grant of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) id: String,
    pub(crate) cost: u32,
    pub(crate) worker: String,
    pub(crate) token: Option<u128>,
    pub(crate) fence: u64,
}

/// All grants so far, in their order.
#[track_caller]
pub(crate) fn grants(server: &Server) -> Vec<Grant> {
    grants_in(&log(server))
}

pub(crate) fn grants_in(log: &[Entry]) -> Vec<Grant> {
    log.iter()
        .cloned()
        .filter_map(|Entry { what, at, id, worker, token }| match what {
            What::Grant { cost, fence, .. } => Some(Grant { at, id, cost, worker, token, fence }),
            _ => None,
        })
        .collect()
}

/// The most slots of the tests' id that were held at any instant, by the log: from each grant to its release, or to the
/// end of its lease.
#[track_caller]
pub(crate) fn most_held(log: &[Entry]) -> usize {
    let mut ends: std::collections::HashMap<u128, u64> = std::collections::HashMap::new();
    let mut most = 0;
    for entry in log {
        let Some(token) = entry.token else { continue };
        match entry.what {
            What::Grant { end, .. } => drop(ends.insert(token, end)),
            What::Renewal { end } => {
                let before = ends.insert(token, end);
                assert!(before.is_some_and(|end| end > entry.at), "an ended lease was renewed: {entry:?}");
            }
            What::Release => drop(ends.remove(&token)),
        }
        ends.retain(|_, end| *end > entry.at);
        most = most.max(ends.len());
    }
    most
}

/// Their stamps and costs, in the order of the stamps.
pub(crate) fn units(grants: &[Grant]) -> Vec<(u64, u32)> {
    let mut units: Vec<_> = grants.iter().map(|grant| (grant.at, grant.cost)).collect();
    units.sort_unstable();
    units
}

/// How many leases the server has, ended ones that were not cleared away included.
#[track_caller]
pub(crate) fn leases(server: &Server) -> i64 {
    server.cli(&["ZCARD", "valve:{id}:l"]).int()
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !holds() {
        assert!(watch.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        super::nap(2);
    }
}

/// The lines that anything in this process has logged, from the first call on.
pub(crate) fn logged() -> Vec<String> {
    static SET: LazyLock<()> = LazyLock::new(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    LazyLock::force(&SET);
    LINES.lock().clone()
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}
