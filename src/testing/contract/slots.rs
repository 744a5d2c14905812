//! Fleet-wide slots: taken with the ask, held by leases that end by themselves, numbered by fencing tokens.

use super::{Bench, Clause, Reference, every_20_ms};
use crate::clock::{duration, ticks_up};
use crate::rule::RuleSet;
use crate::store::{Answer, Ask, Counts, Deadline, Lease, Slots, Token};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("slots are taken with the ask, as many as are free", slots_are_taken),
    ("the limit on slots is the asker's own", slot_limits_are_the_askers),
    ("release ends what it names and nothing else", releases_name_what_ends),
    ("releases in an ask are applied before it is decided", releases_come_first),
    ("releases in an ask are applied even if it is refused", releases_are_always_applied),
    ("a job without a slot spends nothing, one without budget takes no slot", slots_and_rates_go_together),
    ("a lease ends by itself, at its end and not before", leases_end),
    ("renewing makes a lease last its full length from then", renewing_extends),
    ("renewing never revives", renewing_never_revives),
    ("a pause ends no lease and stops no renewal", pauses_leave_leases),
    ("fencing tokens grow strictly, also above the asker's floor", fences_grow),
];

const TTL: Duration = Duration::from_secs(60);

/// One id of a store, whose asks are for slots.
struct Trial<'a> {
    bench: &'a Bench<'a>,
    counts: Arc<dyn Counts>,
    rules: RuleSet,
    limit: u32,
    ttl: Duration,
}

impl<'a> Trial<'a> {
    fn new(bench: &'a Bench<'a>, limit: u32) -> Trial<'a> {
        Trial { bench, counts: bench.fresh(), rules: bench.rules([]), limit, ttl: TTL }
    }

    /// Asks for as many jobs of cost 1 as there are names, above this floor, ending these leases.
    fn ask(&self, names: Range<u128>, floor: u64, releases: &[Token]) -> Answer {
        let tokens = tokens(names);
        let costs = vec![1; tokens.len()];
        let mut slots = Slots::new(self.limit, self.ttl, &tokens);
        slots.floor = floor;
        let mut ask = Ask::new(&self.rules, &costs);
        (ask.slots, ask.releases) = (Some(slots), releases);
        let answer = self.bench.ask(&self.counts, &ask);
        let fence = answer.fence.is_some();
        self.bench.equal(
            &fence,
            &(answer.granted > 0),
            format_args!("whether {answer:?} has a fencing token"),
        );
        answer
    }

    #[track_caller]
    fn take(&self, names: Range<u128>, expected: usize) -> Answer {
        let answer = self.ask(names.clone(), 0, &[]);
        self.bench.equal(&answer.granted, &expected, format_args!("slots for {names:?} of {}", self.limit));
        if let Some(refusal) = answer.refusal {
            let only = refusal.slots && refusal.rate.is_none() && refusal.pause.is_none();
            self.bench
                .ensure(only || !self.rules.is_empty(), || format!("a slot was missing, yet {refusal:?}"));
        }
        answer
    }

    fn release(&self, names: Range<u128>) {
        self.bench.done(self.counts.release(&tokens(names)));
    }

    /// Renews; whether each held, into a list that is full of something else.
    fn renew(&self, names: &[u128]) -> Vec<bool> {
        let leases: Vec<_> = names.iter().map(|&name| Lease { token: Token(name), ttl: self.ttl }).collect();
        let mut held = vec![true, false, true, true, true];
        self.bench.done(self.counts.renew(&leases, Deadline::never(), &mut held));
        held
    }

    /// What the store's clock shows.
    fn at(&self) -> u64 {
        self.bench.ask(&self.counts, &Ask::new(&self.bench.rules([]), &[1])).at
    }
}

fn tokens(names: Range<u128>) -> Vec<Token> {
    names.map(Token).collect()
}

fn slots_are_taken(bench: &Bench<'_>) {
    let trial = Trial::new(bench, 3);
    trial.take(0..2, 2);
    trial.take(2..7, 1);
    trial.take(7..8, 0);
    trial.release(0..1);
    // Those that were not granted hold nothing.
    trial.take(3..4, 1);
    trial.take(4..5, 0);
}

