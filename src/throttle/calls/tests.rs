//! Who is dropped when: each call at its own tenth lost race.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn a_call_is_dropped_at_its_own_tenth_loss() {
    let mut streak = Streak::default();
    assert_eq!(streak.join(), 0);
    for _ in 0..4 {
        assert_eq!(streak.lose(), None);
    }
    assert_eq!((streak.join(), streak.join()), (4, 4));
    for _ in 0..5 {
        assert_eq!(streak.lose(), None);
    }
    assert_eq!(streak.lose(), Some((0, 1)));
    assert_eq!(streak.calls(), 2);
    for _ in 0..3 {
        assert_eq!(streak.lose(), None);
    }
    assert_eq!(streak.lose(), Some((4, 2)));
    assert_eq!(streak.calls(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Some calls, then a loss, again and again, against a list of what each has lost.
    #[test]
    fn every_call_loses_ten_times(joins in vec(0..4_usize, 0..40)) {
        let mut streak = Streak::default();
        let mut lost: Vec<(u64, u32)> = Vec::new();
        for count in joins {
            for _ in 0..count {
                lost.push((streak.join(), 0));
            }
            lost.iter_mut().for_each(|(_, losses)| *losses += 1);
            let out: Vec<u64> = lost.iter().filter(|(_, losses)| *losses == 10).map(|(joined, _)| *joined).collect();
            lost.retain(|(_, losses)| *losses < 10);
            let expected = out.first().map(|joined| (*joined, out.len()));
            prop_assert!(out.iter().all(|joined| Some(joined) == out.first()));
            prop_assert_eq!(streak.lose(), expected);
            prop_assert_eq!(streak.calls(), lost.len());
        }
    }
}
