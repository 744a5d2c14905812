//! The table and the model of it that the exploration of the protocol goes by, put through the same random walk.
//!
//! One tick of the model is [`TICK`] here.

#[path = "../../../tests/it/protocol/owner.rs"]
mod owner;
#[allow(dead_code, reason = "the exploration breaks all of them, this walk none")]
#[path = "../../../tests/it/protocol/rules.rs"]
mod rules;

use super::super::{Lease, Leases};
use crate::clock::Tick;
use crate::store::Token;
use owner::Owner;
use rules::{BEFORE, NAMES, PRESENT, TIMEOUT, TTL};
use std::sync::Arc;

const TICK: Tick = 100;
const STEPS: usize = 100_000;

#[derive(Default)]
struct Walk {
    random: u64,
    now: Tick,
    leases: Leases,
    model: Owner,
    /// The names in use, and the last that was given.
    names: [u128; NAMES],
    last: u128,
    lease: Option<Arc<Lease>>,
    /// An ask under way, since when.
    ask: Option<Tick>,
    renewal: Option<Renewal>,
    met: [usize; 5],
}

struct Renewal {
    sent: Tick,
    asked: Vec<Arc<Lease>>,
    /// When its good answer was read, and whether the lease was lost then.
    read: Option<(Tick, bool)>,
}

#[test]
fn the_table_does_what_its_model_does() {
    let mut walk = Walk { random: 1, ..Walk::default() };
    for step in 0..STEPS {
        let what = walk.step();
        walk.compare(step, what);
    }
    assert!(walk.met.iter().all(|&count| count > STEPS / 1_000), "too little was met: {:?}", walk.met);
}

