//! The wheel against an ordered map, and its edges.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const CENTURY: u64 = 100 * 366 * 24 * 3600 * 1_000_000;

/// Timers at these ticks, inserted at `now` in this order, expire at the ticks expected, each alone or not.
#[track_caller]
fn check(now: u64, timers: &[u64], expected: &[(u64, &[usize])]) {
    let mut wheel = Wheel::new(now);
    for (index, when) in timers.iter().enumerate() {
        wheel.insert(*when, 0, index);
    }
    for (tick, indices) in expected {
        assert_eq!(wheel.next_expiry(), Some(*tick));
        let mut out = Vec::new();
        if let Some(before) = tick.checked_sub(1).filter(|before| *before >= wheel.now()) {
            assert_eq!(wheel.expire_first(before, &mut out), None, "one tick early");
            assert_eq!((wheel.now(), wheel.next_expiry()), (before, Some(*tick)));
        }
        assert_eq!(wheel.expire_first(u64::MAX, &mut out), Some(*tick));
        assert_eq!(out.iter().map(|expired| expired.value).collect::<Vec<_>>(), *indices);
        assert_eq!(wheel.now(), *tick);
    }
    assert_eq!((wheel.next_expiry(), wheel.len()), (None, 0));
}

#[test]
fn timers_expire_in_the_order_of_their_ticks() {
    check(0, &[], &[]);
    check(0, &[3, 1, 2], &[(1, &[1]), (2, &[2]), (3, &[0])]);
    check(0, &[5, 5, 4, 5], &[(4, &[2]), (5, &[0, 1, 3])]);
}

#[test]
fn a_tick_that_has_passed_is_due_now() {
    check(1_000, &[0, 1_000, 999, 1_001], &[(1_000, &[0, 1, 2]), (1_001, &[3])]);
    check(u64::MAX, &[0, u64::MAX], &[(u64::MAX, &[0, 1])]);
}

#[test]
fn timers_cross_the_borders_of_their_levels() {
    for power in (6..64).step_by(6) {
        let border = 1_u64 << power;
        for now in [0, 1, 63, border / 2, border - 2] {
            let timers = [border + 1, border, border - 1];
            check(now, &timers, &[(border - 1, &[2]), (border, &[1]), (border + 1, &[0])]);
        }
        check(
            border,
            &[2 * border, border + 1, border],
            &[(border, &[2]), (border + 1, &[1]), (2 * border, &[0])],
        );
    }
}

#[test]
fn horizons_of_years_are_exact() {
    check(1, &[CENTURY, CENTURY - 1, 2], &[(2, &[2]), (CENTURY - 1, &[1]), (CENTURY, &[0])]);
    check(0, &[u64::MAX, u64::MAX - 1], &[(u64::MAX - 1, &[1]), (u64::MAX, &[0])]);
    check(CENTURY, &[u64::MAX, CENTURY], &[(CENTURY, &[1]), (u64::MAX, &[0])]);
}

#[test]
fn one_tick_is_sorted_by_order_then_insertion() {
    let mut wheel = Wheel::new(0);
    // Some come from a higher level, some are inserted when that tick is near.
    wheel.insert(5_000, 2, "c");
    wheel.insert(5_000, 1, "a");
    let mut out = Vec::new();
    assert_eq!(wheel.expire_first(4_999, &mut out), None);
    wheel.insert(5_000, 1, "b");
    wheel.insert(5_000, 0, "first");
    wheel.insert(5_000, 2, "d");
    assert_eq!(wheel.expire_first(5_000, &mut out), Some(5_000));
    assert_eq!(out.iter().map(|expired| expired.value).collect::<String>(), "firstabcd");
}

#[test]
fn what_expires_is_appended() {
    let mut wheel = Wheel::new(0);
    wheel.insert(1, 9, "one");
    let two = wheel.insert(2, 0, "two");
    let mut out = Vec::new();
    wheel.expire_first(9, &mut out);
    wheel.expire_first(9, &mut out);
    assert_eq!(out.iter().map(|expired| expired.order).collect::<Vec<_>>(), [9, 0]);
    assert_eq!(out[1], Expired { key: two, order: 0, value: "two" });
}

