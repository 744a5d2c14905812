//! An engine around the one in memory that breaks one rule of the contract.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use valve::testing::ManualClock;
use valve::{Engine, Executed, MemoryEngine, SetOptions, StoreError, StoreErrorKind};

macro_rules! faults {
    ($($fault:ident,)*) => {
        /// What is broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Fault { None, $($fault,)* }

        impl Fault {
            pub(super) const ALL: &[Fault] = &[$(Fault::$fault,)*];
        }
    };
}

faults! {
    MissingIsEmpty, ForgetsAll, ValuesAreTrimmed, ValuesAreCut, KeysAreOne, KeysAreFolded, KeysAreCut, DelTakesPatterns,
    ReadingRemoves, ReadingProlongs, SetLeaves, SetSaysFalse, SetSaysWhetherNew, ClaimsNeverWin, ClaimsAlwaysWin,
    ClaimsWinUnwritten, LostClaimsWrite, LostClaimsProlong, DelLeaves, DelOnlyExpires, DelOfMissingFails, NeverClears,
    ClearsHalf, DeadAfterClear, LivesForEver, EndsEarly, EndsLate, SecondsOnly, ExpiredStayClaimed, KeepsExpiry,
    NeverShortens, SecondClaimLoses, ExpiryIsCut, Races, AnswersAreMixed,
}

pub(super) struct Broken {
    inner: MemoryEngine,
    clock: ManualClock,
    fault: Fault,
    shared: Mutex<Shared>,
    inside: AtomicUsize,
}

/// What a fault needs to remember.
#[derive(Default)]
struct Shared {
    cleared: bool,
    keys: HashSet<String>,
    /// When each key expires.
    ends: HashMap<String, Duration>,
    claims: HashMap<String, usize>,
    answer: String,
}

impl Broken {
    pub(super) fn new(inner: MemoryEngine, fault: Fault) -> Broken {
        let clock = inner.clock().unwrap().clone();
        Broken { inner, clock, fault, shared: Mutex::default(), inside: AtomicUsize::new(0) }
    }

    fn key(&self, key: &str) -> String {
        match self.fault {
            Fault::KeysAreOne => "one".to_owned(),
            Fault::KeysAreFolded => key.to_lowercase(),
            Fault::KeysAreCut => key.chars().take(10_000).collect(),
            _ => key.to_owned(),
        }
    }

    fn options(&self, key: &str, options: SetOptions) -> SetOptions {
        let (expiry, ms) = (options.expiry(), Duration::from_millis(1));
        let left = self.shared.lock().ends.get(key).and_then(|end| end.checked_sub(self.clock.now()));
        let broken = match (self.fault, left) {
            (Fault::LivesForEver, _) => expiry * 100,
            (Fault::EndsEarly, _) => expiry.saturating_sub(ms),
            (Fault::EndsLate, _) => expiry + ms,
            (Fault::SecondsOnly, _) => Duration::from_secs(expiry.as_secs().max(1)),
            (Fault::KeepsExpiry, Some(left)) if !left.is_zero() => left,
            (Fault::NeverShortens, Some(left)) => expiry.max(left),
            (Fault::ExpiryIsCut, _) => expiry.min(Duration::from_secs(24 * 3600)),
            _ => expiry,
        };
        self.shared.lock().ends.insert(key.to_owned(), self.clock.now() + broken);
        let broken = SetOptions::new(broken);
        if options.is_if_absent() { broken.if_absent() } else { broken }
    }

