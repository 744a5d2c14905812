//! Faults that users of other shared limiters reported, each as a small input with the right value.

mod counting;
mod keys;
mod slots;