#[test]
fn a_timer_can_be_cancelled_once_and_not_after_it_expired() {
    let mut wheel = Wheel::new(0);
    let keys: Vec<TimerKey> = (0..3).map(|value| wheel.insert(100, 0, value)).collect();
    assert_eq!((wheel.cancel(keys[1]), wheel.cancel(keys[1])), (Some(1), None));
    let again = wheel.insert(100, 0, 3);
    assert_eq!(wheel.cancel(keys[1]), None, "its slot is another timer's now");
    let mut out = Vec::new();
    wheel.expire_first(100, &mut out);
    assert_eq!(out.iter().map(|expired| expired.value).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!((wheel.cancel(keys[0]), wheel.cancel(again)), (None, None));
}

#[test]
fn the_first_the_last_and_the_only_timer_of_a_slot_can_be_cancelled() {
    for cancelled in [&[0, 1][..], &[1, 2], &[0, 2], &[2, 1, 0], &[0, 1, 2]] {
        let mut wheel = Wheel::new(0);
        let keys: Vec<TimerKey> = (0..3).map(|value| wheel.insert(7_000, 0, value)).collect();
        for index in cancelled {
            wheel.cancel(keys[*index]);
        }
        let left: Vec<usize> = (0..3).filter(|index| !cancelled.contains(index)).collect();
        assert_eq!(wheel.next_expiry(), (!left.is_empty()).then_some(7_000));
        let mut out = Vec::new();
        wheel.expire_first(7_000, &mut out);
        assert_eq!(out.iter().map(|expired| expired.value).collect::<Vec<_>>(), left);
    }
}

#[test]
fn the_bound_left_by_a_cancelled_timer_is_put_right_when_it_is_reached() {
    let mut wheel = Wheel::new(0);
    let earliest = wheel.insert(4_100, 0, "earliest");
    wheel.insert(4_200, 0, "later");
    wheel.cancel(earliest);
    assert_eq!(wheel.next_expiry(), Some(4_100));
    let mut out = Vec::new();
    assert_eq!(wheel.expire_first(4_100, &mut out), None);
    assert_eq!(wheel.next_expiry(), Some(4_200));
}

#[test]
fn now_never_goes_back() {
    let mut wheel: Wheel<()> = Wheel::new(50);
    let mut out = Vec::new();
    assert_eq!((wheel.expire_first(10, &mut out), wheel.now()), (None, 50));
    wheel.insert(20, 0, ());
    assert_eq!((wheel.expire_first(10, &mut out), wheel.now()), (Some(50), 50));
}

#[derive(Clone, Debug)]
enum Step {
    /// After now.
    Insert(u64, u64),
    /// Any tick, so also one that has passed.
    InsertAt(u64),
    /// Of any key there ever was.
    Cancel(prop::sample::Index),
    /// Until so long after now.
    Expire(u64),
    /// Until the bound, or one tick less.
    ExpireAtBound(u64),
}

/// Delays of every magnitude alike, and clusters around the borders of levels.
fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0_u64..200,
        3 => (0_u32..64, any::<u64>()).prop_map(|(bits, random)| random >> bits),
        2 => (0_u32..11, 0_u64..3).prop_map(|(level, above)| (1 << (6 * level)) - 1 + above),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (delay(), 0_u64..3).prop_map(|(delay, order)| Step::Insert(delay, order)),
        1 => delay().prop_map(Step::InsertAt),
        3 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        3 => delay().prop_map(Step::Expire),
        4 => (0_u64..2).prop_map(Step::ExpireAtBound),
    ]
}

#[derive(Default)]
struct Model {
    now: u64,
    /// By tick, order and number.
    timers: BTreeMap<(u64, u64, u64), TimerKey>,
    keys: Vec<TimerKey>,
}

impl Model {
    fn insert(&mut self, wheel: &mut Wheel<u64>, when: u64, order: u64) {
        let number = self.keys.len() as u64;
        let key = wheel.insert(when, order, number);
        self.timers.insert((when.max(self.now), order, number), key);
        self.keys.push(key);
    }

