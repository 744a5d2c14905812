//! Tables of whose turn it is, what a hint holds up and who is refused, and random queues beside a sorted list.

mod held_back;

use super::{Asked, Hint, Next, Queue, Refused, Waiter, Why};
use crate::clock::Tick;
use crate::scheduler::Place;
use proptest::collection::vec;
use proptest::prelude::*;

/// A queue whose waiters have names, and what its last call gave.
struct Bench {
    queue: Queue<&'static str>,
    refused: Vec<Refused<&'static str>>,
}

/// A waiter of cost 1 and no deadline.
const PLAIN: Waiter<&str> = Waiter {
    what: "",
    cost: 1,
    since: 0,
    deadline: None,
    instant: false,
    inside: 0,
    leases: Vec::new(),
    timer: None,
    back_as: None,
};
const MANY: usize = usize::MAX;

impl Bench {
    fn new() -> Bench {
        Bench { queue: Queue::new(), refused: Vec::new() }
    }

    fn with(waiters: impl IntoIterator<Item = Waiter<&'static str>>) -> Bench {
        let mut bench = Bench::new();
        for waiter in waiters {
            bench.join(0, waiter);
        }
        bench
    }

    fn join(&mut self, priority: i32, waiter: Waiter<&'static str>) -> Place {
        let sequence = self.queue.number();
        self.queue.join(priority, sequence, waiter)
    }

    /// Takes the turn if it is to be had: what to do next, and the names asked for.
    fn next(&mut self, now: Tick, free: usize, most: usize) -> (Next, Vec<&'static str>, Asked) {
        let mut places = Vec::new();
        let (next, asked) = self.queue.next(now, free, most, &mut places, &mut self.refused);
        let names = places.iter().map(|&place| self.queue.get_mut(place).unwrap().what).collect();
        (next, names, asked)
    }

    fn asks(&mut self, now: Tick) -> Vec<&'static str> {
        let (next, names, _) = self.next(now, MANY, MANY);
        assert_eq!(next, Next::Ask);
        names
    }

    /// Asks and is refused for the head.
    fn refuse(&mut self, now: Tick, hint: Hint) {
        let (next, _, asked) = self.next(now, MANY, MANY);
        assert_eq!(next, Next::Ask);
        self.queue.answered(asked, Some(hint), &mut self.refused);
    }

    /// Who was refused for good, why, and when to come again.
    fn refused(&mut self) -> Vec<(&'static str, Why, Option<Tick>)> {
        self.refused.drain(..).map(|refused| (refused.waiter.what, refused.why, refused.retry_at)).collect()
    }
}

