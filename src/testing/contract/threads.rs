//! Threads that ask at once: each ask is decided at one instant.

use super::{Bench, Clause, Reference};
use crate::rule::Rule;
use crate::store::{Ask, Counts, Slots, Token};
use std::sync::Arc;
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("threads that ask at once keep the rates together", rates_hold_for_all_threads),
    ("threads that ask at once never share a slot or a fencing token", slots_hold_for_all_threads),
];

const THREADS: u128 = 4;
const ASKS: u128 = 50;

/// Has every thread ask so often; gives what each ask gave.
fn everywhere<T: Send>(bench: &Bench<'_>, ask: impl Fn(&Arc<dyn Counts>, u128) -> T + Sync) -> Vec<T> {
    let store = bench.store();
    let opened: Vec<_> = (0..THREADS).map(|_| bench.open(&store, "busy")).collect();
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = opened
            .iter()
            .zip(0..)
            .map(|(counts, thread)| {
                scope.spawn(move || {
                    (0..ASKS).map(|number| ask(counts, thread * ASKS + number)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn rates_hold_for_all_threads(bench: &Bench<'_>) {
    let rules = bench.rules([Rule::gcra(50, Duration::from_secs(1)).burst(40).into()]);
    let mut starts = everywhere(bench, |counts, _| {
        let mut answer = crate::store::Answer::default();
        let asked = counts.admit(&Ask::new(&rules, &[1, 2]), &mut answer);
        asked.map_or((0, 0), |()| (answer.at, answer.granted))
    });
    starts.sort_unstable();
    // In the order of their stamps, all that were granted conform.
    let mut reference = Reference::default();
    for (at, granted) in starts {
        let costs = &[1, 2][..granted];
        let verdict = reference.admit(&rules, at, costs);
        bench.ensure(verdict.granted == granted, || {
            format!("{granted} granted at {at} us, where {} may", verdict.granted)
        });
    }
    let left = reference.admit(&rules, 0, &[40]).refusal;
    bench.ensure(left.is_some(), || "hardly anything was granted".to_owned());
}

fn slots_hold_for_all_threads(bench: &Bench<'_>) {
    let no_rules = bench.rules([]);
    let fences = everywhere(bench, |counts, number| {
        let tokens = [Token(2 * number), Token(2 * number + 1)];
        let mut ask = Ask::new(&no_rules, &[1, 1]);
        ask.slots = Some(Slots::new(7, Duration::from_secs(60), &tokens));
        let mut answer = crate::store::Answer::default();
        let asked = counts.admit(&ask, &mut answer);
        asked.map_or(Vec::new(), |()| {
            answer.fence.map_or(Vec::new(), |first| (first.get()..).take(answer.granted).collect())
        })
    });
    let mut fences = fences.concat();
    bench.equal(&fences.len(), &7, "slots held");
    fences.sort_unstable();
    fences.dedup();
    bench.equal(&fences.len(), &7, "different fencing tokens");
}