    fn cancel(&mut self, wheel: &mut Wheel<u64>, key: TimerKey) {
        let entry = self.timers.iter().find(|entry| *entry.1 == key).map(|entry| *entry.0);
        assert_eq!(wheel.cancel(key), entry.map(|entry| entry.2));
        entry.map(|entry| self.timers.remove(&entry));
    }

    fn expire(&mut self, wheel: &mut Wheel<u64>, until: u64) {
        let until = until.max(self.now);
        let due = self.timers.keys().next().map(|first| first.0).filter(|tick| *tick <= until);
        self.now = due.unwrap_or(until);
        let mut expected = Vec::new();
        while let Some(first) = self.timers.first_entry().filter(|first| Some(first.key().0) == due) {
            let ((_, order, number), key) = first.remove_entry();
            expected.push(Expired { key, order, value: number });
        }
        let mut out = Vec::new();
        assert_eq!(wheel.expire_first(until, &mut out), due);
        assert_eq!(out, expected);
    }
}

/// Every list is sound, and the occupied slots are those after now on their level.
fn assert_sound(wheel: &Wheel<u64>) {
    let mut found = 0;
    for (level, at_level) in wheel.levels.iter().enumerate() {
        assert_eq!(at_level.occupied != 0, wheel.occupied_levels & (1 << level) != 0);
        for (slot, list) in at_level.slots.iter().enumerate() {
            assert_eq!(at_level.occupied & (1 << slot) != 0, list.head != NONE);
            let (mut index, mut previous) = (list.head, NONE);
            while index != NONE {
                let timer = wheel.timers.linked(index);
                assert_eq!((timer.previous, timer.level), (previous, level));
                assert_eq!((level_of(timer.when, wheel.now), digit(timer.when, level)), (level, slot));
                assert!(wheel.now <= timer.when && list.earliest <= timer.when);
                (previous, index, found) = (index, timer.next, found + 1);
            }
            assert_eq!(list.tail, previous);
        }
    }
    assert_eq!(found, wheel.len());
}

fn run(start: u64, steps: Vec<Step>) {
    let mut wheel = Wheel::new(start);
    let mut model = Model { now: start, ..Model::default() };
    for step in steps {
        let bound = wheel.next_expiry();
        match step {
            Step::Insert(delay, order) => model.insert(&mut wheel, model.now.saturating_add(delay), order),
            Step::InsertAt(when) => model.insert(&mut wheel, when, 0),
            Step::Cancel(_) if model.keys.is_empty() => {}
            Step::Cancel(which) => model.cancel(&mut wheel, *which.get(&model.keys)),
            Step::Expire(delay) => model.expire(&mut wheel, model.now.saturating_add(delay)),
            Step::ExpireAtBound(early) => model.expire(&mut wheel, bound.unwrap_or(0).saturating_sub(early)),
        }
        assert_sound(&wheel);
        assert_eq!((wheel.now(), wheel.len()), (model.now, model.timers.len()));
        let earliest = model.timers.keys().next().map(|first| first.0);
        assert_eq!(wheel.next_expiry().is_some(), earliest.is_some());
        assert!(wheel.next_expiry() <= earliest, "a timer would be late");
    }
    while wheel.len() > 0 {
        model.expire(&mut wheel, u64::MAX);
    }
}

/// Without cancellation the bound is exact at every moment.
fn run_exact(start: u64, delays: &[(u64, u64)]) {
    let mut wheel = Wheel::new(start);
    let mut model = Model { now: start, ..Model::default() };
    for (delay, until) in delays {
        model.insert(&mut wheel, model.now.saturating_add(*delay), 0);
        assert_eq!(wheel.next_expiry(), model.timers.keys().next().map(|first| first.0));
        model.expire(&mut wheel, model.now.saturating_add(*until));
        assert_eq!(wheel.next_expiry(), model.timers.keys().next().map(|first| first.0));
    }
}

proptest! {
    #[test]
    fn the_wheel_agrees_with_an_ordered_map(start in delay(), steps in vec(step(), 1..200)) {
        run(start, steps);
    }

    #[test]
    fn without_cancellation_the_next_expiry_is_exact(
        start in delay(),
        delays in vec((delay(), delay()), 1..100),
    ) {
        run_exact(start, &delays);
    }
}
