//! What must hold of any course, told from its events alone.

use super::{Course, Ending, Event, Given, Happened, Mood, Plan, Waits};

/// A run, and where its events are.
#[derive(Debug, Clone, Copy)]
struct Ran {
    instance: u32,
    key: u32,
    /// Whose closure it was.
    call: u32,
    began: u64,
    ended: u64,
    place: usize,
    leading: bool,
    covered: usize,
}

/// Everything that is wrong.
pub(super) fn judge(plan: &Plan, course: &Course) -> Vec<String> {
    let runs = runs(course);
    let mut wrong = Vec::new();
    apart(plan, &runs, &mut wrong);
    covered(plan, course, &runs, &mut wrong);
    closures_are_the_newest(course, &runs, &mut wrong);
    nothing_is_left(plan, course, &mut wrong);
    wrong
}

fn runs(course: &Course) -> Vec<Ran> {
    let mut runs = Vec::new();
    for (place, event) in course.events.iter().enumerate() {
        let Happened::Began { leading, covered } = event.what else { continue };
        let ended = course.events[place..]
            .iter()
            .find(|other| other.call == event.call && other.what == Happened::Ended)
            .map_or(u64::MAX, |other| other.at);
        let Event { at, instance, key, call, .. } = *event;
        runs.push(Ran { instance, key, call, began: at, ended, place, leading, covered });
    }
    runs
}

/// Runs of one key never overlap, and each begins a window after the one before ended: among all instances while their engine
/// answers, else of each instance.
fn apart(plan: &Plan, runs: &[Ran], wrong: &mut Vec<String>) {
    let shared = matches!(plan.mood, Mood::Calm | Mood::Slow);
    let flushed = |run: &Ran| matches!(plan.ending, Ending::Flush(_)) && run.instance == 0;
    for (index, run) in runs.iter().enumerate() {
        let before = runs[..index].iter().rev().filter(|other| other.key == run.key);
        for other in before.filter(|other| shared || other.instance == run.instance) {
            let window = if flushed(run) && other.instance == run.instance { 0 } else { plan.window * 1_000 };
            if other.ended > run.began || run.began - other.ended < window {
                wrong.push(format!("{run:?} is too near {other:?}"));
            }
        }
    }
}

/// Every call is covered by the first run of its key, in its instance, that began after it; who waits gets what that gave.
fn covered(plan: &Plan, course: &Course, runs: &[Ran], wrong: &mut Vec<String>) {
    let end = course.events.iter().position(|event| event.what == Happened::Destroyed);
    let (mut uncovered, mut covers) = (0, vec![0; runs.len()]);
    for (place, event) in course.events.iter().enumerate() {
        if event.what != Happened::Called {
            continue;
        }
        let given = course.events.iter().find_map(|other| match other.what {
            Happened::Given(given) if other.call == event.call => Some((other.at, given)),
            _ => None,
        });
        let Some((at, given)) = given else {
            wrong.push(format!("{event:?} never ended"));
            continue;
        };
        if matches!(given, Given::Dropped) {
            uncovered += 1;
            continue;
        }
        let is_its = |run: &&Ran| run.key == event.key && run.instance == event.instance && run.place > place;
        let Some(run) = runs.iter().position(|run| is_its(&run)) else {
            if event.instance == 0 && end.is_some() {
                let late = end.is_some_and(|end| end < place);
                let told =
                    given == Given::Destroyed || (!late && matches!(given, Given::Later | Given::Timeout));
                if !told {
                    wrong.push(format!("{event:?} was destroyed and gave {given:?}"));
                }
            } else {
                uncovered += 1;
            }
            continue;
        };
        covers[run] += 1;
        let run = &runs[run];
        let call = plan.calls[event.call as usize];
        if !fits(plan, run, call, given) {
            wrong.push(format!("{event:?}, covered by {run:?}, gave {given:?}"));
        }
        let due = match (given, call.waits) {
            (Given::Timeout, Waits::For(timeout)) => Some(event.at + timeout * 1_000),
            (Given::Value(_) | Given::Error(_) | Given::Panicked, Waits::For(_)) => Some(run.ended),
            _ => None,
        };
        if due.is_some_and(|due| due != at) {
            wrong.push(format!("{event:?}, covered by {run:?}, gave {given:?} at {at} and not at {due:?}"));
        }
    }
    // A call of `exec` that was dropped learned nothing, and later calls may have had a run.
    let Course { dropped, destroyed, .. } = *course;
    let sum = runs.iter().map(|run| run.covered as u64).sum::<u64>() + dropped + destroyed;
    if uncovered > dropped || sum != plan.calls.len() as u64 {
        wrong.push(format!(
            "{uncovered} calls are not covered, {dropped} were dropped, in all there are {sum}"
        ));
    }
    for (run, covers) in runs.iter().zip(covers) {
        if run.covered != covers && dropped == 0 {
            wrong.push(format!("{run:?} covers {covers} calls"));
        }
    }
}

/// What a call that this run covers may give.
fn fits(plan: &Plan, run: &Ran, call: super::Call, given: Given) -> bool {
    let own = run.call == call.number;
    let closure = plan.calls[run.call as usize].end;
    match (call.waits, given) {
        (Waits::No, Given::Later) => true,
        (Waits::No, Given::Now) => run.leading && closure == super::End::Good,
        (Waits::For(_), Given::Timeout) => true,
        (Waits::No | Waits::ForEver, Given::Unwound) => run.leading && own && closure == super::End::Panics,
        (_, Given::Value(value)) => {
            value == run.call && closure == super::End::Good && call.waits != Waits::No
        }
        (_, Given::Error(error)) => error == run.call && closure == super::End::Fails,
        (_, Given::Panicked) => closure == super::End::Panics,
        _ => false,
    }
}

/// A run executes the closure of the call that came last before it.
fn closures_are_the_newest(course: &Course, runs: &[Ran], wrong: &mut Vec<String>) {
    for run in runs {
        let of_key = |event: &&Event| {
            event.what == Happened::Called && event.key == run.key && event.instance == run.instance
        };
        let newest = course.events[..run.place].iter().rev().find(of_key);
        if newest.is_none_or(|newest| newest.call != run.call) {
            wrong.push(format!("{run:?} is not of the newest call: {newest:?}"));
        }
    }
}

fn nothing_is_left(plan: &Plan, course: &Course, wrong: &mut Vec<String>) {
    // The engine's sweep goes on while it holds keys that nobody reads.
    let timers = usize::from(plan.mood != Mood::Private);
    if course.left > 0 || course.timers > timers {
        wrong.push(format!("{} keys and {} timers are left", course.left, course.timers));
    }
}
