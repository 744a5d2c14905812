//! The heap against a sorted list, and its edges.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Pushed with these priorities in this order, entries leave in the order of these indices.
#[track_caller]
fn check(priorities: &[i32], expected: &[usize]) {
    let mut heap = Heap::new();
    for (sequence, priority) in (0..).zip(priorities) {
        heap.push(*priority, sequence, sequence);
    }
    let mut ahead = Vec::new();
    heap.first(priorities.len(), &mut ahead);
    let ahead: Vec<u64> = ahead.into_iter().filter_map(|place| heap.get_mut(place).copied()).collect();
    let left: Vec<u64> = std::iter::from_fn(|| heap.pop()).collect();

    let expected: Vec<u64> = expected.iter().map(|index| *index as u64).collect();
    assert_eq!((ahead, left), (expected.clone(), expected));
    assert!(heap.is_empty());
}

#[test]
fn higher_priority_comes_first() {
    check(&[0, 0, 9], &[2, 0, 1]);
    check(&[-1, 0, 1], &[2, 1, 0]);
    check(&[i32::MIN, i32::MAX, 0, i32::MAX, i32::MIN], &[1, 3, 2, 0, 4]);
}

#[test]
fn equal_priorities_keep_the_order_of_their_numbers() {
    check(&[], &[]);
    check(&[7; 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_lower_number_pushed_later_comes_first() {
    let mut heap = Heap::new();
    heap.push(0, 5, "five");
    let place = heap.push(0, 3, "three");
    assert_eq!(heap.peek(), Some((place, &"three")));
    assert_eq!(heap.key(place), Some((0, 3)));
    heap.push(0, u64::MAX, "last");
    heap.push(0, 0, "zero");
    assert_eq!(
        [heap.pop(), heap.pop(), heap.pop(), heap.pop()],
        [Some("zero"), Some("three"), Some("five"), Some("last")]
    );
}

#[test]
fn a_stale_place_names_nothing() {
    let mut heap = Heap::new();
    let place = heap.push(1, 1, "gone");
    let bits = place.to_bits();
    assert_eq!(heap.remove(Place::from_bits(bits)), Some("gone"));
    heap.push(1, 2, "in the same slot");
    assert_eq!(heap.key(place), None);
    assert_eq!(heap.get_mut(place), None);
    assert_eq!((heap.remove(place), heap.len()), (None, 1));
}

#[test]
fn the_first_n_are_appended_and_stay() {
    let mut heap = Heap::new();
    let places: Vec<Place> = (0..20).map(|sequence| heap.push(0, sequence, ())).collect();
    let mut out = Vec::new();
    heap.first(0, &mut out);
    assert_eq!(out, []);
    heap.first(2, &mut out);
    heap.first(1, &mut out);
    assert_eq!(out, [places[0], places[1], places[0]]);
    out.clear();
    heap.first(usize::MAX, &mut out);
    assert_eq!(out, places);
    assert_eq!(heap.len(), 20);
}

#[test]
fn what_is_set_aside_has_a_place_and_no_rank() {
    let mut heap = Heap::new();
    let (first, aside) = (heap.push(0, 5, "first"), heap.set_aside("aside"));
    let gone = heap.set_aside("gone");
    assert!(heap.is_aside(aside) && !heap.is_aside(first));
    assert_eq!((heap.len(), heap.key(aside), heap.get_mut(aside)), (1, None, Some(&mut "aside")));
    assert_eq!(heap.iter().map(|(_, value)| *value).collect::<Vec<_>>(), ["first"]);
    assert_eq!(heap.aside().map(|(_, value)| *value).collect::<Vec<_>>(), ["aside", "gone"]);
    let mut out = Vec::new();
    heap.first(9, &mut out);
    assert_eq!(out, [first]);

    assert_eq!((heap.remove(gone), heap.remove(gone), heap.is_aside(gone)), (Some("gone"), None, false));
    heap.rank(gone, 9, 9);
    heap.rank(first, -9, 9);
    assert_eq!((heap.len(), heap.key(first)), (1, Some((0, 5))));

    heap.rank(aside, 0, 4);
    assert_eq!((heap.len(), heap.key(aside), heap.is_aside(aside)), (2, Some((0, 4)), false));
    assert_eq!(heap.peek(), Some((aside, &"aside")));
    assert_eq!((heap.remove(aside), heap.pop(), heap.is_empty()), (Some("aside"), Some("first"), true));
}

#[test]
fn memory_shrinks_when_a_crowd_has_left() {
    let mut heap = Heap::new();
    for sequence in 0..100_000 {
        heap.push(0, sequence, ());
    }
    for _ in 0..90_000 {
        heap.pop();
    }
    assert!((10_000..=50_000).contains(&heap.nodes.capacity()), "{}", heap.nodes.capacity());
    while heap.pop().is_some() {}
    assert!(heap.nodes.capacity() <= KEPT);
    assert_eq!(heap.entries.len(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Push(i32),
    Pop,
    /// Of any place there ever was.
    Remove(prop::sample::Index),
    Change(prop::sample::Index),
    First(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (-2..3).prop_map(Step::Push),
        1 => any::<i32>().prop_map(Step::Push),
        2 => Just(Step::Pop),
        3 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => any::<prop::sample::Index>().prop_map(Step::Change),
        1 => (0_usize..70).prop_map(Step::First),
    ]
}

/// What waits, in order: negated priority (wide, so that it can be), number, place, value.
type Model = Vec<(i64, u64, u64, u64)>;

fn take(model: &mut Model, place: Place) -> Option<u64> {
    let at = model.iter().position(|entry| entry.2 == place.to_bits())?;
    Some(model.remove(at).3)
}

fn apply(step: Step, sequence: u64, heap: &mut Heap<u64>, model: &mut Model, places: &mut Vec<Place>) {
    match step {
        Step::Push(priority) => {
            let place = heap.push(priority, sequence, sequence);
            places.push(place);
            model.push((-i64::from(priority), sequence, place.to_bits(), sequence));
            model.sort_unstable();
        }
        Step::Pop => {
            let first = (!model.is_empty()).then(|| model.remove(0).3);
            assert_eq!(heap.pop(), first);
        }
        Step::Remove(_) | Step::Change(_) if places.is_empty() => {}
        Step::Remove(which) => {
            let place = *which.get(places);
            assert_eq!(heap.remove(place), take(model, place));
        }
        Step::Change(which) => {
            let place = *which.get(places);
            let entry = model.iter_mut().find(|entry| entry.2 == place.to_bits());
            assert_eq!(heap.get_mut(place).copied(), entry.as_ref().map(|entry| entry.3));
            assert_eq!(heap.key(place).map(|key| key.1), entry.as_ref().map(|entry| entry.1));
            if let (Some(value), Some(entry)) = (heap.get_mut(place), entry) {
                *value += 1_000_000;
                entry.3 += 1_000_000;
            }
        }
        Step::First(n) => {
            let mut out = Vec::new();
            heap.first(n, &mut out);
            let bits: Vec<u64> = out.iter().map(|place| place.to_bits()).collect();
            assert_eq!(bits, model.iter().take(n).map(|entry| entry.2).collect::<Vec<_>>());
        }
    }
}

proptest! {
    #[test]
    fn the_heap_agrees_with_a_sorted_list(steps in vec(step(), 1..300)) {
        let (mut heap, mut model, mut places) = (Heap::new(), Model::new(), Vec::new());
        for (sequence, step) in (0..).zip(steps) {
            apply(step, sequence, &mut heap, &mut model, &mut places);
            prop_assert_eq!(heap.len(), model.len());
            let first = heap.peek().map(|(place, value)| (place.to_bits(), *value));
            prop_assert_eq!(first, model.first().map(|entry| (entry.2, entry.3)));
        }
        let mut inside: Vec<(u64, u64)> = heap.iter().map(|(place, value)| (place.to_bits(), *value)).collect();
        let mut expected: Vec<(u64, u64)> = model.iter().map(|entry| (entry.2, entry.3)).collect();
        inside.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(inside, expected);
    }
}
