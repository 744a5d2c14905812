//! What holds, how it is counted, and what is not promised.
//!
#![doc = include_str!("guarantees.md")]
