//! The cheap monotonic clock: microseconds since a process-wide origin, at half the price of the system's
//! clock.
//!
//! A reading is the processor's counter, scaled. Which counter, and whether to trust it, is for `quanta` to
//! know: where the time stamp counter is not invariant it reads the system's clock instead, and everything
//! here still holds. Only the scale is ours: `quanta` measures once, roughly, and a process that runs for
//! months needs [`refine`]. That one measurement happens in the first call, which takes a millisecond for it,
//! or 200 on a machine too busy to measure.
//!
//! A seqlock (Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?", MSPC 2012) publishes
//! the scale. Readers wait for a writer, some 200 ns once a second: one that went on with the old scale while
//! the new one begins could answer with a later time than the next.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use self::discipline::{Discipline, Line, Reading, Scale};

mod discipline;
#[cfg(test)]
mod tests;

/// Between two corrections. The first ones come earlier, each when the baseline has doubled.
const REFINE_MIN_NS: u64 = 10_000_000;
const REFINE_MAX_NS: u64 = 1_000_000_000;

/// A reader that has spun this often for a writer gives it the processor.
const SPINS: u32 = 100;

static SYSTEM: LazyLock<System> = LazyLock::new(System::start);

thread_local! {
    static LATEST: Cell<u64> = const { Cell::new(0) };
}

/// Microseconds since the first call, whose answer is at least 1.
///
/// Never goes back within a thread, whatever the counter does; between threads it is as good as the counter.
#[inline]
pub(crate) fn now() -> u64 {
    let ticks = reading();
    // A counter can go back: a machine that resumes, or moves to another host.
    LATEST.with(|latest| {
        latest.set(latest.get().max(ticks));
        latest.get()
    })
}

/// The same without the promise: it goes back if the counter does.
#[inline]
pub(crate) fn reading() -> u64 {
    SYSTEM.ticks()
}

/// Corrects the scale, if the last correction is a second ago. For slow paths: it reads the system's clock.
pub(crate) fn refine() {
    SYSTEM.refine();
}

/// Microseconds of the Unix epoch; 0 before it. The system may set it, so it can go back.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

struct System {
    counter: quanta::Clock,
    origin: Instant,
    scale: Published,
    discipline: Mutex<Discipline>,
    /// When the next correction is due, on the system's clock.
    due_ns: AtomicU64,
}

/// A line of its own, because everything that is written beside it would slow the readers.
#[repr(align(128))]
struct Published {
    /// Odd while a writer is at work.
    version: AtomicU64,
    slewed: [AtomicU64; 4],
    settled: [AtomicU64; 4],
}

impl System {
    fn start() -> Self {
        let counter = quanta::Clock::new();
        let origin = system_now();
        let counted = 1 << 40;
        // Nanoseconds for so many counts are 2^-48 ticks for one, times 1,000 / 2^(48 - 40).
        let rate = counter.delta_as_nanos(0, counted).saturating_mul(256) / 1_000;
        let discipline = Discipline::new(tightest_reading(&counter, origin), rate);
        Self {
            scale: Published::new(discipline.scale()),
            counter,
            origin,
            discipline: Mutex::new(discipline),
            due_ns: AtomicU64::new(REFINE_MIN_NS),
        }
    }

    #[inline]
    fn ticks(&self) -> u64 {
        self.scale.read(|| self.counter.raw())
    }

    fn refine(&self) {
        // Not the counter: one that stands would never be found out.
        if nanoseconds(self.origin) < self.due_ns.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut discipline) = self.discipline.try_lock() else { return };
        self.scale.replace(|| {
            let reading = tightest_reading(&self.counter, self.origin);
            let gap = reading.system_ns.clamp(REFINE_MIN_NS, REFINE_MAX_NS);
            self.due_ns.store(reading.system_ns.saturating_add(gap), Ordering::Relaxed);
            discipline.correct(reading)
        });
    }
}

impl Published {
    fn new(scale: Scale) -> Self {
        let Scale { slewed, settled } = scale;
        Self {
            version: AtomicU64::new(0),
            slewed: words(slewed).map(AtomicU64::new),
            settled: words(settled).map(AtomicU64::new),
        }
    }

    #[inline]
    fn read(&self, counter: impl Fn() -> u64) -> u64 {
        let mut spins = 0;
        loop {
            let version = self.version.load(Ordering::Acquire);
            let raw = counter();
            let mut line = line(&self.settled);
            if raw < line.raw {
                line = self.slewed();
            }
            fence(Ordering::Acquire);
            if version % 2 == 0 && self.version.load(Ordering::Relaxed) == version {
                return line.at(raw);
            }
            wait_for_writer(&mut spins);
        }
    }

    /// Seldom, and out of the way: to choose without a jump would make each reading wait for the choice.
    #[cold]
    fn slewed(&self) -> Line {
        line(&self.slewed)
    }

    /// Only under the lock. `scale` reads the clocks inside, while no reader can finish: so the new scale
    /// continues the last answer of the old one.
    fn replace(&self, scale: impl FnOnce() -> Scale) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let Scale { slewed, settled } = scale();
        for (word, value) in
            self.slewed.iter().chain(&self.settled).zip(words(slewed).into_iter().chain(words(settled)))
        {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

#[inline]
fn line(words: &[AtomicU64; 4]) -> Line {
    let [raw, ticks, fraction, rate] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    Line { raw, ticks, fraction, rate }
}

fn words(line: Line) -> [u64; 4] {
    [line.raw, line.ticks, line.fraction, line.rate]
}

#[cold]
fn wait_for_writer(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Both clocks, as close together as three attempts allow: between two reads a thread may lose its processor.
fn tightest_reading(counter: &quanta::Clock, origin: Instant) -> Reading {
    let attempt = || {
        let before = counter.raw();
        let system_ns = nanoseconds(origin);
        let gap = counter.raw().saturating_sub(before);
        (gap, Reading { raw: before.saturating_add(gap / 2), system_ns })
    };
    let (_, reading) =
        [attempt(), attempt(), attempt()].into_iter().min_by_key(|(gap, _)| *gap).unwrap_or_else(attempt);
    reading
}

fn nanoseconds(origin: Instant) -> u64 {
    u64::try_from(system_now().saturating_duration_since(origin).as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
fn system_now() -> Instant {
    Instant::now()
}
