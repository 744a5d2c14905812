//! Counts jobs that run without contention: each thread writes counters of its own, and who wants the sum reads them all.
//!
//! Threads have small numbers, process-wide and given back when they end. A number names a line in every valve, so between
//! two owners of a number the line is handed over too. A job may end on another thread than it started on: only the sums
//! mean something.

use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

#[cfg(all(test, not(shuttle)))]
mod tests;

/// So many threads at once have a number.
const NUMBERS: usize = 32;
/// The number of a thread that has none yet, and of one that is ending.
const UNKNOWN: usize = NUMBERS;
const GONE: usize = NUMBERS + 1;

/// The numbers that threads have, a bit for each.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Without a destructor, so that it can be read until the thread is gone.
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: Owned = const { Owned(Cell::new(None)) };
}

/// Gives the thread's number back when the thread ends.
struct Owned(Cell<Option<usize>>);

impl Drop for Owned {
    fn drop(&mut self) {
        NUMBER.set(GONE);
        if let Some(number) = self.0.get() {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

/// The calling thread's number; `NUMBERS` or more if it has none.
#[inline]
fn number() -> usize {
    let number = NUMBER.get();
    if number == UNKNOWN { claim() } else { number }
}

/// All may be taken. Then the thread tries again next time: others end.
#[cold]
fn claim() -> usize {
    let free = |taken: u32| (taken != u32::MAX).then(|| taken | (taken + 1));
    // Acquire: what the number's last owner wrote into its lines is seen by the next.
    let Ok(before) = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) else { return UNKNOWN };
    let number = before.trailing_ones() as usize;
    if OWNED.try_with(|owned| owned.0.set(Some(number))).is_err() {
        TAKEN.fetch_and(!(1 << number), Ordering::Release);
        return GONE;
    }
    NUMBER.set(number);
    number
}

/// The counters of one valve, made when the first job needs them.
#[derive(Default)]
pub(super) struct Stripes {
    lines: OnceLock<Box<Lines>>,
}

#[derive(Default)]
struct Lines {
    owned: [Line; NUMBERS],
    /// For the ends of jobs on threads without a number.
    shared: Line,
}

/// Two cache lines, because some processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    started: AtomicU64,
    ended: AtomicU64,
}

/// A job that was counted as started.
pub(super) struct Begun<'a> {
    line: &'a Line,
}

impl Stripes {
    /// Counts a job as started; `None` if the calling thread has no counters.
    #[inline]
    pub(super) fn begin(&self) -> Option<Begun<'_>> {
        let line = self.lines().owned.get(number())?;
        line.started.store(line.started.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(Begun { line })
    }

    /// Counts a job as ended that was counted as started, perhaps by another thread.
    #[inline]
    pub(super) fn end(&self) {
        let lines = self.lines();
        match lines.owned.get(number()) {
            Some(line) => line.ended.store(line.ended.load(Ordering::Relaxed) + 1, Ordering::Release),
            None => drop(lines.shared.ended.fetch_add(1, Ordering::Release)),
        }
    }

    /// Whether any job was ever counted here.
    pub(super) fn are_used(&self) -> bool {
        self.lines.get().is_some()
    }

    /// How many run.
    pub(super) fn running(&self) -> u64 {
        self.figures().0
    }

    /// How many run, and how many have ended.
    ///
    /// The ends are read first, and each brings its start with it. So a job that ends meanwhile still counts as running, and
    /// never does one that runs count as ended. If nobody can start, no running is the truth.
    pub(super) fn figures(&self) -> (u64, u64) {
        let Some(lines) = self.lines.get() else { return (0, 0) };
        let all = || lines.owned.iter().chain([&lines.shared]);
        let ended: u64 = all().map(|line| line.ended.load(Ordering::Acquire)).sum();
        let started: u64 = all().map(|line| line.started.load(Ordering::Relaxed)).sum();
        (started - ended, ended)
    }

    #[inline]
    fn lines(&self) -> &Lines {
        self.lines.get_or_init(Box::default)
    }
}

impl Begun<'_> {
    /// It did not start after all.
    #[inline]
    pub(super) fn withdraw(self) {
        let started = &self.line.started;
        started.store(started.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}
