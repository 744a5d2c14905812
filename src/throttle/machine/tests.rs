//! Each step of a key's machine by table, and random courses of events against what the seed says in plain words.

use super::*;

mod courses;
mod holds;

pub(super) const MS: Tick = 1_000;

pub(super) fn timings(window_ms: u64, sharing: Sharing) -> Timings {
    Timings::new(window_ms * MS, sharing, 1_000 * MS)
}

#[track_caller]
fn check_lengths(window_ms: u64, interval_ms: u64, lease_ms: u64) {
    let timings = timings(window_ms, Sharing::Shared);
    assert_eq!((timings.interval, timings.lease), (interval_ms * MS, lease_ms * MS));
}

#[test]
fn a_lease_lasts_two_intervals_and_at_least_a_window() {
    check_lengths(1, 100, 200);
    check_lengths(50, 100, 200);
    check_lengths(199, 100, 200);
    check_lengths(200, 100, 200);
    check_lengths(300, 150, 300);
    check_lengths(1_000, 500, 1_000);
    check_lengths((1 << 31) - 2, (1 << 30) - 1, (1 << 31) - 2);
}

/// By the wall clock it is 1,000 ms; W is 50 ms and L 200 ms.
#[track_caller]
fn check_retry(stored: Option<Option<&str>>, expected_ms: u64) {
    let timings = timings(50, Sharing::Shared);
    assert_eq!(timings.retry_in(stored, 1_000 * MS), expected_ms * MS, "{stored:?}");
}

#[test]
fn a_lost_race_is_run_again_when_the_other_window_ends() {
    for (stored, expected) in [
        ("1042", 42),
        (" 1042\n", 42),
        ("+1042", 42),
        ("1200", 200),
        // Too soon, past, too far, farther than numbers go.
        ("1003", 10),
        ("1000", 10),
        ("7", 10),
        ("-5", 10),
        ("31536001000", 200),
        ("99999999999999999999999999", 200),
        // Not a whole number: a window from now.
        ("", 50),
        (" ", 50),
        ("x", 50),
        ("-", 50),
        ("12abc", 50),
        ("1e3", 50),
        ("0x10", 50),
        ("1042.5", 50),
        ("Infinity", 50),
    ] {
        check_retry(Some(Some(stored)), expected);
    }
    // The key is gone, and it could not be read.
    check_retry(Some(None), 10);
    check_retry(None, 50);
}

type Plain = Stage<&'static str>;

const WINDOW: Plain = Stage::Window { due: 500, own_until: 400 };
const LOST: Plain = Stage::Lost { due: 500 };
const LEADING: Plain = Stage::Acquiring(Phase::Leading);
const TRAILING: Plain = Stage::Acquiring(Phase::Trailing);
const QUEUED: Plain = Stage::Queued { own_until: 400 };
const RUNNING: Plain = Stage::Running(None);
const CLOSING: Plain = Stage::Closing;

fn holding() -> Plain {
    let mut stage = LEADING;
    stage.run(0, Some(200 * MS), &timings(50, Sharing::Shared));
    stage
}

#[test]
fn only_an_unused_window_that_has_passed_is_idle() {
    for (stage, now, owed, expected) in [
        (WINDOW, 499, Owed::Nothing, false),
        (WINDOW, 500, Owed::Nothing, true),
        (WINDOW, 500, Owed::Run, false),
        (LOST, 500, Owed::Run, false),
        (QUEUED, 500, Owed::Nothing, false),
        (LEADING, 500, Owed::Nothing, false),
        (RUNNING, 500, Owed::Nothing, false),
        (CLOSING, 500, Owed::Nothing, false),
    ] {
        assert_eq!(stage.has_passed(now, owed), expected, "{stage:?} at {now}, owed {owed:?}");
    }
}

/// Active, pending and timers, without and with calls that wait.
#[track_caller]
fn check_tally(stage: &Plain, idle: [usize; 3], owed: [usize; 3]) {
    for (what, [active, pending, timers]) in [(Owed::Nothing, idle), (Owed::Run, owed), (Owed::RunNow, owed)]
    {
        assert_eq!(stage.tally(what), Tally { active, pending, timers }, "{stage:?} owing {what:?}");
    }
}

