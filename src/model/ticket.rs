//! A ticket alone.

use crate::clock::Clock;
use crate::error::Error;
use crate::scheduler::{Outcome, Ticket};
use shuttle::thread;
use std::sync::Arc;

/// A grant, another grant and a failure race for one ticket: one wins, and the waiter gets the winner's.
pub(super) fn settled_once() {
    let ticket = Arc::new(Ticket::new(&Clock::System));
    let settlers: Vec<_> = (0..3_usize)
        .map(|settler| {
            let ticket = Arc::clone(&ticket);
            thread::spawn(move || {
                let outcome =
                    if settler == 2 { Outcome::Failed(Error::Cancelled) } else { Outcome::Granted(settler) };
                let won = ticket.settle(outcome);
                if won {
                    ticket.wake();
                }
                won
            })
        })
        .collect();
    let heard = match ticket.wait() {
        Outcome::Granted(settler) => settler,
        Outcome::Failed(_) => 2,
    };
    let won: Vec<usize> = settlers
        .into_iter()
        .enumerate()
        .filter_map(|(settler, thread)| thread.join().unwrap().then_some(settler))
        .collect();
    assert_eq!(won, [heard], "who was told that it won, and whose outcome the waiter got");
}
