//! Names of leases, up to the last of them and beyond.

use super::Names;
use crate::store::Token;
use crate::sync::AtomicU64;
use std::collections::HashSet;

#[test]
fn names_go_on_past_the_end_of_their_count() {
    let names = Names { process: 7, next: AtomicU64::new(u64::MAX - 1) };
    let given: Vec<_> = (0..4).map(|_| names.next()).collect();
    assert_eq!(given.iter().collect::<HashSet<_>>().len(), 4);
    assert!(given.iter().all(|Token(token)| token >> 64 == 7), "a name of another process: {given:?}");
}

#[test]
fn processes_share_no_names() {
    let (one, two) = (Names::new().unwrap(), Names::new().unwrap());
    let both = (0..1_000).flat_map(|_| [one.next(), two.next()]);
    assert_eq!(both.collect::<HashSet<_>>().len(), 2_000);
}
