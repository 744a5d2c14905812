//! What every engine must do, as one suite that any can be put through.
//!
//! On a clock that a test turns it is exact to the millisecond. On another it is fair: a key must be there until its expiry
//! could have passed by any clock, and gone only when it must have.

mod expiry;
mod threads;
mod writes;

use crate::clock::{Clock, Tick, duration, ticks_up};
use crate::error::StoreError;
use crate::throttle::{Engine, SetOptions};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Puts an engine through the contract that throttles rely on; it panics at the first breach, saying which.
///
/// `engine` is asked for an engine without keys, many times, and `wait` to let that much time pass on the engine's clock. On
/// a clock that a test turns the suite is exact and takes no time; on a real one it waits some seconds in all, and finds the
/// same breaches but those of a few milliseconds. An engine whose [`clear`](Engine::clear) does nothing passes.
///
/// # Panics
///
/// If the engine breaks a rule of [`Engine`], or fails.
///
/// # Examples
///
/// ```
/// use valve::MemoryEngine;
/// use valve::testing::{ManualClock, engine_contract};
///
/// let clock = ManualClock::new();
/// let wait = |length| {
///     clock.advance(length);
/// };
/// engine_contract(|| MemoryEngine::builder().clock(&clock).build().unwrap(), wait);
/// ```
pub fn engine_contract<E: Engine>(engine: impl Fn() -> E, wait: impl Fn(Duration)) {
    let engine = || -> Arc<dyn Engine> { Arc::new(engine()) };
    let wait = |length| wait(length);
    for (rule, check) in RULES.iter().chain(writes::RULES).chain(expiry::RULES).chain(threads::RULES) {
        let bench = Bench { rule, engine: &engine, wait: &wait, waited: Cell::new(0) };
        check(&bench);
    }
}

/// A rule of the contract and how it is put to the test.
type Clause = (&'static str, fn(&Bench<'_>));

const RULES: &[Clause] = &[
    ("a missing key reads as none", missing_keys_read_as_none),
    ("what is set is read back, whatever it is", texts_are_kept),
    ("different keys share nothing", keys_are_apart),
    ("reading changes nothing", reading_changes_nothing),
];

/// An engine on trial.
struct Bench<'a> {
    /// The rule that is put to the test.
    rule: &'static str,
    engine: &'a dyn Fn() -> Arc<dyn Engine>,
    wait: &'a dyn Fn(Duration),
    /// How much it has waited so far.
    waited: Cell<Tick>,
}

/// A moment of this bench: no clock shows less passed since than was waited, nor than has passed in this process.
#[derive(Clone, Copy)]
struct Moment {
    waited: Tick,
    real: Tick,
}

/// One engine, empty at first.
struct Trial<'a> {
    bench: &'a Bench<'a>,
    engine: Arc<dyn Engine>,
}

impl<'a> Bench<'a> {
    fn trial(&'a self) -> Trial<'a> {
        Trial { bench: self, engine: (self.engine)() }
    }

    #[track_caller]
    fn ensure(&self, holds: bool, seen: impl FnOnce() -> String) {
        assert!(holds, "the engine breaks its contract: {}: {}", self.rule, seen());
    }

    #[track_caller]
    fn equal<T: PartialEq + Debug>(&self, seen: &T, expected: &T, of: &str) {
        self.ensure(seen == expected, || format!("{of}: {seen:?}, not {expected:?}"));
    }

    /// What a healthy engine never refuses.
    #[track_caller]
    fn done<T>(&self, result: Result<T, StoreError>) -> T {
        result.unwrap_or_else(|error| {
            panic!("the engine failed while its contract was checked: {}: {error}", self.rule)
        })
    }

    fn wait(&self, length: Duration) {
        (self.wait)(length);
        self.waited.set(self.waited.get() + ticks_up(length));
    }

    fn now(&self) -> Moment {
        Moment { waited: self.waited.get(), real: Clock::System.now() }
    }

    /// At most this much has passed since, by whichever clock the engine goes.
    fn since(&self, moment: Moment) -> Duration {
        let now = self.now();
        duration((now.waited - moment.waited).max(now.real - moment.real))
    }
}

impl Trial<'_> {
    #[track_caller]
    fn get(&self, key: &str) -> Option<String> {
        self.bench.done(self.engine.get(key))
    }

    /// Overwrites.
    #[track_caller]
    fn set(&self, key: &str, value: &str, expiry: Duration) {
        let wrote = self.bench.done(self.engine.set(key, value, SetOptions::new(expiry)));
        self.bench.equal(&wrote, &true, "a plain set says whether it wrote");
    }

