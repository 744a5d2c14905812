//! Every lease the store ever gave, replayed from what it executed: who holds which slot, until when, and whether the store
//! was right to say so. Times are in ticks of the store's clock.

use std::collections::HashMap;

use valve::{Answer, Ask, Lease as Renewal, Token};

use super::plan::RulePlan;
use super::world::Seen;

#[derive(Default)]
pub(super) struct Ledger {
    rule: Option<RulePlan>,
    /// When the rule's budget is full again, in units of 1/limit ticks.
    tat: u128,
    leases: HashMap<Token, Lease>,
    /// By process and fencing token.
    by_fence: HashMap<(usize, u64), Token>,
    granted: usize,
    /// Since the state was last lost.
    fence: u64,
    /// How often the state was lost.
    losses: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) process: usize,
    pub(super) fence: u64,
    /// How many were granted before.
    pub(super) number: usize,
    pub(super) granted_at: u64,
    /// When it ends, or ended, by the last thing that was executed for it.
    pub(super) end: u64,
    released: bool,
    losses: usize,
    /// The call that got it.
    pub(super) call: Option<usize>,
}

impl Ledger {
    pub(super) fn new(rule: Option<RulePlan>) -> Ledger {
        Ledger { rule, ..Ledger::default() }
    }

    pub(super) fn flushed(&mut self) {
        self.losses += 1;
        (self.tat, self.fence) = (0, 0);
    }

    /// Whether the store that gave it still knows of it.
    pub(super) fn is_known(&self, lease: &Lease) -> bool {
        lease.losses == self.losses
    }

    pub(super) fn is_live(&self, lease: &Lease, now: u64) -> bool {
        self.is_known(lease) && !lease.released && now < lease.end
    }

    pub(super) fn live(&self, now: u64) -> usize {
        self.leases.values().filter(|lease| self.is_live(lease, now)).count()
    }

    pub(super) fn lease(&self, token: Token) -> &Lease {
        &self.leases[&token]
    }

    /// Gives the lease of this fencing token to a call.
    pub(super) fn hand_over(&mut self, process: usize, fence: u64, call: usize) -> Result<Token, String> {
        let Some(&token) = self.by_fence.get(&(process, fence)) else {
            return Err(format!("no lease of process {process} has the fencing token {fence}"));
        };
        let lease = self.leases.get_mut(&token).unwrap();
        if let Some(other) = lease.call.replace(call) {
            return Err(format!("calls {other} and {call} have the same lease"));
        }
        let number = lease.number;
        for other in self.leases.values().filter(|other| other.process == process && other.call.is_some()) {
            if (other.number < number) != (other.fence < fence) && other.number != number {
                return Err(format!(
                    "process {process} has seen fencing tokens fall: {fence} and {}",
                    other.fence
                ));
            }
        }
        Ok(token)
    }

    /// Whether another got a slot after this lease had ended.
    pub(super) fn is_overtaken(&self, lease: &Lease) -> bool {
        self.leases.values().any(|other| other.granted_at >= lease.end)
    }

    /// Leases that no call ever had and nobody released.
    pub(super) fn orphans(&self, now: u64) -> u64 {
        let orphan = |lease: &&Lease| lease.call.is_none() && !lease.released && lease.end <= now;
        self.leases.values().filter(orphan).count() as u64
    }

    /// Those that ended by their time alone, whoever had them.
    pub(super) fn unreleased(&self) -> usize {
        self.leases.values().filter(|lease| !lease.released).count()
    }

    pub(super) fn released(&mut self, tokens: &[Token], now: u64, seen: &mut Seen) {
        for token in tokens {
            let Some(lease) = self.leases.get(token) else { continue };
            if !self.is_live(lease, now) {
                seen.note("late releases");
            }
            self.leases.get_mut(token).unwrap().released = true;
        }
    }

    pub(super) fn renewed(
        &mut self,
        leases: &[Renewal],
        held: &[bool],
        now: u64,
        seen: &mut Seen,
    ) -> Result<(), String> {
        if leases.len() != held.len() {
            return Err(format!(
                "{} leases were to be renewed and {} are said to be held",
                leases.len(),
                held.len()
            ));
        }
        for (renewal, held) in leases.iter().zip(held) {
            let Some(lease) = self.leases.get(&renewal.token) else {
                return Err(format!("a lease is renewed that was never given: {renewal:?}"));
            };
            if *held != self.is_live(lease, now) {
                return Err(format!("at {now} the store says held {held} of {lease:?}"));
            }
            if *held {
                seen.note("renewed");
                self.leases.get_mut(&renewal.token).unwrap().end = now + renewal.ttl.as_micros() as u64;
            }
        }
        Ok(())
    }

    pub(super) fn asked(
        &mut self,
        process: usize,
        ask: &Ask<'_>,
        answer: &Answer,
        now: u64,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let Some(slots) = &ask.slots else { return Err("an ask comes without slots".to_owned()) };
        if answer.at != now {
            return Err(format!("the store's clock shows {}, not {now}", answer.at));
        }
        for (index, &token) in slots.tokens[..answer.granted].iter().enumerate() {
            let fence = answer.fence.map_or(0, |first| first.get() + index as u64);
            if fence <= self.fence || fence <= slots.floor {
                return Err(format!(
                    "fencing token {fence} follows {} and floor {}",
                    self.fence, slots.floor
                ));
            }
            self.fence = fence;
            let end = now + slots.ttl.as_micros() as u64;
            let (number, losses) = (self.granted, self.losses);
            let lease =
                Lease { process, fence, number, granted_at: now, end, released: false, losses, call: None };
            if self.leases.insert(token, lease).is_some() {
                return Err(format!("two leases have one name: {token:?}"));
            }
            self.by_fence.insert((process, fence), token);
            self.granted += 1;
            seen.note("granted");
            self.spend(now, ask.costs[index])?;
        }
        let (live, limit) = (self.live(now), slots.limit as usize);
        if answer.granted > 0 && live > limit {
            return Err(format!("{live} slots are held where {limit} may be"));
        }
        if live == limit {
            seen.note("full");
        }
        if answer.refusal.is_some_and(|refusal| refusal.slots) && live < limit {
            return Err(format!("a slot is refused although {live} of {limit} are held"));
        }
        Ok(())
    }

    fn spend(&mut self, now: u64, cost: u32) -> Result<(), String> {
        let Some(RulePlan { limit, interval, burst }) = self.rule else { return Ok(()) };
        let (limit, interval, now) = (u128::from(limit), u128::from(interval), u128::from(now));
        self.tat = self.tat.max(now * limit) + u128::from(cost) * interval;
        if self.tat > now * limit + u128::from(burst) * interval {
            return Err(format!("a job of cost {cost} starts at {now}, before the rule lets it"));
        }
        Ok(())
    }
}
