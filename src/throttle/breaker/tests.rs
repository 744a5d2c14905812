//! The breaker as a list of steps: who asks when, how it ended, and what the next may do.

use super::{Breaker, COOLDOWN, Change, Ended, Pass};
use crate::clock::Tick;
use proptest::prelude::*;

const LIMIT: Tick = 1_000_000;

fn ask(breaker: &mut Breaker, now: Tick) -> Pass {
    breaker.admit(now).unwrap()
}

/// Each call asks and ends at once; `o` is answered, `x` fails. What became of it with each.
#[track_caller]
fn calls(breaker: &mut Breaker, now: Tick, course: &str) -> Vec<Change> {
    let end = |letter| if letter == 'o' { Ended::Answered } else { Ended::Failed };
    let mut call = |letter| {
        let pass = ask(breaker, now);
        breaker.ended(pass, end(letter), now)
    };
    course.chars().map(&mut call).collect()
}

fn open_at(now: Tick) -> Breaker {
    let mut breaker = Breaker::new(LIMIT);
    calls(&mut breaker, now, "xxxxx");
    breaker
}

#[test]
fn five_failures_in_a_row_open_it() {
    #[track_caller]
    fn check(course: &str, opens: bool) {
        let mut breaker = Breaker::new(LIMIT);
        let changes = calls(&mut breaker, 7, course);
        let (last, before) = changes.split_last().unwrap();
        assert!(before.iter().all(|change| *change == Change::None), "{course}: {changes:?}");
        assert_eq!(*last == Change::Opened, opens, "{course}");
        assert_eq!(breaker.admit(7).is_none(), opens, "{course}");
    }
    check("xxxx", false);
    check("xxxxx", true);
    check("xxxxoxxxx", false);
    check("xxxxoxxxxx", true);
    check("oooooxxxxx", true);
    check("xoxoxoxoxoxox", false);
}

#[test]
fn it_stays_open_for_exactly_ten_seconds() {
    let mut breaker = open_at(100);
    for now in [100, 101, 100 + COOLDOWN - 1] {
        assert_eq!(breaker.admit(now), None, "{now}");
    }
    assert!(breaker.admit(100 + COOLDOWN).is_some());
}

#[test]
fn one_call_is_the_probe_and_others_are_skipped() {
    let mut breaker = open_at(0);
    let probe = ask(&mut breaker, COOLDOWN);
    assert_eq!(breaker.admit(COOLDOWN), None);
    assert_eq!(breaker.admit(COOLDOWN + LIMIT - 1), None);
    assert_eq!(breaker.ended(probe, Ended::Answered, COOLDOWN + 5), Change::Closed);
    assert!(breaker.admit(COOLDOWN + 5).is_some());
}

#[test]
fn an_answered_probe_asks_for_five_new_failures() {
    let mut breaker = open_at(0);
    assert_eq!(calls(&mut breaker, COOLDOWN, "o"), [Change::Closed]);
    assert_eq!(calls(&mut breaker, COOLDOWN, "xxxx"), [Change::None; 4]);
    assert_eq!(calls(&mut breaker, COOLDOWN, "x"), [Change::Opened]);
}

#[test]
fn a_failed_probe_opens_it_for_another_ten_seconds() {
    let mut breaker = open_at(0);
    let probe = ask(&mut breaker, COOLDOWN + 3);
    assert_eq!(breaker.ended(probe, Ended::Failed, COOLDOWN + 10), Change::Opened);
    assert_eq!(breaker.admit(2 * COOLDOWN + 9), None);
    assert!(breaker.admit(2 * COOLDOWN + 10).is_some());
}

#[test]
fn late_answers_from_before_the_opening_count_for_nothing() {
    for how in [Ended::Answered, Ended::Failed] {
        let mut breaker = Breaker::new(LIMIT);
        let late = [(); 4].map(|()| ask(&mut breaker, 0));
        calls(&mut breaker, 0, "xxxxx");
        // While it is open: neither closes it nor prolongs it.
        assert_eq!(breaker.ended(late[0], how, 5_000_000), Change::None);
        assert_eq!(breaker.admit(COOLDOWN - 1), None);
        // When it is due, but nobody probes yet: does not use up the probe.
        assert_eq!(breaker.ended(late[1], how, COOLDOWN), Change::None);
        let probe = ask(&mut breaker, COOLDOWN);
        // While the probe is out: is not taken for its answer.
        assert_eq!(breaker.ended(late[2], how, COOLDOWN + 1), Change::None);
        assert_eq!(breaker.admit(COOLDOWN + 1), None);
        assert_eq!(breaker.ended(probe, Ended::Answered, COOLDOWN + 2), Change::Closed);
        // When all is well: is no failure of now.
        assert_eq!(calls(&mut breaker, COOLDOWN + 3, "xxxx"), [Change::None; 4]);
        assert_eq!(breaker.ended(late[3], how, COOLDOWN + 3), Change::None);
        assert!(breaker.admit(COOLDOWN + 3).is_some());
    }
}

#[test]
fn a_probe_that_never_returns_is_given_up() {
    let mut breaker = open_at(0);
    let hung = ask(&mut breaker, COOLDOWN);
    // It counts as having failed at its limit.
    let next = COOLDOWN + LIMIT + COOLDOWN;
    assert_eq!(breaker.admit(COOLDOWN + LIMIT), None);
    assert_eq!(breaker.admit(next - 1), None);
    let probe = ask(&mut breaker, next);
    // Its answer comes too late to mean anything.
    assert_eq!(breaker.ended(hung, Ended::Failed, next + 1), Change::None);
    assert_eq!(breaker.admit(next + 1), None);
    assert_eq!(breaker.ended(probe, Ended::Answered, next + 2), Change::Closed);
}

