//! The course of a call, from its numbers and the faults in force.

use super::course::{Course, Draw, Faults, course};
use crate::store::Remote;

const LEFT: u64 = 100;
const TIMEOUT: u64 = 500;

/// The courses of many calls of one seed.
fn courses(set: impl Fn(&mut Faults)) -> Vec<(Course, Option<u64>)> {
    let mut faults = Faults::none(Remote::default());
    set(&mut faults);
    (0..1_000).map(|number| course(&mut Draw::new(7, number), &faults, LEFT, TIMEOUT)).collect()
}

/// With these faults, every call takes such a course.
#[track_caller]
fn check(set: impl Fn(&mut Faults), such: impl Fn(&Course) -> bool) {
    for (number, (course, _)) in courses(set).iter().enumerate() {
        assert!(such(course), "call {number}: {course:?}");
    }
}

fn count(set: impl Fn(&mut Faults), such: impl Fn(&Course) -> bool) -> usize {
    courses(set).iter().filter(|(course, _)| such(course)).count()
}

#[test]
fn without_faults_a_call_is_executed_and_answered_at_once() {
    check(|_| {}, |course| *course == Course::Answered { at: 0, back: 0 });
}

#[test]
fn a_thousand_per_mille_is_always() {
    check(|faults| faults.errors = 1_000, |course| *course == Course::Refused { at: 0 });
    check(|faults| faults.lost_replies = 1_000, |course| *course == Course::Lost { at: 0, until: LEFT });
    check(
        |faults| faults.late = 1_000,
        |course| matches!(course, Course::Late { until: LEFT, at } if (LEFT..=2 * LEFT).contains(at)),
    );
    check(|faults| faults.down = true, |course| *course == Course::Refused { at: 0 });
    let doubled = courses(|faults| faults.doubled_releases = 1_000);
    assert!(doubled.iter().all(|(_, again)| again.is_some_and(|again| again <= TIMEOUT)));
}

#[test]
fn per_mille_is_out_of_a_thousand() {
    let refused = count(|faults| faults.errors = 250, |course| matches!(course, Course::Refused { .. }));
    assert!((200..300).contains(&refused), "{refused}");
    let lost = count(|faults| faults.lost_replies = 250, |course| matches!(course, Course::Lost { .. }));
    assert!((200..300).contains(&lost), "{lost}");
}

#[test]
fn each_way_takes_its_time_and_the_deadline_ends_both() {
    let short = |faults: &mut Faults| faults.delay = 20;
    check(
        short,
        |course| matches!(course, Course::Answered { at, back } if *at <= 20 && (*at..=at + 20).contains(back)),
    );
    let mut times: Vec<_> = courses(short).iter().map(|(course, _)| format!("{course:?}")).collect();
    times.sort_unstable();
    times.dedup();
    assert!(times.len() > 300, "{} different courses of 441", times.len());

    let long = |faults: &mut Faults| faults.delay = 200;
    check(long, |course| match *course {
        Course::Answered { back, .. } => back < LEFT,
        Course::Lost { at, until } => at < LEFT && until == LEFT,
        Course::Late { until, at } => until == LEFT && at >= LEFT,
        Course::Refused { .. } => false,
    });
    assert!(count(long, |course| matches!(course, Course::Late { .. })) > 400);
    assert!(count(long, |course| matches!(course, Course::Lost { .. })) > 100);
}

#[test]
fn one_fault_more_leaves_the_luck_of_other_calls_alone() {
    let few = courses(|faults| faults.lost_replies = 100);
    let both = courses(|faults| (faults.lost_replies, faults.errors) = (100, 100));
    for (few, both) in few.iter().zip(&both) {
        assert!(few == both || matches!(both.0, Course::Refused { .. }), "{few:?} {both:?}");
    }
}

#[test]
fn seeds_and_numbers_differ() {
    let draws = |seed| (0..100).map(|number| Draw::new(seed, number).up_to(u64::MAX - 1)).collect::<Vec<_>>();
    let mut all = [draws(0), draws(1), draws(2)].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 300);
    assert_eq!(draws(1), draws(1));
}
