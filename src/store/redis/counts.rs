//! The counts of one id on the server: each call is one script.

use super::client::Redis;
use super::keys::{self, Keys};
use super::link::Pool;
use super::pack::{self, Address, Arguments, Notified};
use super::script::{Call, Done, NotAfter, Script};
use crate::error::StoreError;
use crate::store::{Answer, Ask, Counts, Deadline, Lease, Token};
use std::time::Duration;

pub(super) struct RedisCounts {
    redis: Redis,
    id: Box<str>,
    channel: Vec<u8>,
    keys: Keys,
}

impl RedisCounts {
    pub(super) fn new(redis: Redis, id: &str) -> RedisCounts {
        let (keys, channel) = (Keys::new(redis.prefix(), id), keys::channel(redis.prefix()));
        RedisCounts { redis, id: id.into(), channel, keys }
    }

    fn address(&self) -> Address<'_> {
        Address { channel: &self.channel, id: &self.id }
    }

    /// Runs a script that knows the leases.
    fn with_leases(
        &self,
        (pool, script): (&Pool, &Script),
        arguments: &Arguments,
        fence: NotAfter,
        deadline: &Deadline,
    ) -> Result<Done, StoreError> {
        let keys: [&[u8]; 2] = [&self.keys.state, &self.keys.leases];
        script.run(pool, &Call { keys: &keys, args: &arguments.parts(), fence }, deadline)
    }

    /// Runs a script that needs only the state: one key is served by a cluster's node even while it moves.
    fn without_leases(
        &self,
        (pool, script): (&Pool, &Script),
        arguments: &Arguments,
        deadline: &Deadline,
    ) -> Result<Done, StoreError> {
        let keys: [&[u8]; 1] = [&self.keys.state];
        script.run(pool, &Call { keys: &keys, args: &arguments.parts(), fence: NotAfter::Held }, deadline)
    }

    fn note(&self, notified: Notified) {
        if notified == Notified::Forbidden {
            if let Some(notices) = self.redis.notices() {
                notices.mute();
            }
        }
    }
}

impl Counts for RedisCounts {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        let arguments = pack::admit(ask, self.address())?;
        let with = (self.redis.admissions(), &self.redis.scripts().admit);
        let done = if ask.slots.is_some() || !ask.releases.is_empty() {
            self.with_leases(with, &arguments, NotAfter::Held, &ask.deadline)?
        } else {
            self.without_leases(with, &arguments, &ask.deadline)?
        };
        let notified = pack::admitted(done.payload(), ask, answer)?;
        self.note(notified);
        // Of a rate nobody is told: its hint says when. But whoever waits for that may learn of a pause.
        if answer.refusal.is_some_and(|refusal| ask.waits || refusal.pause.is_some()) {
            if let Some(notices) = self.redis.notices() {
                notices.start();
            }
        }
        Ok(())
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        let arguments = pack::renew(leases)?;
        let with = (self.redis.leases(), &self.redis.scripts().renew);
        let done = self.with_leases(with, &arguments, NotAfter::Held, &deadline)?;
        pack::renewed(done.payload(), leases.len(), held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let arguments = pack::release(tokens, self.address())?;
        let with = (self.redis.leases(), &self.redis.scripts().release);
        let done = self.with_leases(with, &arguments, NotAfter::Free, &Deadline::never())?;
        self.note(pack::done(done.payload())?);
        Ok(())
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        // Who knows a pause asks nobody until it ends, and has to hear from others that it was lifted.
        if let Some(notices) = self.redis.notices() {
            notices.start();
        }
        let arguments = pack::pause(length, self.address());
        let with = (self.redis.leases(), &self.redis.scripts().pause);
        let (left, notified) = pack::paused(self.without_leases(with, &arguments, &deadline)?.payload())?;
        self.note(notified);
        Ok(left)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        let arguments = pack::resume(self.address());
        let with = (self.redis.leases(), &self.redis.scripts().resume);
        self.note(pack::done(self.without_leases(with, &arguments, &deadline)?.payload())?);
        Ok(())
    }

    fn ready(&self) -> bool {
        self.redis.admissions().ready()
    }
}
