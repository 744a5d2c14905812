//! For tests, ours and yours: a clock that moves only when told to, and the contract every store must keep.

mod contract;
mod manual_clock;

pub use contract::store_contract;
pub use manual_clock::ManualClock;
