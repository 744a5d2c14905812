//! The integration tests: what a caller sees, the lists of cases, and the shape of the repository.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test that panics has failed, which is what is meant; its figures are small"
)]

mod cases;
mod chaos;
#[cfg(feature = "ureq")]
mod client;
mod concurrency;
mod contract;
mod docs;
mod engine_contract;
mod feedback;
mod fleet;
mod grants;
mod hooked;
mod leases;
mod live;
mod nested;
mod notices;
mod observe;
mod order;
mod pauses;
mod peers;
mod protocol;
mod rates;
#[cfg(feature = "redis")]
mod redis;
mod repository;
mod retries;
mod simulation;
mod stripes;
mod support;
mod throttle;
mod tidy;
mod timing;
mod trouble;
mod watchdog;
