//! What a throttle does, told on virtual time: a file for each kind of behaviour, and the seed's timeline to the millisecond.

mod breaker;
mod destroy;
mod engines;
mod failures;
mod input;
mod keys;
mod leases;
mod logging;
mod memory;
mod outcomes;
mod pressed;
mod process;
mod races;
mod runs;
mod scripted;
mod simulation;
mod stage;
mod timeline;
mod timeouts;
mod workers;