fn slot_limits_are_the_askers(bench: &Bench<'_>) {
    let mut trial = Trial::new(bench, 4);
    trial.take(0..4, 4);
    trial.limit = 2;
    trial.take(4..6, 0);
    trial.limit = 5;
    trial.take(6..8, 1);
    trial.limit = 2;
    trial.release(0..3);
    trial.take(8..9, 0);
    trial.release(3..4);
    trial.take(9..11, 1);
}

fn releases_name_what_ends(bench: &Bench<'_>) {
    let trial = Trial::new(bench, 3);
    trial.take(0..3, 3);
    // Of nobody, of somebody, and again.
    trial.release(50..60);
    trial.take(10..11, 0);
    trial.release(1..2);
    trial.release(1..2);
    trial.take(20..22, 1);
    bench.equal(&trial.renew(&[0, 1, 2, 20]), &vec![true, false, true, true], "who still holds");
    trial.release(0..0);
    trial.take(30..31, 0);
}

fn releases_come_first(bench: &Bench<'_>) {
    let trial = Trial::new(bench, 1);
    trial.take(0..1, 1);
    let answer = trial.ask(1..2, 0, &tokens(0..1));
    bench.equal(&answer.granted, &1, "granted with the release of the only slot");
    bench.equal(&trial.renew(&[0, 1]), &vec![false, true], "who holds it");
}

fn releases_are_always_applied(bench: &Bench<'_>) {
    // The rate refuses.
    let mut trial = Trial::new(bench, 2);
    trial.rules = bench.rules([every_20_ms(2)]);
    trial.take(0..2, 2);
    let answer = trial.ask(2..4, 0, &tokens(0..1));
    bench.ensure(answer.granted < 2, || format!("{answer:?}"));
    bench.equal(
        &trial.renew(&[0]),
        &vec![false],
        "whether a slot is held after its release in a refused ask",
    );

    // A pause does.
    let trial = Trial::new(bench, 2);
    trial.take(0..2, 2);
    bench.done(trial.counts.pause(Duration::from_secs(60), Deadline::never()));
    trial.ask(2..3, 0, &tokens(0..1));
    bench.equal(
        &trial.renew(&[0, 1]),
        &vec![false, true],
        "who holds after a release in an ask during a pause",
    );

    // And the slots do.
    let trial = Trial::new(bench, 3);
    trial.take(0..3, 3);
    let mut smaller = Trial::new(bench, 1);
    smaller.counts = Arc::clone(&trial.counts);
    let answer = smaller.ask(3..4, 0, &tokens(0..1));
    bench.equal(&answer.granted, &0, "granted");
    bench.equal(
        &trial.renew(&[0, 1, 2]),
        &vec![false, true, true],
        "who holds after a release in an ask without a slot",
    );
}

fn slots_and_rates_go_together(bench: &Bench<'_>) {
    let mut trial = Trial::new(bench, 1);
    trial.rules = bench.rules([every_20_ms(4)]);
    let mut reference = Reference::default();
    let answer = trial.take(0..3, 1);
    let spent = reference.admit(&trial.rules, answer.at, &[1]).granted;
    bench.equal(&spent, &1, "what the reference grants");
    for _ in 0..3 {
        trial.take(1..2, 0);
    }
    // What was spent: one unit. It asks without slots.
    let answer = bench.rated(&mut reference, &trial.counts, &trial.rules, &[1; 4]);
    bench.ensure(answer.granted == 3 || answer.granted == 4, || format!("{answer:?}"));

    let mut trial = Trial::new(bench, 2);
    trial.rules = bench.rules([every_20_ms(1)]);
    let first = trial.take(0..1, 1);
    let second = trial.ask(1..2, 0, &[]);
    if second.granted == 0 {
        let hint =
            second.refusal.and_then(|refusal| refusal.rate).map(|(_, hint)| second.at + ticks_up(hint));
        bench.equal(&hint, &Some(first.at + 20_000), "when the rate has budget again");
        bench.equal(&trial.renew(&[0, 1]), &vec![true, false], "who holds a slot");
    }
}

fn leases_end(bench: &Bench<'_>) {
    let mut trial = Trial::new(bench, 1);
    trial.ttl = Duration::from_millis(100);
    let first = trial.take(0..1, 1);
    let end = first.at + ticks_up(trial.ttl);
    for left in [60_000, 1, 0] {
        let now = trial.at();
        bench.wait(duration(end.saturating_sub(now + left)));
        let answer = trial.ask(1..2, 0, &[]);
        let free = answer.at >= end;
        bench.equal(
            &answer.granted,
            &usize::from(free),
            format_args!("slots at {} us of a lease that ends at {end} us", answer.at),
        );
        if free {
            return;
        }
    }
    bench.ensure(false, || "the lease has not ended".to_owned());
}

