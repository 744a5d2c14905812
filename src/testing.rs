//! For tests, ours and yours: a clock that moves only when told to, a store that fails when told to, and the contracts that every
//! store and every engine must keep.

mod chaos;
mod contract;
mod engine_contract;
mod manual_clock;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod measure;

pub use chaos::ChaosStore;
pub use contract::store_contract;
pub use engine_contract::engine_contract;
pub use manual_clock::ManualClock;
