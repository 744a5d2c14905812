//! Keys: readable, apart for different ids, and on one node for one id.

use super::Keys;
use std::collections::HashSet;

#[track_caller]
fn check(prefix: &str, id: &str, state: &str) {
    let keys = Keys::new(prefix, id);
    assert_eq!(String::from_utf8(keys.state).unwrap(), state);
    assert_eq!(String::from_utf8(keys.leases).unwrap(), format!("{state}:l"));
}

#[test]
fn keys_are_the_id_in_braces() {
    check("valve:", "github", "valve:{github}");
    check("", "a b\n", "{a b\n}");
    check("x", "日本", "x{日本}");
    check("valve:", "a{b}c%d", "valve:{a%7Bb%7Dc%25d}");
    check("valve:", "", "valve:{%}");
}

const IDS: [&str; 14] =
    ["", "%", "%25", "a", "a}", "a}:l", "a%7D", "a%7D:l", "{", "}", "{}", "a:l", "%7B%7D", "a\0"];

#[test]
fn different_ids_share_no_key() {
    let keys: HashSet<Vec<u8>> =
        IDS.iter().map(|id| Keys::new("p:", id)).flat_map(|keys| [keys.state, keys.leases]).collect();
    assert_eq!(keys.len(), 2 * IDS.len());
}

/// The part of a key that a cluster goes by: between the first `{` and the next `}`, unless that is empty.
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    match key[open + 1..].iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(length) => &key[open + 1..open + 1 + length],
    }
}

#[test]
fn both_keys_of_an_id_are_on_one_node() {
    for id in IDS {
        let keys = Keys::new("p:", id);
        assert_eq!(tag(&keys.state), tag(&keys.leases), "{id:?}");
    }
}
