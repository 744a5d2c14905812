//! What a fleet-wide limit promises: who holds a slot, for how long, how its loss is told, and when it comes back.

mod aborts;
mod fencing;
mod loss;
mod polls;
mod releases;
mod renewals;
mod slots;
