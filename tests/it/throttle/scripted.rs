//! An engine that writes down what it is asked, and answers late, wrongly or not at all as a test says.

use std::sync::Arc;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Engine, Executed, MemoryEngine, SetOptions, StoreError, StoreErrorKind};

use super::stage::{Stage, shown};
use crate::support::ms;

/// Clones are the same engine.
#[derive(Clone)]
pub(super) struct Scripted {
    clock: ManualClock,
    inner: MemoryEngine,
    script: Arc<Mutex<Script>>,
}

struct Script {
    answer: Answer,
    asked: Vec<Asked>,
    results: Vec<String>,
}

type Answer = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// What the engine was asked.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) operation: Operation,
    /// Which one of this operation it is, from 1.
    pub(super) nth: usize,
    pub(super) key: String,
    /// When, in milliseconds.
    pub(super) at: u64,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    /// Set if absent.
    Claim,
    Set,
    Del,
    Clear,
}

/// After how many milliseconds it does and answers what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply {
    pub(super) after: u64,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// What the memory engine inside says.
    Decided,
    Fails,
    Panics,
    /// A set that says so and does nothing.
    Says(bool),
    Reads(Option<&'static str>),
    /// A get as if the clock of whoever wrote were off by so many milliseconds.
    Shifted(i64),
}

pub(super) const AT_ONCE: Reply = Reply { after: 0, what: What::Decided };
pub(super) const FAILS: Reply = Reply { after: 0, what: What::Fails };
/// A thousand days are longer than any test.
pub(super) const NEVER: Reply = Reply { after: 1_000 * 24 * 3_600 * 1_000, what: What::Decided };

pub(super) fn after(after: u64) -> Reply {
    Reply { after, what: What::Decided }
}

pub(super) fn reads(value: Option<&'static str>) -> Reply {
    Reply { after: 0, what: What::Reads(value) }
}

pub(super) fn shifted(by: i64) -> Reply {
    Reply { after: 0, what: What::Shifted(by) }
}

pub(super) fn says(wrote: bool) -> Reply {
    Reply { after: 0, what: What::Says(wrote) }
}

impl Scripted {
    pub(super) fn new(stage: &Stage) -> Scripted {
        let script = Script { answer: Arc::new(|_| AT_ONCE), asked: Vec::new(), results: Vec::new() };
        Scripted {
            clock: stage.clock.clone(),
            inner: MemoryEngine::builder().clock(&stage.clock).build().unwrap(),
            script: Arc::new(Mutex::new(script)),
        }
    }

    /// How every call from now on goes.
    pub(super) fn answers(&self, answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) {
        self.script.lock().answer = Arc::new(answer);
    }

    /// Another program's write, which is not written down.
    pub(super) fn foreign(&self, key: &str, value: &str, expiry: u64) {
        self.inner.set(key, value, SetOptions::new(ms(expiry))).unwrap();
    }

    /// Another program's claim, which is not written down: whether it won.
    pub(super) fn foreign_claim(&self, key: &str, expiry: u64) -> bool {
        self.inner.set(key, "foreign", SetOptions::new(ms(expiry)).if_absent()).unwrap()
    }

    /// What is stored now.
    pub(super) fn stored(&self, key: &str) -> Option<String> {
        self.inner.get(key).unwrap()
    }

    pub(super) fn len(&self) -> usize {
        self.inner.len()
    }

    /// The calls in order, and what they gave: `0 claim p:k=200 px 200: true`.
    pub(super) fn calls(&self) -> Vec<String> {
        let script = self.script.lock();
        let lines = script.asked.iter().zip(&script.results);
        lines.map(|(asked, result)| format!("{}: {result}", asked.text)).collect()
    }

    /// How many calls there were of this operation.
    pub(super) fn count(&self, operation: Operation) -> usize {
        self.script.lock().asked.iter().filter(|asked| asked.operation == operation).count()
    }

    /// When calls of this operation were made, in milliseconds.
    pub(super) fn times(&self, operation: Operation) -> Vec<u64> {
        let script = self.script.lock();
        script.asked.iter().filter(|asked| asked.operation == operation).map(|asked| asked.at).collect()
    }

    /// The engine was called like this and not otherwise.
    #[track_caller]
    pub(super) fn check(&self, expected: &[&str]) {
        let calls = self.calls();
        assert_eq!(calls, expected, "{calls:#?}");
    }

    /// Writes the call down, takes its time, and fails if it should.
    fn asked(&self, operation: Operation, key: &str, words: &str) -> (usize, Result<What, StoreError>) {
        let (number, reply) = {
            let mut script = self.script.lock();
            let nth = script.asked.iter().filter(|asked| asked.operation == operation).count() + 1;
            let name = format!("{operation:?}").to_lowercase();
            let now = self.clock.now();
            let text = format!("{} {name} {key}{words}", shown(now));
            let at = now.as_millis() as u64;
            let asked = Asked { operation, nth, key: key.to_owned(), at, text };
            let answer = Arc::clone(&script.answer);
            script.asked.push(asked.clone());
            script.results.push("no answer".to_owned());
            (script.asked.len() - 1, answer(&asked))
        };
        self.clock.sleep(ms(reply.after));
        match reply.what {
            What::Fails => {
                self.script.lock().results[number] = "error".to_owned();
                let error = StoreError::new(StoreErrorKind::Unreachable, Executed::No, "as the test says");
                (number, Err(error))
            }
            What::Panics => {
                self.script.lock().results[number] = "panic".to_owned();
                panic!("the engine panics, as the test says");
            }
            what => (number, Ok(what)),
        }
    }

    fn gives<T: std::fmt::Debug>(&self, number: usize, given: T) -> Result<T, StoreError> {
        self.script.lock().results[number] = format!("{given:?}");
        Ok(given)
    }
}

impl Engine for Scripted {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        let (number, reply) = self.asked(Operation::Get, key, "");
        let value = match reply? {
            What::Reads(value) => value.map(str::to_owned),
            What::Shifted(by) => {
                let end = self.inner.get(key)?.map(|value| value.parse::<i64>().unwrap() + by);
                end.map(|end| end.to_string())
            }
            _ => self.inner.get(key)?,
        };
        self.gives(number, value)
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let operation = if options.is_if_absent() { Operation::Claim } else { Operation::Set };
        let (number, reply) = self.asked(operation, key, &format!("={value} px {}", options.px()));
        let wrote = match reply? {
            What::Says(wrote) => wrote,
            _ => self.inner.set(key, value, options)?,
        };
        self.gives(number, wrote)
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        let (number, reply) = self.asked(Operation::Del, key, "");
        reply?;
        self.inner.del(key)?;
        self.gives(number, ())
    }

    fn clear(&self) -> Result<(), StoreError> {
        let (number, reply) = self.asked(Operation::Clear, "", "");
        reply?;
        self.inner.clear()?;
        self.gives(number, ())
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}
