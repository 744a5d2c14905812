//! Threads on which somebody counts, and who is told while they wait for something else.
//!
//! A pool of so many threads is short of one while that one waits on a ticket; whoever runs the pool can have another take its
//! place.

use std::cell::RefCell;
use std::rc::Rc;

#[cfg(shuttle)]
use shuttle::thread_local;

/// Whoever counts on a thread.
pub(crate) trait Counted {
    /// The thread begins to wait.
    fn leaves(&self);
    /// It goes on.
    fn returns(&self);
    /// Whether nobody could take the place of one more thread that waits.
    fn is_exhausted(&self) -> bool;
}

thread_local! {
    static COUNTED_BY: RefCell<Option<Rc<dyn Counted>>> = const { RefCell::new(None) };
}

/// Who counted on the thread before.
struct Restore(Option<Rc<dyn Counted>>);

impl Drop for Restore {
    fn drop(&mut self) {
        set(self.0.take());
    }
}

/// Runs `work` on a thread that `by` counts on.
pub(crate) fn counted<T>(by: Rc<dyn Counted>, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(set(Some(by)));
    work()
}

/// Runs `work` while nobody is told of waits on this thread: somebody else sees to how long it takes.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(set(None));
    work()
}

fn set(by: Option<Rc<dyn Counted>>) -> Option<Rc<dyn Counted>> {
    // A thread that is ending has no thread-locals any more, and nobody counts on it either.
    COUNTED_BY.try_with(|counted| counted.replace(by)).ok().flatten()
}

/// Whether somebody counts on the calling thread who could not have another take its place.
pub(crate) fn is_indispensable() -> bool {
    COUNTED_BY
        .try_with(|counted| counted.borrow().as_ref().is_some_and(|by| by.is_exhausted()))
        .unwrap_or(false)
}

/// While it lives, the calling thread does not count.
pub(super) struct Away(Option<Rc<dyn Counted>>);

pub(super) fn leave() -> Away {
    let by = COUNTED_BY.try_with(|counted| counted.borrow().clone()).ok().flatten();
    if let Some(by) = &by {
        by.leaves();
    }
    Away(by)
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Some(by) = &self.0 {
            by.returns();
        }
    }
}
