//! Switches for planted faults: each breaks one promise in one place, so that a test can be seen to catch it.
//!
//! Only a build with `--cfg planted` has them; anywhere else [`fault`] is the constant `false` and the compiler removes the fault.

#[cfg(planted)]
pub(crate) use on::fault;

/// Whether the fault of this name was chosen, with the environment variable `VALVE_FAULT`.
#[cfg(not(planted))]
#[inline(always)]
pub(crate) const fn fault(_name: &str) -> bool {
    false
}

#[cfg(planted)]
mod on {
    use std::sync::LazyLock;

    static FROM_ENVIRONMENT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("VALVE_FAULT").ok());
    static CHOSEN: parking_lot::RwLock<Option<&'static str>> = parking_lot::RwLock::new(None);

    pub(crate) fn fault(name: &str) -> bool {
        FROM_ENVIRONMENT.as_deref() == Some(name) || *CHOSEN.read() == Some(name)
    }

    /// Plants `name` until the guard goes: for the model checks, which try many faults in one process.
    #[cfg(all(test, shuttle))]
    pub(crate) fn plant(name: &'static str) -> Planted {
        *CHOSEN.write() = Some(name);
        Planted(std::cell::RefCell::new(()))
    }

    #[cfg(all(test, shuttle))]
    pub(crate) struct Planted(
        #[expect(dead_code, reason = "keeps the guard on its thread")] std::cell::RefCell<()>,
    );

    #[cfg(all(test, shuttle))]
    impl Drop for Planted {
        fn drop(&mut self) {
            *CHOSEN.write() = None;
        }
    }
}
#[cfg(all(test, planted, shuttle))]
pub(crate) use on::plant;