    /// Writes if absent; whether it says that it did.
    #[track_caller]
    fn claim(&self, key: &str, value: &str, expiry: Duration) -> bool {
        self.bench.done(self.engine.set(key, value, SetOptions::new(expiry).if_absent()))
    }

    #[track_caller]
    fn del(&self, key: &str) {
        self.bench.done(self.engine.del(key));
    }

    #[track_caller]
    fn reads(&self, key: &str, expected: Option<&str>) {
        let seen = self.get(key);
        let shown = key.chars().take(40).collect::<String>();
        self.bench.equal(&seen.as_deref(), &expected, &format!("under {shown:?}"));
    }

    /// The key must be there, unless so much time has passed since that it may have expired.
    #[track_caller]
    fn lives(&self, key: &str, value: &str, since: Moment, expiry: Duration) {
        let seen = self.get(key);
        let age = self.bench.since(since);
        if age < expiry {
            self.bench.ensure(seen.as_deref() == Some(value), || {
                format!("{seen:?} {age:?} after {value:?} was set for {expiry:?}")
            });
        }
    }

    /// Waits until the expiry that began at the latest now has passed; then the key must be gone.
    #[track_caller]
    fn expires(&self, key: &str, expiry: Duration) {
        self.bench.wait(expiry + self.slack(expiry));
        let seen = self.get(key);
        self.bench.ensure(seen.is_none(), || format!("{seen:?} after its {expiry:?} have passed"));
    }

    /// A server's clock may run a little slower than ours, and its milliseconds begin elsewhere.
    fn slack(&self, expiry: Duration) -> Duration {
        if self.is_exact() { Duration::ZERO } else { expiry / 100 + Duration::from_millis(2) }
    }

    /// Whether a test turns the engine's clock, so that long times take none.
    fn is_exact(&self) -> bool {
        self.engine.clock().is_some()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn missing_keys_read_as_none(bench: &Bench<'_>) {
    let trial = bench.trial();
    for key in ["missing", "", " ", "missing"] {
        trial.reads(key, None);
    }
}

fn texts_are_kept(bench: &Bench<'_>) {
    let trial = bench.trial();
    let long = "9".repeat(10_240);
    let values = ["1764529329876", "0", "-1", "", " ", "  12  ", "OK", "nil", "ä\u{0}日本\r\n$5", &long];
    for (number, value) in values.iter().enumerate() {
        let (set, claimed) = (format!("set {number}"), format!("claimed {number}"));
        trial.set(&set, value, MINUTE);
        trial.reads(&set, Some(value));
        bench.equal(&trial.claim(&claimed, value, MINUTE), &true, "the claim of a missing key");
        trial.reads(&claimed, Some(value));
    }
}

fn keys_are_apart(bench: &Bench<'_>) {
    let trial = bench.trial();
    let long = "x".repeat(10_240);
    let keys = [
        "a",
        "A",
        "a ",
        " a",
        "{a}",
        "{a}:l",
        "a:b",
        "a:",
        "a\0",
        "a\0b",
        "a*",
        "a?",
        "[a]",
        "a\r\nDEL a",
        "\u{fffd}",
        "ä",
        "日本",
        "%61",
        &long,
        &long[1..],
    ];
    for (number, key) in keys.iter().enumerate() {
        trial.reads(key, None);
        bench.equal(&trial.claim(key, &number.to_string(), MINUTE), &true, "each key is claimed apart");
    }
    for (number, key) in keys.iter().enumerate() {
        trial.reads(key, Some(&number.to_string()));
    }
    trial.del("a*");
    trial.del("a:");
    trial.claim("a:", "again", MINUTE);
    for (number, key) in keys.iter().enumerate() {
        let expected = match *key {
            "a*" => None,
            "a:" => Some("again".to_owned()),
            _ => Some(number.to_string()),
        };
        trial.reads(key, expected.as_deref());
    }
}

fn reading_changes_nothing(bench: &Bench<'_>) {
    let trial = bench.trial();
    let expiry = Duration::from_millis(200);
    let begin = bench.now();
    trial.set("read", "1", expiry);
    for _ in 0..4 {
        trial.lives("read", "1", begin, expiry);
        bench.wait(expiry / 5);
    }
    trial.lives("read", "1", begin, expiry);
    trial.expires("read", expiry / 5);
}