impl Walk {
    fn step(&mut self) -> &'static str {
        match self.random(8) {
            0 | 1 => self.pass(),
            2 if self.ask.is_none() && self.lease.is_none() => self.send_ask(),
            3 if self.ask.is_some() => self.end_ask(),
            4 if self.lease.is_some() && self.random(3) == 0 => self.end_job(),
            5 => self.release(),
            6 if self.renewal.is_some() => self.hear_of_renewal(),
            _ => self.look(),
        }
    }

    /// Time passes; sometimes nobody looks at the timers for a while.
    fn pass(&mut self) -> &'static str {
        self.now += TICK;
        let runs = self.random(3) != 0;
        self.model.pass(runs);
        if runs {
            self.run_timers();
        }
        "a tick passed"
    }

    fn run_timers(&mut self) {
        let mut lost = Vec::new();
        let due = self.leases.due(self.now, &mut lost);
        self.model.lost |= self.model.held && self.model.left == 0;
        assert!(due || !self.model.is_due() || self.renewal.is_some(), "a renewal is late at {}", self.now);
        if due {
            assert!(self.lease.is_some(), "a renewal of nothing at {}", self.now);
            self.renewal = Some(Renewal { sent: self.now, asked: self.leases.all(), read: None });
        }
    }

    fn send_ask(&mut self) -> &'static str {
        if self.model.unsent[PRESENT] > 0 && self.model.unsent[BEFORE] > 0 {
            return "no name was free";
        }
        if self.model.unsent[PRESENT] > 0 {
            self.model.rename();
            self.names.swap(PRESENT, BEFORE);
        }
        self.last += 1;
        self.names[PRESENT] = self.last;
        self.ask = Some(self.now);
        "an ask was sent"
    }

    fn end_ask(&mut self) -> &'static str {
        let Some(sent) = self.ask.take() else { return "" };
        let age = self.age(sent);
        match self.random(4) {
            0 => "an ask was refused",
            1 => {
                let end = sent + Tick::from(TTL + TIMEOUT) * TICK;
                self.leases.abandon(self.name(PRESENT), end);
                self.model.abandoned(age);
                "an ask was abandoned"
            }
            _ => {
                let lease = Arc::new(Lease::new(self.name(PRESENT), None, Tick::from(TTL) * TICK, sent));
                self.leases.take(&lease);
                self.lease = Some(lease);
                self.model.granted(age, None);
                self.run_timers();
                "an ask was granted"
            }
        }
    }

    fn end_job(&mut self) -> &'static str {
        if let Some(lease) = self.lease.take() {
            self.leases.end(&lease, self.now);
            self.model.ended(None);
            self.met[0] += usize::from(self.model.unsent[PRESENT] > 0);
        }
        "the job ended"
    }

    fn release(&mut self) -> &'static str {
        let name = self.random(NAMES);
        self.met[1] += usize::from(self.model.unsent[name] > 0);
        self.leases.released(&[self.name(name)]);
        self.model.released(name);
        "a release was carried out"
    }

    /// A renewal comes to nothing, is refused, or good; then its thread may stand still between reading the clock and
    /// telling the table.
    fn hear_of_renewal(&mut self) -> &'static str {
        let Some(mut renewal) = self.renewal.take() else { return "" };
        let current =
            self.lease.as_ref().filter(|lease| renewal.asked.iter().any(|asked| Arc::ptr_eq(asked, lease)));
        let (is_current, lost_now) = (current.is_some(), self.model.is_lost(None));
        let fate = self.random(6);
        if renewal.read.is_none() && fate == 5 {
            renewal.read = Some((self.now, lost_now));
            self.renewal = Some(renewal);
            return "a renewal's answer was read";
        }
        let good = renewal.read.is_some() || fate > 2;
        let next = if fate == 0 && renewal.read.is_none() {
            self.now
        } else {
            let (read, lost_then) = renewal.read.unwrap_or((self.now, lost_now));
            let held = vec![good; renewal.asked.len()];
            self.leases.answered(&renewal.asked, &held, renewal.sent, read, &mut Vec::new());
            self.tell_model(is_current, good, self.age(renewal.sent), lost_then);
            renewal.sent + TICK
        };
        self.leases.renewed(next);
        self.run_timers();
        "a renewal ended"
    }

    fn tell_model(&mut self, is_current: bool, good: bool, age: u8, lost_then: bool) {
        if !is_current {
            return;
        }
        let left = self.model.left;
        if good {
            self.met[2] += usize::from(lost_then);
            self.model.extended(age, lost_then, None);
            self.met[3] += usize::from(self.model.left > left);
        } else {
            self.met[4] += 1;
            self.model.refused(None);
        }
    }

    /// Anybody asks whether the job may still run.
    fn look(&mut self) -> &'static str {
        if let Some(lease) = &self.lease {
            assert_eq!(lease.is_lost(self.now), self.model.looked_at(None), "at {}", self.now);
        }
        "somebody looked"
    }

    /// What can be seen without looking at the lease, for looking leaves its mark.
    fn compare(&mut self, step: usize, what: &str) {
        let mut tokens = Vec::new();
        self.leases.unsent(NAMES, self.now, &mut tokens);
        let expected: Vec<Token> = (0..NAMES)
            .filter(|name| self.model.unreleased() & 1 << name != 0)
            .map(|name| self.name(name))
            .collect();
        tokens.sort_unstable_by_key(|token| std::cmp::Reverse(token.0));
        assert_eq!(tokens, expected, "step {step}: {what}: to be released at {}", self.now);
        if let Some(lease) = self.lease.as_ref().filter(|_| !self.model.lost) {
            let end = self.now + Tick::from(self.model.left) * TICK;
            assert!(
                lease.end() == end || self.model.left == 0,
                "step {step}: {what}: ends at {}, not {end}",
                lease.end()
            );
        }
    }

    fn age(&self, sent: Tick) -> u8 {
        u8::try_from((self.now - sent) / TICK).unwrap_or(u8::MAX)
    }

    fn name(&self, name: usize) -> Token {
        Token(self.names[name])
    }

    fn random(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.random >> 33).unwrap() % below
    }
}
