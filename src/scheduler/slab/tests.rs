//! Keys that go stale, and memory that is given back.

use super::*;

#[test]
fn a_key_is_stale_once_its_value_left_even_when_the_slot_is_used_again() {
    let mut slab = Slab::new();
    let old = slab.insert("old");
    assert_eq!(slab.remove(old), Some("old"));
    assert_eq!(slab.get(old), None);
    assert_eq!(slab.remove(old), None);

    let new = slab.insert("new");
    assert_eq!(new.index(), old.index());
    assert_eq!(slab.get(old), None);
    assert_eq!(slab.get_mut(old), None);
    assert_eq!(slab.remove(old), None);
    assert_eq!((slab.get(new), slab.len()), (Some(&"new"), 1));
}

#[test]
fn a_key_stays_stale_after_its_slot_was_given_back() {
    let mut slab = Slab::new();
    let old: Vec<Key> = (0..1_000).map(|value| slab.insert(value)).collect();
    for key in &old {
        slab.remove(*key);
    }
    assert!(slab.slots.len() <= KEPT);
    for value in 0..1_000 {
        slab.insert(value);
    }
    assert!(old.iter().all(|key| slab.get(*key).is_none()));
}

#[test]
fn a_key_survives_as_one_word() {
    let mut slab = Slab::new();
    slab.insert("first");
    let key = slab.insert("second");
    assert_eq!(slab.get(Key::from_bits(key.to_bits())), Some(&"second"));
    let extreme = Key { index: NONE - 1, generation: u32::MAX };
    assert_eq!(Key::from_bits(extreme.to_bits()), extreme);
}

/// What is kept of 100,000 slots once the values with these indices have left.
#[track_caller]
fn check_kept(leaving: impl Iterator<Item = usize>, kept: std::ops::RangeInclusive<usize>) {
    let mut slab = Slab::new();
    let keys: Vec<Key> = (0..100_000).map(|value: u32| slab.insert(value)).collect();
    for index in leaving {
        assert!(slab.remove(keys[index]).is_some());
    }
    assert!(kept.contains(&slab.slots.capacity()), "{} slots kept", slab.slots.capacity());
    for (key, value) in slab.iter() {
        assert_eq!(keys[*value as usize], key);
    }
    // The free list still leads to every vacant slot, and to no other.
    for _ in slab.len()..slab.slots.len() {
        slab.insert(0);
    }
    assert_eq!((slab.free, slab.len()), (NONE, slab.slots.len()));
}

#[test]
fn memory_follows_the_number_of_values_down() {
    check_kept(0..100_000, 0..=2 * KEPT);
    check_kept((0..100_000).rev(), 0..=2 * KEPT);
    check_kept((20..100_000).rev(), 0..=50_000);
    check_kept(0..50_000, 100_000..=200_000);
    // Indices are stable, so one value at the far end keeps the slots in front of it.
    check_kept(0..99_999, 100_000..=200_000);
}

#[test]
fn after_a_trim_the_slots_in_front_are_used_first() {
    let mut slab = Slab::new();
    let keys: Vec<Key> = (0..1_000).map(|value| slab.insert(value)).collect();
    for key in keys.iter().rev().skip(1).take(900) {
        slab.remove(*key);
    }
    slab.trim();
    assert_eq!(slab.insert(0).index(), 99);
    assert_eq!(slab.insert(0).index(), 100);
}
