//! What is asked of both: rules at the edges of what is allowed, batches, slots, leases, pauses, and how time passes.

use std::time::Duration;

use valve::{Answer, Lease, Rule, RuleSet, Token};

use crate::support::{Random, micros, us};

/// One asker's rules. Those of one round share names, so that they meet each other's counts.
#[derive(Debug)]
pub(super) struct View {
    pub(super) rules: RuleSet,
}

#[derive(Debug)]
pub(super) enum Act {
    Ask(Asked),
    Renew(Vec<Lease>),
    Release(Vec<Token>),
    Pause(Duration),
    Resume,
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) view: usize,
    pub(super) costs: Vec<u32>,
    pub(super) slots: Option<(u32, Duration)>,
    pub(super) tokens: Vec<Token>,
    pub(super) floor: u64,
    pub(super) releases: Vec<Token>,
    pub(super) waits: bool,
}

/// What has happened so far, as far as it decides what is asked next.
#[derive(Default)]
pub(super) struct Course {
    names: u128,
    /// Every lease once taken, with its length and when it would end.
    leases: Vec<(Token, Duration, u64)>,
    /// What the last refusal said.
    hint: Option<u64>,
}

const YEAR: u64 = 365 * 24 * 3_600 * 1_000_000;

/// Beyond this, time only creeps: no server's clock shows the next century.
const LATE: u64 = 117 * YEAR;

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

/// What makes a rule the same one for all: kind, interval and name.
#[derive(Clone, Copy)]
struct Identity {
    window: bool,
    interval: u64,
    named: bool,
}

impl Identity {
    fn draw(random: &mut Random) -> Identity {
        let intervals =
            [1, 997, 5_000, 33_333, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 10 * YEAR];
        Identity {
            window: random.below(3) == 0,
            interval: one_of(random, &intervals),
            named: random.below(4) == 0,
        }
    }

    fn rule(self, random: &mut Random, place: usize) -> Rule {
        let any = random.below(u64::from(u32::MAX)) as u32 + 1;
        let limit = one_of(random, &[1, 2, 3, 7, 10, 60, 1_000, 2_999, 1_000_003, u32::MAX, any]);
        let name = format!("rule {place}");
        if self.window {
            let window = Rule::fixed_window(limit, us(self.interval));
            return if self.named { window.named(name).into() } else { window.into() };
        }
        // The most that any denominator allows, too.
        let most = ((1_u64 << 53) / u64::from(limit) - 1).min(u32::MAX.into()) as u32;
        let burst = one_of(random, &[1, 2, 3, 5, 9, 100, 40_000, 2_000_000, most]);
        let gcra = Rule::gcra(limit, us(self.interval));
        let gcra = if self.named { gcra.named(name) } else { gcra };
        [burst, 1]
            .into_iter()
            .map(|burst| Rule::from(gcra.clone().burst(burst)))
            .find(|rule| RuleSet::new(vec![rule.clone()]).is_ok())
            .unwrap()
    }
}

impl View {
    pub(super) fn draw_several(random: &mut Random) -> Vec<View> {
        let identities: Vec<_> = (0..random.below(5)).map(|_| Identity::draw(random)).collect();
        let views = 1 + random.below(4);
        (0..views)
            .map(|_| {
                // Not all ask by all rules.
                let chosen = identities.iter().enumerate().filter(|_| views == 1 || random.below(5) > 0);
                let chosen: Vec<_> = chosen.map(|(place, &identity)| (place, identity)).collect();
                let rules = chosen.into_iter().map(|(place, identity)| identity.rule(random, place));
                View { rules: RuleSet::new(rules.collect()).unwrap() }
            })
            .collect()
    }

    fn cost(&self, random: &mut Random) -> u32 {
        let most = self.rules.largest_cost().map_or(5, |(most, _)| most);
        match random.below(40) {
            0 => most,
            1 => most.saturating_add(1),
            2..7 => random.cost(most),
            _ => random.cost(most.min(3)),
        }
    }
}