#[test]
fn each_stage_counts_as_what_it_is() {
    check_tally(&LEADING, [1, 0, 0], [1, 0, 0]);
    check_tally(&TRAILING, [1, 0, 0], [1, 1, 0]);
    check_tally(&RUNNING, [1, 0, 0], [1, 1, 0]);
    check_tally(&holding(), [1, 0, 1], [1, 1, 1]);
    check_tally(&CLOSING, [1, 0, 0], [1, 1, 0]);
    check_tally(&QUEUED, [0, 0, 0], [0, 1, 0]);
    check_tally(&WINDOW, [0, 0, 1], [0, 1, 1]);
    check_tally(&LOST, [0, 0, 1], [0, 1, 1]);
}

#[track_caller]
fn check_due(mut stage: Plain, at: Tick, now: Tick, owed: Owed, due: Due, after: Plain) {
    let timings = timings(50, Sharing::Shared);
    let before = format!("{stage:?} at {at}, now {now}, owing {owed:?}");
    assert_eq!(stage.due(at, now, owed, &timings, |_| Some("new")), due, "{before}");
    assert_eq!(stage, after, "{before}");
}

#[test]
fn a_window_ends_with_the_run_that_is_owed_or_with_the_key() {
    check_due(WINDOW, 500, 500, Owed::Nothing, Due::Forget, WINDOW);
    check_due(WINDOW, 500, 777, Owed::Run, Due::Run, Stage::Queued { own_until: 0 });
    check_due(WINDOW, 500, 500, Owed::RunNow, Due::Run, Stage::Queued { own_until: 0 });
    check_due(LOST, 500, 500, Owed::Run, Due::Run, Stage::Queued { own_until: 0 });
    // Another timer than its own, or one that comes too soon.
    check_due(WINDOW, 499, 500, Owed::Run, Due::Nothing, WINDOW);
    check_due(WINDOW, 500, 499, Owed::Run, Due::Nothing, WINDOW);
    for (stage, same) in [(LEADING, LEADING), (QUEUED, QUEUED), (RUNNING, RUNNING), (CLOSING, CLOSING)] {
        check_due(stage, 500, 500, Owed::Run, Due::Nothing, same);
    }
}

#[test]
fn a_flush_ends_a_window_of_ones_own_and_no_other() {
    for (mut stage, hurried, after) in
        [(WINDOW, true, QUEUED), (LOST, false, LOST), (QUEUED, false, QUEUED), (RUNNING, false, RUNNING)]
    {
        assert_eq!(stage.hurry(), hurried, "{after:?}");
        assert_eq!(stage, after);
    }
}

#[test]
fn a_run_is_taken_up_once() {
    for (mut stage, now, write) in [
        (LEADING, 300, Some(Write::IfAbsent)),
        (QUEUED, 399, Some(Write::Over { until: 400 })),
        (QUEUED, 400, Some(Write::IfAbsent)),
        (Stage::Queued { own_until: 0 }, 0, Some(Write::IfAbsent)),
        (TRAILING, 300, None),
        (RUNNING, 300, None),
        (CLOSING, 300, None),
        (WINDOW, 300, None),
        (LOST, 300, None),
    ] {
        let before = format!("{stage:?} at {now}");
        assert_eq!(stage.begin(now), write, "{before}");
    }
    let mut stage = QUEUED;
    assert!(stage.begin(1).is_some());
    assert_eq!(stage, TRAILING);
    assert_eq!(stage.begin(1), None);
}

#[test]
fn without_an_engine_the_window_is_open_when_the_closure_ends() {
    let timings = timings(50, Sharing::Private);
    for (owed, due) in [(Owed::Nothing, 50_700), (Owed::Run, 50_700), (Owed::RunNow, 700)] {
        let mut stage = LEADING;
        stage.run(100, None, &timings);
        assert_eq!(stage, RUNNING);
        assert_eq!(stage.end(700, owed, &timings), Ended::Open);
        assert_eq!(stage, Stage::Window { due, own_until: 0 });
    }
}

#[test]
fn with_an_engine_the_window_begins_after_the_closing_write() {
    let timings = timings(50, Sharing::Shared);
    for (wrote, own_until) in [(true, 800 + 50 * MS), (false, 0)] {
        let mut stage = holding();
        assert_eq!(stage.end(700, Owed::Nothing, &timings), Ended::Close);
        assert_eq!(stage.close(800), (Write::Over { until: 200 * MS }, None));
        assert_eq!(stage, CLOSING);
        stage.open(800, 950, wrote, Owed::Run, &timings);
        assert_eq!(stage, Stage::Window { due: 950 + 52 * MS, own_until });
    }
}
