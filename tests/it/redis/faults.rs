//! What goes wrong with a server or on the way to it, and the right outcome of each.

mod forks;
mod lost_state;
mod network;
mod notices;
mod owners;
mod refusals;
mod replies;
mod rights;
mod server_clock;
mod stalls;
mod trouble;