fn renewing_extends(bench: &Bench<'_>) {
    let mut trial = Trial::new(bench, 1);
    trial.ttl = Duration::from_millis(200);
    let ttl = ticks_up(trial.ttl);
    let taken = trial.take(0..1, 1).at;
    let mut renewed = (taken, taken);
    for _ in 0..3 {
        bench.wait(Duration::from_millis(80));
        let before = trial.at();
        let held = trial.renew(&[0]);
        let after = trial.at();
        if after >= renewed.0 + ttl {
            // Whoever waits was held up for too long to say.
            return;
        }
        bench.equal(&held, &vec![true], "whether a lease held within its length");
        renewed = (before, after);
    }
    for left in [60_000, 1, 0] {
        let now = trial.at();
        bench.wait(duration((renewed.1 + ttl).saturating_sub(now + left)));
        let answer = trial.ask(1..2, 0, &[]);
        let early = answer.granted == 1 && answer.at < renewed.0 + ttl;
        bench.ensure(!early, || {
            format!("a lease renewed at {} us for {ttl} us had ended at {} us", renewed.0, answer.at)
        });
        let late = answer.granted == 0 && answer.at >= renewed.1 + ttl;
        bench.ensure(!late, || {
            format!("a lease renewed at {} us for {ttl} us held at {} us", renewed.1, answer.at)
        });
        if answer.granted == 1 {
            return;
        }
    }
}

fn renewing_never_revives(bench: &Bench<'_>) {
    let trial = Trial::new(bench, 2);
    trial.take(0..2, 2);
    bench.equal(&trial.renew(&[9, 0, 8]), &vec![false, true, false], "whether those never taken hold");
    trial.release(1..2);
    bench.equal(&trial.renew(&[1]), &vec![false], "whether a released lease holds");
    bench.equal(&trial.renew(&[]), &vec![], "what is said of nobody");

    let mut trial = Trial::new(bench, 2);
    trial.ttl = Duration::from_millis(50);
    trial.take(0..2, 2);
    bench.wait(Duration::from_millis(51));
    bench.equal(&trial.renew(&[0, 1]), &vec![false, false], "whether ended leases hold");
    trial.ttl = TTL;
    // Nor do they take up room.
    trial.take(10..13, 2);
}

fn pauses_leave_leases(bench: &Bench<'_>) {
    let trial = Trial::new(bench, 2);
    trial.take(0..2, 2);
    bench.done(trial.counts.pause(Duration::from_secs(60), Deadline::never()));
    bench.equal(&trial.renew(&[0, 1]), &vec![true, true], "who holds during a pause");
    trial.release(1..2);
    bench.equal(&trial.renew(&[0, 1]), &vec![true, false], "who holds after a release during a pause");
    bench.done(trial.counts.resume(Deadline::never()));
    trial.take(2..4, 1);
}

fn fences_grow(bench: &Bench<'_>) {
    let store = bench.store();
    let mut last = 0;
    let mut check = |answer: &Answer, floor: u64| {
        let Some(fence) = answer.fence else { return };
        bench.ensure(fence.get() > last.max(floor), || {
            format!("{fence} after {last}, with a floor of {floor}")
        });
        last = fence.get() + answer.granted as u64 - 1;
    };
    for floor in [0, 5, 1 << 50, 1 << 51, 0, 0] {
        let trial = Trial { counts: bench.open(&store, "fenced"), ..Trial::new(bench, 3) };
        let answer = trial.ask(0..2, floor, &[]);
        bench.equal(&answer.granted, &2, "granted");
        check(&answer, floor);
        check(&trial.ask(2..3, floor, &[]), floor);
        check(&trial.ask(3..5, floor, &[]), floor);
        trial.release(0..3);
        check(&trial.ask(5..6, 0, &[]), 0);
        trial.release(5..6);
    }
    let no_slots = bench.ask(&bench.open(&store, "fenced"), &Ask::new(&bench.rules([]), &[1]));
    bench.equal(&no_slots.fence, &None, "the fencing token of a job without a slot");
}
