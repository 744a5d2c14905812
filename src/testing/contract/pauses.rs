//! Pauses: nothing starts, nothing is spent, and only `resume` makes one shorter.

use super::{Bench, Clause, Reference, every_20_ms};
use crate::clock::{duration, ticks_up};
use crate::store::{Answer, Ask, Counts, Deadline};
use std::sync::Arc;
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("nothing starts while a pause holds, whatever its rules", pauses_stop_everything),
    ("a pause ends by itself, at its end and not before", pauses_end),
    ("a pause spends nothing", pauses_are_free),
    ("a pause only makes a longer one", pauses_only_extend),
    ("resume ends any pause", resume_ends_pauses),
    ("a pause holds for its id, whoever opened it, and for no other", pauses_hold_for_their_id),
];

const LONG: Duration = Duration::from_secs(60);

/// Pauses; when the store says that it ends, in microseconds of its clock.
fn pause(bench: &Bench<'_>, counts: &Arc<dyn Counts>, length: Duration) -> u64 {
    let before = at(bench, counts);
    let left = bench.done(counts.pause(length, Deadline::never()));
    let answer = free(bench, counts);
    let Some(end) = end(&answer) else {
        bench.ensure(false, || format!("an ask after a pause of {length:?}: {answer:?}"));
        return 0;
    };
    // It was told as of some instant between the two asks.
    let told = (before + ticks_up(left), answer.at + ticks_up(left));
    bench.ensure((told.0..=told.1).contains(&end), || {
        format!("{left:?} left at {before} us, yet it ends at {end} us")
    });
    bench.ensure(left >= length, || format!("{left:?} left of {length:?}"));
    end
}

/// Asks for one job without rules.
fn free(bench: &Bench<'_>, counts: &Arc<dyn Counts>) -> Answer {
    bench.ask(counts, &Ask::new(&bench.rules([]), &[1]))
}

fn at(bench: &Bench<'_>, counts: &Arc<dyn Counts>) -> u64 {
    free(bench, counts).at
}

fn end(answer: &Answer) -> Option<u64> {
    let left = answer.refusal?.pause?;
    (answer.granted == 0).then(|| answer.at + ticks_up(left))
}

fn pauses_stop_everything(bench: &Bench<'_>) {
    let counts = bench.fresh();
    let until = pause(bench, &counts, LONG);
    for rules in
        [bench.rules([]), bench.rules([every_20_ms(9)]), bench.rules([every_20_ms(9), every_20_ms(2)])]
    {
        for costs in [&[1][..], &[1, 1, 1]] {
            let answer = bench.ask(&counts, &Ask::new(&rules, costs));
            bench.equal(&answer.granted, &0, "granted");
            bench.equal(&end(&answer), &Some(until), "the end of the pause");
        }
        bench.wait(Duration::from_millis(3));
    }
}

fn pauses_end(bench: &Bench<'_>) {
    let counts = bench.fresh();
    for length in [duration(1), Duration::from_millis(30)] {
        let now = at(bench, &counts);
        bench.done(counts.pause(length, Deadline::never()));
        bench.wait(length.saturating_sub(duration(1)));
        let answer = free(bench, &counts);
        bench.ensure(answer.granted == 0 || answer.at >= now + ticks_up(length), || {
            format!("{answer:?}, paused at {now} us for {length:?}")
        });
        if let Some(end) = end(&answer) {
            bench.wait(duration(end - answer.at));
        }
        let answer = free(bench, &counts);
        bench.ensure(answer.granted == 1, || format!("{answer:?} after its end"));
    }
}

fn pauses_are_free(bench: &Bench<'_>) {
    let (counts, rules, mut reference) = (bench.fresh(), bench.rules([every_20_ms(4)]), Reference::default());
    bench.rated(&mut reference, &counts, &rules, &[2]);
    pause(bench, &counts, LONG);
    for _ in 0..3 {
        bench.ask(&counts, &Ask::new(&rules, &[1, 1]));
    }
    bench.done(counts.resume(Deadline::never()));
    bench.rated(&mut reference, &counts, &rules, &[1; 4]);
}

fn pauses_only_extend(bench: &Bench<'_>) {
    let counts = bench.fresh();
    let until = pause(bench, &counts, LONG);
    for shorter in [duration(1), Duration::from_secs(1), LONG / 2] {
        bench.wait(Duration::from_millis(1));
        bench.equal(
            &pause(bench, &counts, shorter),
            &until,
            format_args!("the end after a pause of {shorter:?} more"),
        );
    }
    let longer = pause(bench, &counts, LONG * 2);
    bench.ensure(longer > until, || format!("{longer} us is not after {until} us"));
}

fn resume_ends_pauses(bench: &Bench<'_>) {
    let store = bench.store();
    let (one, two) = (bench.open(&store, "paused"), bench.open(&store, "paused"));
    // Also where none is.
    bench.done(two.resume(Deadline::never()));
    pause(bench, &one, LONG);
    pause(bench, &one, LONG * 60);
    bench.done(two.resume(Deadline::never()));
    for counts in [&one, &two] {
        let answer = free(bench, counts);
        bench.ensure(answer.granted == 1, || format!("{answer:?} after resume"));
    }
    // It left nothing behind that a new pause would extend.
    let begin = at(bench, &one);
    let end = pause(bench, &one, LONG);
    let latest = free(bench, &one).at + ticks_up(LONG);
    bench.ensure((begin + ticks_up(LONG)..=latest).contains(&end), || {
        format!("a pause of {LONG:?} at {begin} us ends at {end} us")
    });
}

fn pauses_hold_for_their_id(bench: &Bench<'_>) {
    let store = bench.store();
    let (one, two, other) =
        (bench.open(&store, "paused"), bench.open(&store, "paused"), bench.open(&store, "other"));
    let until = pause(bench, &one, LONG);
    bench.equal(&end(&free(bench, &two)), &Some(until), "the end of the pause, elsewhere");
    let answer = free(bench, &other);
    bench.ensure(answer.granted == 1, || format!("another id: {answer:?}"));
    bench.done(other.resume(Deadline::never()));
    bench.equal(&end(&free(bench, &one)), &Some(until), "the end of the pause, after another id's resume");
}