    fn claim(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let plain = SetOptions::new(options.expiry());
        let there = self.inner.get(key)?;
        match self.fault {
            Fault::ClaimsNeverWin => Ok(false),
            Fault::ClaimsAlwaysWin => self.inner.set(key, value, options).map(|_| true),
            Fault::ClaimsWinUnwritten => Ok(there.is_none()),
            Fault::LostClaimsWrite => self.inner.set(key, value, plain).map(|_| there.is_none()),
            Fault::LostClaimsProlong => match there {
                Some(old) => self.inner.set(key, &old, plain).map(|_| false),
                None => self.inner.set(key, value, plain),
            },
            Fault::ExpiredStayClaimed if self.shared.lock().keys.contains(key) => Ok(false),
            Fault::SecondClaimLoses => {
                let claims = {
                    let mut shared = self.shared.lock();
                    let claims = shared.claims.entry(key.to_owned()).or_default();
                    *claims += 1;
                    *claims
                };
                if claims == 2 && there.is_none() { Ok(false) } else { self.inner.set(key, value, options) }
            }
            Fault::Races if there.is_none() => {
                // Looks, lets another one look, then writes.
                self.inside.fetch_add(1, Ordering::SeqCst);
                for _ in 0..10_000 {
                    if self.inside.load(Ordering::SeqCst) > 1 {
                        break;
                    }
                    std::thread::yield_now();
                }
                self.inner.set(key, value, plain)
            }
            _ => self.inner.set(key, value, options),
        }
    }
}

impl Engine for Broken {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        let key = self.key(key);
        let value = self.inner.get(&key)?;
        Ok(match (self.fault, value) {
            (Fault::MissingIsEmpty, None) => Some(String::new()),
            (Fault::AnswersAreMixed, Some(value)) => {
                // One buffer for the answers to all threads.
                self.shared.lock().answer = value;
                std::thread::yield_now();
                Some(self.shared.lock().answer.clone())
            }
            (Fault::ValuesAreTrimmed, Some(value)) => Some(value.trim().to_owned()),
            (Fault::ReadingRemoves, value) => {
                self.inner.del(&key)?;
                value
            }
            (Fault::ReadingProlongs, Some(value)) => {
                self.inner.set(&key, &value, SetOptions::new(Duration::from_millis(200)))?;
                Some(value)
            }
            (_, value) => value,
        })
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let key = self.key(key);
        let there = self.inner.get(&key)?.is_some();
        let value = if self.fault == Fault::ValuesAreCut { &value[..value.len().min(5)] } else { value };
        let wrote = match self.fault {
            Fault::ForgetsAll => Ok(true),
            Fault::DeadAfterClear if self.shared.lock().cleared => Ok(true),
            _ if options.is_if_absent() && there && self.fault == Fault::None => Ok(false),
            _ if options.is_if_absent() => {
                let options = if there { options } else { self.options(&key, options) };
                self.claim(&key, value, options)
            }
            Fault::SetLeaves if there => Ok(true),
            Fault::SetSaysFalse => self.inner.set(&key, value, options).map(|_| false),
            Fault::SetSaysWhetherNew => self.inner.set(&key, value, options).map(|_| !there),
            _ => self.inner.set(&key, value, self.options(&key, options)),
        };
        self.shared.lock().keys.insert(key);
        wrote
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        let key = self.key(key);
        match self.fault {
            Fault::DelLeaves => Ok(()),
            Fault::DelOnlyExpires => {
                self.inner.set(&key, "0", SetOptions::new(Duration::from_millis(1))).map(drop)
            }
            Fault::DelOfMissingFails if self.inner.get(&key)?.is_none() => {
                Err(StoreError::new(StoreErrorKind::Other, Executed::No, "no such key"))
            }
            Fault::DelTakesPatterns => {
                let keys: Vec<String> = self.shared.lock().keys.iter().cloned().collect();
                let stem = key.strip_suffix('*');
                let hit = |other: &String| *other == key || stem.is_some_and(|stem| other.starts_with(stem));
                keys.iter().filter(|other| hit(other)).try_for_each(|other| self.inner.del(other))
            }
            _ => {
                let mut shared = self.shared.lock();
                shared.keys.remove(&key);
                shared.ends.remove(&key);
                drop(shared);
                self.inner.del(&key)
            }
        }
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.shared.lock().cleared = true;
        let keys: Vec<String> = self.shared.lock().keys.iter().cloned().collect();
        match self.fault {
            Fault::NeverClears => Ok(()),
            Fault::ClearsHalf => keys.iter().step_by(2).try_for_each(|key| self.inner.del(key)),
            _ => {
                self.shared.lock().keys.clear();
                self.inner.clear()
            }
        }
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.inner.clock()
    }
}
