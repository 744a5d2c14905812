//! Tables of asks and of whole queues on virtual time, and the two `check`s behind them.

mod gcra;
mod properties;
mod reference;
mod several;
mod state;
mod validation;
mod window;

use std::time::Duration;

use super::{RateRefusal, Rule, RuleSet, RuleState};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// What an ask is answered: it starts, or the tick before which it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Starts,
    Waits(u64),
}
use Answer::{Starts, Waits};

/// Asks for one job at a time: (tick, cost, answer).
#[track_caller]
fn check_asks(rules: impl IntoIterator<Item = Rule>, asks: &[(u64, u32, Answer)]) {
    let set = set(rules);
    let mut states = fresh(&set);
    for &(now, cost, expected) in asks {
        let verdict = set.admit(&mut states, now, [cost]);
        let answer = verdict.refusal.map_or(Starts, |refusal| Waits(refusal.not_before));
        assert_eq!(answer, expected, "cost {cost} at {now} us");
        assert_eq!(verdict.granted, usize::from(answer == Starts), "cost {cost} at {now} us");
    }
}

/// Lets a queue of (arrival in ms, cost, how many) run dry, its head always waiting exactly the hint; expects
/// runs of (tick, how many started).
#[track_caller]
fn check_starts(
    rules: impl IntoIterator<Item = Rule>,
    jobs: &[(u64, u32, usize)],
    expected: &[(u64, usize)],
) {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for (tick, _) in starts(&set(rules), jobs) {
        match runs.last_mut() {
            Some((last, count)) if *last == tick => *count += 1,
            _ => runs.push((tick, 1)),
        }
    }
    assert_eq!(runs, expected);
}

/// The starts, as (tick, cost), of a queue of (arrival in ms, cost, how many).
fn starts(set: &RuleSet, jobs: &[(u64, u32, usize)]) -> Vec<(u64, u32)> {
    let queue: Vec<(u64, u32)> =
        jobs.iter().flat_map(|&(arrival, cost, many)| vec![(arrival * MS, cost); many]).collect();
    let mut states = fresh(set);
    let mut starts = Vec::new();
    let mut now = 0;
    while let Some(&(arrival, _)) = queue.get(starts.len()) {
        now = now.max(arrival);
        let waiting = &queue[starts.len()..];
        let arrived = waiting.iter().take_while(|&&(arrival, _)| arrival <= now).map(|&(_, cost)| cost);
        let verdict = set.admit(&mut states, now, arrived);
        starts.extend(waiting[..verdict.granted].iter().map(|&(_, cost)| (now, cost)));
        if let Some(RateRefusal { not_before, .. }) = verdict.refusal {
            assert!(not_before > now, "a hint in the past: {not_before} at {now}");
            now = not_before;
        }
    }
    starts
}

/// The most cost that starts in any half-open window of this length.
fn most_in_any_window(starts: &[(u64, u32)], length: u64) -> u64 {
    let windows = starts.iter().enumerate().map(|(first, &(begin, _))| {
        let inside = starts[first..].iter().take_while(|&&(tick, _)| tick - begin < length);
        inside.map(|&(_, cost)| u64::from(cost)).sum()
    });
    windows.max().unwrap_or(0)
}

#[track_caller]
fn set(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
    RuleSet::new(rules.into_iter().collect()).unwrap()
}

fn fresh(set: &RuleSet) -> Vec<RuleState> {
    vec![RuleState::default(); set.len()]
}

fn gcra(limit: u32, interval_ms: u64, burst: u32) -> Rule {
    Rule::gcra(limit, Duration::from_millis(interval_ms)).burst(burst).into()
}

fn window(limit: u32, interval_ms: u64) -> Rule {
    Rule::fixed_window(limit, Duration::from_millis(interval_ms)).into()
}