impl Course {
    pub(super) fn draw(&mut self, random: &mut Random, views: &[View], now: u64) -> Act {
        match random.below(40) {
            0..4 => {
                Act::Renew(self.some(random, 12).into_iter().map(|token| self.lease(random, token)).collect())
            }
            4..6 => Act::Release(self.some(random, 8)),
            6 => Act::Pause(us(one_of(random, &[1, 1_000, 50_000, 3_600_000_000]))),
            7..10 => Act::Resume,
            _ => Act::Ask(self.asked(random, views, now)),
        }
    }

    fn asked(&mut self, random: &mut Random, views: &[View], now: u64) -> Asked {
        let view = random.below(views.len() as u64) as usize;
        let jobs = [1, 1, 1 + random.below(4), 1 + random.below(64)][random.below(4) as usize];
        let equal = random.below(2) == 0;
        let first = views[view].cost(random);
        let costs: Vec<_> = (0..jobs).map(|_| if equal { first } else { views[view].cost(random) }).collect();
        let slots = (random.below(2) == 0).then(|| {
            let ttl = us(one_of(random, &[1, 100_000, 10_000_000, 86_400_000_000, 86_400_000_000]));
            (one_of(random, &[0, 1, 2, 5, 9, 100, 100_000]), ttl)
        });
        let mut names = self.names..;
        let mut tokens: Vec<_> = names.by_ref().take(costs.len()).map(Token).collect();
        self.names = names.start;
        // An ask may come twice.
        if let Some(&(token, ..)) = self.leases.last().filter(|_| random.below(30) == 0) {
            tokens[0] = token;
        }
        let releases = if random.below(3) == 0 { self.some(random, 6) } else { Vec::new() };
        let floor = one_of(random, &[0, 0, 0, now, now + 5]);
        Asked { view, costs, slots, tokens, floor, releases, waits: random.below(2) == 0 }
    }

    /// Names of leases that were taken, some of them long ended, and one that nobody has.
    fn some(&mut self, random: &mut Random, most: usize) -> Vec<Token> {
        let taken = self.leases.len() as u64;
        let from = taken.saturating_sub(one_of(random, &[1, 5, 20, 100]));
        let mut tokens: Vec<_> = (from..taken)
            .filter(|_| random.below(2) == 0)
            .map(|place| self.leases[place as usize].0)
            .take(most)
            .collect();
        if tokens.is_empty() || random.below(10) == 0 {
            tokens.push(Token(u128::MAX - u128::from(random.below(9))));
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    fn lease(&self, random: &mut Random, token: Token) -> Lease {
        let known = self.leases.iter().rev().find(|(taken, ..)| *taken == token);
        let ttl = known.map_or(us(100_000), |&(_, ttl, _)| ttl);
        Lease { token, ttl: if random.below(20) == 0 { ttl / 2 + us(1) } else { ttl } }
    }

    pub(super) fn learn(&mut self, asked: &Asked, answer: &Answer) {
        if let Some((_, ttl)) = asked.slots {
            let taken = asked.tokens.iter().take(answer.granted);
            self.leases.extend(taken.map(|&token| (token, ttl, answer.at + micros(ttl))));
        }
        let refusal = answer.refusal.unwrap_or_default();
        self.hint = refusal.rate.map(|(_, wait)| wait).or(refusal.pause).map(micros);
    }

    /// How much time passes now: none, what a refusal or a lease says, a tick less, or some.
    pub(super) fn moves(&self, random: &mut Random, now: u64) -> u64 {
        let end = self.leases.last().map_or(0, |&(.., end)| end.saturating_sub(now));
        let length = match random.below(20) {
            0..9 => 0,
            9..12 => self.hint.unwrap_or(1),
            12..14 => self.hint.unwrap_or(1).saturating_sub(1),
            14 => end,
            15 => end.saturating_sub(1),
            16 => random.below(1_000),
            17 => random.below(100_000),
            18 => random.below(3_600_000_000),
            _ => random.below(2 * 86_400_000_000),
        };
        if now > LATE || length > 10 * YEAR { length.min(1_000) } else { length }
    }
}
