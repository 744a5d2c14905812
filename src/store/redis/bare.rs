//! The round trip of an admission and nothing around it: what a valve's calls are held against by `benches/redis`.

use super::RedisStore;
use super::client::Redis;
use super::keys::{self, Keys};
use super::link::{Failed, Link};
use super::outcome;
use super::pack::{self, Address};
use crate::clock::Clock;
use crate::error::{Error, StoreError};
use crate::rule::{Rule, RuleSet};
use crate::store::{Answer, Ask, Deadline, Slots, Store, Token};
use std::time::Duration;

/// One admission script, sent over and over on one connection.
#[doc(hidden)]
pub struct BareAdmissions {
    redis: Redis,
    keys: Vec<Vec<u8>>,
    /// What follows the keys, tokens aside.
    arguments: Vec<Vec<u8>>,
    slots: bool,
    last: u128,
}

impl std::fmt::Debug for BareAdmissions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("BareAdmissions").field("redis", &self.redis).finish_non_exhaustive()
    }
}

/// Of tokens that no valve makes but by chance.
const FIRST: u128 = 1 << 127;
/// Longer than a bench.
const LONG: Duration = Duration::from_secs(3_600);
/// No time is too late.
const NEVER: [u8; 8] = 0.0_f64.to_be_bytes();

impl BareAdmissions {
    /// Admissions of one job by these rules and, if there are slots, with the lease before given back on the way.
    ///
    /// # Errors
    ///
    /// If the rules are no good, or the server does not answer.
    pub fn new(
        redis: &Redis,
        id: &str,
        rules: impl IntoIterator<Item = Rule>,
        slots: Option<(u32, Duration)>,
    ) -> Result<BareAdmissions, Error> {
        let rules = RuleSet::new(rules.into_iter().collect())?;
        let channel = keys::channel(redis.prefix());
        let tokens = [Token(FIRST)];
        let mut ask = Ask::new(&rules, &[1]);
        ask.waits = true;
        if let Some((limit, ttl)) = slots {
            ask.slots = Some(Slots::new(limit, ttl, &tokens));
            ask.releases = &tokens;
        }
        // By the ordinary way: then the server knows the script, and a connection is there.
        let counts = RedisStore::new(redis).open(id).map_err(Error::StoreUnavailable)?;
        counts.admit(&ask, &mut Answer::default()).map_err(Error::StoreUnavailable)?;
        let address = Address { channel: &channel, id };
        let packed = pack::admit(&ask, address).map_err(Error::StoreUnavailable)?;
        let mut arguments: Vec<Vec<u8>> = packed.parts().into_iter().map(<[u8]>::to_vec).collect();
        let Keys { state, leases } = Keys::new(redis.prefix(), id);
        let mut keys = vec![state];
        if slots.is_some() {
            keys.push(leases);
            arguments.truncate(arguments.len() - 2);
        }
        Ok(BareAdmissions { redis: redis.clone(), keys, arguments, slots: slots.is_some(), last: FIRST })
    }

    /// Makes so many calls.
    ///
    /// # Errors
    ///
    /// If the server does not answer one of them.
    pub fn run(&mut self, calls: u64) -> Result<(), StoreError> {
        let (redis, first) = (self.redis.clone(), self.last);
        let deadline = Deadline::after(&Clock::System, LONG);
        redis.admissions().on_link(&Deadline::never(), |link| {
            self.last = first;
            for _ in 0..calls {
                self.call(link, &deadline)?;
            }
            Ok(())
        })
    }

    fn call(&mut self, link: &mut Link, deadline: &Deadline) -> Result<(), Failed> {
        let count: &[u8] = if self.slots { b"2" } else { b"1" };
        let tokens = [self.last, self.last + 1].map(u128::to_be_bytes);
        let mut parts: Vec<&[u8]> = Vec::with_capacity(16);
        parts.extend([b"EVALSHA", self.redis.scripts().admit.sha1().as_bytes(), count]);
        parts.extend(self.keys.iter().map(Vec::as_slice));
        parts.push(&NEVER);
        parts.extend(self.arguments.iter().map(Vec::as_slice));
        if self.slots {
            parts.extend(tokens.iter().map(<[u8; 16]>::as_slice));
        }
        let answer = link.ask(&parts, deadline)?;
        self.last += 1;
        answer.map(drop).map_err(|line| outcome::refused(&line, link.server()).into())
    }
}
