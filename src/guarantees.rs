#![doc = include_str!("guarantees.md")]
