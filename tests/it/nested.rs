//! Calls inside jobs of the same valve: which waits are ended because nothing else could, and which need a `max_wait`.

mod circles;
mod pools;
mod random;
mod unseen;
