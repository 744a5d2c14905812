//! The figures of a throttle: [`ThrottleStats`].

/// What goes on in a throttle, and what went on. Counted as it happens, so reading it costs the same at any number of keys.
///
/// The first four are 0 once the throttle is idle, and from [`destroy`](crate::ThrottleWindow::destroy) on. Each key is read at
/// one instant, but not all keys at the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThrottleStats {
    /// Keys that are being run, those that still wait for the valve in front or for the engine included.
    pub active: usize,
    /// Keys, not calls, for which a trailing run is owed.
    pub pending: usize,
    /// Keys held in memory: active, waiting for a worker, or inside a window.
    pub keys: usize,
    /// Timers: one for each open window or retry, and one for each lease of a run on a shared engine. Deadlines of waiting
    /// calls are not among them.
    pub timers: usize,
    /// Calls that a running throttle took, whatever became of them.
    pub calls: u64,
    /// Calls that were left to a later run: those whose `exec` gave [`Ran::Later`](crate::Ran::Later), and waiting ones.
    pub coalesced: u64,
    /// Runs on an idle key.
    pub leading: u64,
    /// Runs at the end of a window.
    pub trailing: u64,
    /// Runs that gave an error or panicked. Trailing ones that nobody waited for show only here and in the log.
    pub failed: u64,
    /// Races for a window that were lost to other instances.
    pub races_lost: u64,
    /// Calls given up after ten lost races.
    pub dropped: u64,
    /// Calls that the valve in front, or a thread that could not be had, kept from running.
    pub refused: u64,
    /// Calls that `destroy` kept from running.
    pub destroyed: u64,
}