#[test]
fn a_probe_that_returns_after_its_limit_has_failed_at_its_limit() {
    for how in [Ended::Answered, Ended::Failed] {
        let mut breaker = open_at(0);
        let late = ask(&mut breaker, COOLDOWN);
        assert_eq!(breaker.ended(late, how, COOLDOWN + LIMIT + 5), Change::Opened);
        assert_eq!(breaker.admit(2 * COOLDOWN + LIMIT - 1), None);
        assert!(breaker.admit(2 * COOLDOWN + LIMIT).is_some());
    }
}

#[test]
fn a_probe_given_up_long_ago_lets_the_next_call_probe() {
    let mut breaker = open_at(0);
    ask(&mut breaker, COOLDOWN);
    assert!(breaker.admit(10 * COOLDOWN).is_some());
    assert_eq!(breaker.admit(10 * COOLDOWN), None);
}

#[test]
fn the_end_of_time_overflows_nothing() {
    let mut breaker = open_at(Tick::MAX - 1);
    assert_eq!(breaker.admit(Tick::MAX - 1), None);
    let probe = ask(&mut breaker, Tick::MAX);
    assert_eq!(breaker.ended(probe, Ended::Failed, Tick::MAX), Change::Opened);
}

/// What the rules say, from the whole history each time: an oracle that keeps no state.
fn oracle(history: &[Step]) -> Verdict {
    let mut verdict = Verdict { open_until: None, probe: None, failures: 0, began_in: 0 };
    for step in history {
        let given_up = verdict.probe.filter(|(_, limit)| step.now >= *limit);
        if let (Some((_, limit)), Kind::Asked { .. }) = (given_up, step.kind) {
            verdict = Verdict {
                open_until: Some(limit + COOLDOWN),
                probe: None,
                failures: 0,
                began_in: verdict.began_in + 1,
            };
        }
        match step.kind {
            Kind::Asked { call } => {
                if verdict.open_until.is_some_and(|until| step.now >= until) && verdict.probe.is_none() {
                    verdict.probe = Some((call, step.now + LIMIT));
                    verdict.began_in += 1;
                }
            }
            Kind::Ended { call, how, began_in } if began_in == verdict.began_in => {
                let closed = verdict.open_until.is_none();
                let probes = verdict.probe.is_some_and(|(probe, _)| probe == call);
                let in_time = verdict.probe.is_none_or(|(_, limit)| step.now < limit);
                let limit = verdict.probe.map(|(_, limit)| limit);
                if closed && how == Ended::Answered {
                    verdict.failures = 0;
                } else if closed {
                    verdict.failures += 1;
                } else if probes && in_time && how == Ended::Answered {
                    verdict = Verdict { open_until: None, probe: None, failures: 0, began_in: began_in + 1 };
                } else if probes {
                    let from = if in_time { step.now } else { limit.unwrap() };
                    verdict = Verdict {
                        open_until: Some(from + COOLDOWN),
                        probe: None,
                        failures: 0,
                        began_in: began_in + 1,
                    };
                }
                if verdict.failures == 5 {
                    verdict = Verdict {
                        open_until: Some(step.now + COOLDOWN),
                        probe: None,
                        failures: 0,
                        began_in: began_in + 1,
                    };
                }
            }
            Kind::Ended { .. } => {}
        }
    }
    verdict
}

#[derive(Debug, Clone, Copy)]
struct Verdict {
    open_until: Option<Tick>,
    probe: Option<(usize, Tick)>,
    failures: u32,
    /// How many changes there were: answers of calls that began before the last count for nothing.
    began_in: u64,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    now: Tick,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Asked { call: usize },
    Ended { call: usize, how: Ended, began_in: u64 },
}

proptest! {
    /// Random calls that overlap, of which few are answered, against the oracle.
    #[test]
    fn overlapping_calls_are_judged_as_the_rules_say(
        moves in prop::collection::vec((0..8_u8, 0..3_000_000_u64, any::<prop::sample::Index>()), 1..120)
    ) {
        let mut breaker = Breaker::new(LIMIT);
        let mut history: Vec<Step> = Vec::new();
        let mut out: Vec<(usize, Pass, u64)> = Vec::new();
        let mut now = 0;
        for (call, (kind, length, index)) in moves.into_iter().enumerate() {
            if kind >= 4 || out.is_empty() {
                now += if kind == 7 { length } else { length / 100_000 };
                history.push(Step { now, kind: Kind::Asked { call } });
                let verdict = oracle(&history);
                let skipped = verdict.open_until.is_some()
                    && verdict.probe.is_none_or(|(probe, _)| probe != call);
                let pass = breaker.admit(now);
                prop_assert_eq!(pass.is_none(), skipped, "{:?}", history);
                out.extend(pass.map(|pass| (call, pass, verdict.began_in)));
            } else {
                now += length / 50_000;
                let (call, pass, began_in) = out.swap_remove(index.index(out.len()));
                let how = if kind == 0 { Ended::Answered } else { Ended::Failed };
                let before = oracle(&history);
                history.push(Step { now, kind: Kind::Ended { call, how, began_in } });
                let after = oracle(&history);
                let changed = before.began_in != after.began_in;
                let expected = match (changed, after.open_until) {
                    (false, _) => Change::None,
                    (true, Some(_)) => Change::Opened,
                    (true, None) => Change::Closed,
                };
                prop_assert_eq!(breaker.ended(pass, how, now), expected, "{:?}", history);
            }
        }
    }
}