fn waiter(what: &'static str) -> Waiter<&'static str> {
    Waiter { what, ..PLAIN }
}

fn of_cost(what: &'static str, cost: u32) -> Waiter<&'static str> {
    Waiter { what, cost, ..PLAIN }
}

fn instant(what: &'static str) -> Waiter<&'static str> {
    Waiter { what, instant: true, ..PLAIN }
}

/// A refusal by rule 0.
fn rate(cost: u32, at: Tick) -> Hint {
    Hint { cost, not_before: at, why: Why::Rate(0), rate: Some((0, at)) }
}

fn other(why: Why, until: Tick) -> Hint {
    Hint { cost: 1, not_before: until, why, rate: None }
}

#[test]
fn those_in_front_are_asked_for_by_priority_and_then_in_the_order_of_the_calls() {
    #[track_caller]
    fn check(free: usize, most: usize, expected: &[&str]) {
        let mut bench = Bench::new();
        for (priority, name) in [(0, "a"), (2, "b"), (0, "c"), (2, "d"), (-1, "e"), (i32::MAX, "f")] {
            bench.join(priority, waiter(name));
        }
        let (next, names, _) = bench.next(0, free, most);
        assert_eq!(next, Next::Ask);
        assert_eq!(names, expected);
    }
    check(MANY, MANY, &["f", "b", "d", "a", "c", "e"]);
    check(3, MANY, &["f", "b", "d"]);
    check(MANY, 2, &["f", "b"]);
    check(1, 64, &["f"]);
}

#[test]
fn a_number_taken_early_keeps_its_place() {
    let mut bench = Bench::new();
    let early = bench.queue.number();
    bench.join(0, waiter("late"));
    bench.queue.join(0, early, waiter("early"));
    assert_eq!(bench.asks(0), ["early", "late"]);
}

#[test]
fn one_ask_is_under_way_at_a_time() {
    let mut bench = Bench::with([waiter("a")]);
    let (_, _, asked) = bench.next(0, MANY, MANY);
    assert_eq!(bench.next(0, MANY, MANY).0, Next::Rest);
    assert!(bench.queue.next_direct(1, 0).is_none());
    bench.queue.answered(asked, None, &mut bench.refused);
    assert_eq!(bench.asks(0), ["a"]);
    bench.queue.give_back();
    assert_eq!(bench.asks(0), ["a"]);
}

#[test]
fn nobody_asks_for_nobody_or_without_a_slot() {
    assert_eq!(Bench::new().next(0, MANY, MANY).0, Next::Rest);
    assert_eq!(Bench::with([waiter("a")]).next(0, 0, MANY).0, Next::Rest);
}

#[test]
fn a_call_asks_for_itself_only_if_nobody_waits_and_nobody_asks() {
    let mut bench = Bench::new();
    assert!(bench.queue.is_idle());
    let asked = bench.queue.next_direct(1, 0).unwrap();
    assert!(!bench.queue.is_idle());
    assert!(bench.queue.next_direct(1, 0).is_none());

    let place = bench.join(0, waiter("behind"));
    assert_eq!(bench.next(0, MANY, MANY).0, Next::Rest, "the direct ask has the turn");
    bench.queue.answered(asked, Some(rate(2, 100)), &mut bench.refused);
    assert!(bench.queue.next_direct(1, 0).is_none(), "somebody waits");
    bench.queue.remove(place).unwrap();
    assert!(bench.queue.next_direct(2, 99).is_none(), "the hint holds it up");
    assert!(bench.queue.next_direct(2, 100).is_some());
}

#[test]
fn a_hint_holds_up_only_whom_it_speaks_of() {
    #[track_caller]
    fn check(hint: Hint, cost: u32, now: Tick, expected: Next) {
        let mut bench = Bench::with([of_cost("first", hint.cost)]);
        bench.refuse(0, hint);
        bench.queue.pop().unwrap();
        bench.join(0, of_cost("head", cost));
        assert_eq!(bench.next(now, MANY, MANY).0, expected);
    }
    check(rate(3, 100), 3, 0, Next::Sleep(100));
    check(rate(3, 100), 7, 99, Next::Sleep(100));
    check(rate(3, 100), 3, 100, Next::Ask);
    // A cheaper job may fit where a dearer one did not.
    check(rate(3, 100), 2, 0, Next::Ask);
    for why in [Why::Paused, Why::Slots, Why::Store] {
        check(other(why, 100), 1, 99, Next::Sleep(100));
        check(Hint { cost: 9, ..other(why, 100) }, 1, 99, Next::Sleep(100));
        check(other(why, 100), 1, 100, Next::Ask);
    }
}

#[test]
fn a_slot_that_is_missing_does_not_hide_the_hint() {
    let mut bench = Bench::with([waiter("a")]);
    bench.refuse(0, rate(1, 100));
    assert_eq!(bench.next(0, 0, MANY).0, Next::Sleep(100));
    assert_eq!(bench.next(100, 0, MANY).0, Next::Rest);
}

#[test]
fn an_answer_of_an_older_generation_says_nothing() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Queue<&'static str>), expected: Next) {
        let hopeless = Waiter { deadline: Some(50), ..waiter("hopeless") };
        let mut bench = Bench::with([waiter("head"), hopeless]);
        let (_, _, asked) = bench.next(0, MANY, MANY);
        change(&mut bench.queue);
        bench.queue.answered(asked, Some(rate(1, 100)), &mut bench.refused);
        let ended = usize::from(expected == Next::Sleep(100));
        assert_eq!(bench.refused().len(), ended, "an old hint refuses nobody");
        assert_eq!(bench.next(0, MANY, MANY).0, expected);
    }
    check(|_| (), Next::Sleep(100));
    check(Queue::forget, Next::Ask);
    check(|queue| queue.hold(Why::Paused, 70), Next::Sleep(70));
    // Nobody waited for the store, so its return makes nothing old.
    check(Queue::store_back, Next::Sleep(100));
}

#[test]
fn what_is_known_is_forgotten_when_it_may_have_changed() {
    let mut bench = Bench::with([waiter("a")]);
    bench.refuse(0, rate(1, 100));
    bench.queue.forget();
    assert_eq!(bench.asks(0), ["a"]);
}

#[test]
fn the_return_of_the_store_ends_only_the_wait_for_it() {
    #[track_caller]
    fn check(why: Why, expected: Next) {
        let mut bench = Bench::with([waiter("a")]);
        bench.queue.hold(why, 100);
        bench.queue.store_back();
        assert_eq!(bench.next(0, MANY, MANY).0, expected);
    }
    check(Why::Store, Next::Ask);
    check(Why::Paused, Next::Sleep(100));
}

#[test]
fn a_hold_stops_every_cost_until_its_end() {
    let mut bench = Bench::with([of_cost("cheap", 1)]);
    bench.queue.hold(Why::Paused, 100);
    assert_eq!(bench.queue.paused_until(99), Some(100));
    assert_eq!(bench.next(99, MANY, MANY).0, Next::Sleep(100));
    assert_eq!(bench.queue.paused_until(100), None);
    assert_eq!(bench.asks(100), ["cheap"]);
    bench.queue.hold(Why::Store, 200);
    assert_eq!(bench.queue.paused_until(150), None, "that is no pause");
}

#[test]
fn whom_the_rates_put_beyond_its_deadline_is_refused_early() {
    let mut bench = Bench::new();
    for (name, cost, deadline) in [
        ("head", 2, None),
        ("cheaper", 1, Some(10)),
        ("same cost, too early a deadline", 2, Some(99)),
        ("dearer, too early a deadline", 5, Some(10)),
        ("in time", 2, Some(100)),
        ("for ever", 9, None),
    ] {
        bench.join(0, Waiter { what: name, cost, deadline, ..PLAIN });
    }
    bench.refuse(0, rate(2, 100));
    let mut refused = bench.refused();
    refused.sort_by_key(|(name, ..)| *name);
    let why = (Why::Rate(0), Some(100));
    let expected = ["dearer, too early a deadline", "same cost, too early a deadline"];
    assert_eq!(refused, expected.map(|name| (name, why.0, why.1)));
    assert_eq!(bench.queue.len(), 4);
}

#[test]
fn only_a_rate_refuses_early() {
    #[track_caller]
    fn check(hint: Hint, expected: bool) {
        let mut bench = Bench::with([Waiter { deadline: Some(10), ..waiter("a") }]);
        bench.refuse(0, hint);
        assert_eq!(!bench.refused().is_empty(), expected);
        assert_eq!(bench.queue.too_late(1, Some(10)).is_some(), expected);
    }
    check(rate(1, 11), true);
    check(rate(1, 10), false);
    check(other(Why::Paused, 100), false);
    check(other(Why::Slots, 100), false);
    check(other(Why::Store, 100), false);
    // The pause is longer, but the rate alone is too late as well.
    check(Hint { why: Why::Paused, not_before: 100, ..rate(1, 50) }, true);
    check(Hint { why: Why::Paused, not_before: 100, ..rate(1, 5) }, false);
}

#[test]
fn a_call_that_comes_later_hears_the_same() {
    let mut bench = Bench::with([of_cost("a", 2)]);
    bench.refuse(0, rate(2, 100));
    assert_eq!(bench.queue.too_late(2, Some(99)), Some((0, 100)));
    assert_eq!(bench.queue.too_late(3, Some(99)), Some((0, 100)));
    assert_eq!(bench.queue.too_late(2, Some(100)), None);
    assert_eq!(bench.queue.too_late(1, Some(99)), None);
    assert_eq!(bench.queue.too_late(2, None), None);
}

#[test]
fn whoever_waits_for_nothing_takes_the_next_answer() {
    // It is asked for with the others.
    let mut bench = Bench::with([instant("now"), waiter("later")]);
    assert_eq!(bench.asks(0), ["now", "later"]);
    assert_eq!(bench.refused(), []);

    // No ask is made for it.
    let mut bench = Bench::with([waiter("later"), instant("now")]);
    assert_eq!(bench.next(0, 1, MANY).1, ["later"]);
    assert_eq!(bench.refused(), [("now", Why::Queue, None)]);

    // It is the head, and held up.
    let mut bench = Bench::with([instant("now")]);
    bench.queue.hold(Why::Paused, 100);
    assert_eq!(bench.next(0, MANY, MANY).0, Next::Rest);
    assert_eq!(bench.refused(), [("now", Why::Paused, Some(100))]);

    // It is the head, and no slot is free.
    let mut bench = Bench::with([instant("now"), waiter("later")]);
    assert_eq!(bench.next(0, 0, MANY).0, Next::Rest);
    assert_eq!(bench.refused(), [("now", Why::Local, None)]);
    assert_eq!(bench.queue.len(), 1);
}

#[test]
fn an_instant_head_that_is_refused_makes_way_at_once() {
    let mut bench = Bench::with([Waiter { cost: 5, ..instant("dear") }, of_cost("cheap", 1)]);
    bench.refuse(0, rate(5, 100));
    let (next, names, _) = bench.next(0, MANY, MANY);
    assert_eq!((next, names), (Next::Ask, vec!["cheap"]));
    assert_eq!(bench.refused(), [("dear", Why::Rate(0), Some(100))]);
}

#[test]
fn what_holds_up_the_head_is_known() {
    #[track_caller]
    fn check(hint: Option<Hint>, free: usize, expected: Option<(Why, Option<Tick>)>) {
        let mut bench = Bench::with([waiter("a")]);
        if let Some(hint) = hint {
            bench.refuse(0, hint);
        }
        assert_eq!(bench.queue.head_blocked(50, free), expected);
    }
    check(None, 1, None);
    check(None, 0, Some((Why::Local, None)));
    check(Some(rate(1, 100)), 1, Some((Why::Rate(0), Some(100))));
    check(Some(rate(1, 100)), 0, Some((Why::Rate(0), Some(100))));
    check(Some(rate(2, 100)), 1, None);
    check(Some(rate(1, 50)), 1, None);
    assert_eq!(Bench::new().queue.head_blocked(0, 0), None, "nobody waits");
}

#[test]
fn only_a_higher_priority_would_be_head_of_those_who_wait() {
    let mut bench = Bench::new();
    assert!(bench.queue.would_be_head(i32::MIN));
    bench.join(3, waiter("a"));
    bench.join(7, waiter("b"));
    assert!(!bench.queue.would_be_head(7));
    assert!(bench.queue.would_be_head(8));
}

/// What happens to a random queue.
#[derive(Debug, Clone)]
enum Step {
    Join {
        priority: i32,
        cost: u32,
        deadline: Option<Tick>,
    },
    Leave(usize),
    /// Asks for so many; so many are granted, and the next is told to wait for so long.
    Ask {
        most: usize,
        granted: usize,
        wait: Tick,
    },
    Forget,
    Pass(Tick),
}

fn step() -> impl Strategy<Value = Step> {
    let join = (-2..3_i32, 1..5_u32, proptest::option::of(0..300_u64));
    prop_oneof![
        4 => join.prop_map(|(priority, cost, deadline)| Step::Join { priority, cost, deadline }),
        1 => (0..20_usize).prop_map(Step::Leave),
        3 => (1..8_usize, 0..8_usize, 0..50_u64)
            .prop_map(|(most, granted, wait)| Step::Ask { most, granted, wait }),
        1 => Just(Step::Forget),
        2 => (0..60_u64).prop_map(Step::Pass),
    ]
}

/// One waiter of the list: in the order of serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listed {
    priority: i32,
    sequence: u64,
    cost: u32,
    deadline: Option<Tick>,
    place: Place,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_queue_serves_like_a_sorted_list(steps in vec(step(), 1..200)) {
        let mut queue: Queue<u64> = Queue::new();
        let mut list: Vec<Listed> = Vec::new();
        let (mut now, mut hint) = (0, None::<Hint>);
        for step in steps {
            match step {
                Step::Join { priority, cost, deadline } => {
                    let deadline = deadline.map(|left| now + left);
                    let sequence = queue.number();
                    let waiter = Waiter { what: sequence, cost, since: now, deadline, instant: false, inside: 0, leases: Vec::new(), timer: None, back_as: None };
                    let place = queue.join(priority, sequence, waiter);
                    list.push(Listed { priority, sequence, cost, deadline, place });
                    list.sort_by_key(|listed| (std::cmp::Reverse(listed.priority), listed.sequence));
                }
                Step::Leave(which) if which < list.len() => {
                    let left = list.remove(which);
                    prop_assert_eq!(queue.remove(left.place).unwrap().what, left.sequence);
                    prop_assert!(queue.remove(left.place).is_none());
                }
                Step::Leave(_) => {}
                Step::Forget => {
                    queue.forget();
                    hint = None;
                }
                Step::Pass(ticks) => now += ticks,
                Step::Ask { most, granted, wait } => {
                    let (mut places, mut refused) = (Vec::new(), Vec::new());
                    let (next, asked) = queue.next(now, MANY, most, &mut places, &mut refused);
                    let held = hint.filter(|hint: &Hint| list.first().is_some_and(|head| head.cost >= hint.cost && now < hint.not_before));
                    let expected = match (list.first(), held) {
                        (None, _) => Next::Rest,
                        (Some(_), Some(hint)) => Next::Sleep(hint.not_before),
                        (Some(_), None) => Next::Ask,
                    };
                    prop_assert_eq!(&next, &expected);
                    if next != Next::Ask {
                        continue;
                    }
                    let front: Vec<Listed> = list.iter().take(most).copied().collect();
                    prop_assert_eq!(&places, &front.iter().map(|listed| listed.place).collect::<Vec<_>>());
                    let granted = granted.min(front.len());
                    let answer = front.get(granted).map(|next| rate(next.cost, now + wait));
                    // Whoever starts has met its deadline.
                    for started in &front[..granted] {
                        queue.get_mut(started.place).unwrap().deadline = None;
                    }
                    queue.answered(asked, answer, &mut refused);
                    for started in list.drain(..granted) {
                        queue.remove(started.place).unwrap();
                    }
                    hint = answer.or(hint);
                    if let Some(answer) = answer {
                        let late = |listed: &Listed| listed.cost >= answer.cost && listed.deadline.is_some_and(|deadline| deadline < answer.not_before);
                        let mut expected: Vec<u64> = list.iter().filter(|listed| late(listed)).map(|listed| listed.sequence).collect();
                        let mut ended: Vec<u64> = refused.iter().map(|refused| refused.waiter.what).collect();
                        expected.sort_unstable();
                        ended.sort_unstable();
                        prop_assert_eq!(ended, expected);
                        list.retain(|listed| !late(listed));
                    }
                }
            }
            prop_assert_eq!(queue.len(), list.len());
            prop_assert_eq!(queue.is_idle(), list.is_empty());
        }
    }
}
