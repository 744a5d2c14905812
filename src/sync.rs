//! The synchronisation primitives of this crate: `parking_lot` and std, or shuttle's under `--cfg shuttle`.
//!
//! Everything that waits or races uses these, so that the model checker sees every step. Only what cannot matter to a
//! schedule (the fork flag, start-up) may use std directly.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
#[cfg(not(shuttle))]
pub(crate) use std::thread::{ThreadId, current as current_thread};

#[cfg(shuttle)]
pub(crate) use model::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
#[cfg(shuttle)]
pub(crate) use shuttle::thread::{ThreadId, current as current_thread};

/// Starts a named thread, or says why the system refused it. Never panics, unlike `thread::spawn`.
pub(crate) fn spawn(
    name: &str,
    stack_size: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    #[cfg(not(shuttle))]
    {
        let mut builder = std::thread::Builder::new().name(name.to_owned());
        if let Some(bytes) = stack_size {
            builder = builder.stack_size(bytes);
        }
        builder.spawn(body).map(drop)
    }
    #[cfg(shuttle)]
    {
        let _ = (name, stack_size);
        drop(shuttle::thread::spawn(body));
        Ok(())
    }
}

/// shuttle's mutex and condvar in the shape of `parking_lot`'s.
#[cfg(shuttle)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_deref().expect("only empty inside a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect("only empty inside a wait")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) const fn new() -> Condvar {
            Condvar(shuttle::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("only empty inside a wait");
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner()));
        }

        /// Model checkers never let a wait time out: whoever relies on that has a lost wake-up to be found.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _at_most: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
