//! Hand-off under saturation: many threads want few slots for short jobs.

use crate::rounds::{calibrate, interleave, median, ratio, stopwatch};
use crate::{Aim, Bound, Effort};
use parking_lot::{Condvar, Mutex};
use pollster::block_on;
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::sync::Semaphore;
use valve::Valve;

const THREADS: usize = 64;
const SLOTS: u32 = 4;
const JOB: Duration = Duration::from_micros(20);

/// Runs a job inside a slot.
type Run = Box<dyn Fn(&dyn Fn()) + Sync>;

struct Variant {
    name: &'static str,
    run: Run,
    /// For each round, the jobs of the least served thread for one of the most served.
    fairness: RefCell<Vec<f64>>,
}

pub(crate) fn measure(effort: Effort) -> Aim {
    let spins = calibrate(JOB * 100, |times| stopwatch(|| spin(times))) / 100;
    let job = || spin(spins);
    // A hand-off costs a thread switch, so a round needs more time than a round of the direct path.
    let jobs = effort.milliseconds * 1_000;
    let variants = [tokio(), valve(), barging()];
    let figures = interleave(effort.rounds, &variants, |variant| saturate(variant, jobs, &job));
    println!("hand-off: {THREADS} threads, {SLOTS} slots, jobs of {JOB:?} of work, {jobs} jobs a round");
    println!("{:<48}{:>9}{:>8}{:>19}", "", "jobs/s", "ratio", "least/most served");
    for (variant, own) in variants.iter().zip(&figures) {
        let (per_second, ratio) = (median(own), ratio(own, &figures[0]));
        let fairness = median(&variant.fairness.borrow());
        println!("  {:<46}{per_second:>9.0}{ratio:>8.2}{fairness:>19.2}", variant.name);
    }
    println!();
    let what = "hand-off, jobs a second, to tokio's semaphore".to_owned();
    Aim { what, ratio: ratio(&figures[1], &figures[0]), bound: Bound::AtLeast(1.0) }
}

fn tokio() -> Variant {
    let slots = Semaphore::new(SLOTS as usize);
    Variant::new("tokio acquire in block_on, in order", move |job| {
        let _permit = block_on(slots.acquire()).expect("it is open");
        job();
    })
}

fn valve() -> Variant {
    let valve = Valve::builder("hand-off").concurrency(SLOTS).build().expect("the settings are sound");
    Variant::new("valve run, in order", move |job| valve.run(job).expect("it is open"))
}

/// Whoever runs takes the slot, so it needs few thread switches and starves those that wait.
fn barging() -> Variant {
    let (free, freed) = (Mutex::new(SLOTS), Condvar::new());
    Variant::new("parking_lot mutex and condvar, in no order", move |job| {
        {
            let mut free = free.lock();
            freed.wait_while(&mut free, |free| *free == 0);
            *free -= 1;
        }
        job();
        *free.lock() += 1;
        freed.notify_one();
    })
}

impl Variant {
    fn new(name: &'static str, run: impl Fn(&dyn Fn()) + Sync + 'static) -> Variant {
        Variant { name, run: Box::new(run), fairness: RefCell::default() }
    }
}

/// Jobs a second while all threads take from one count until it is used up.
fn saturate(variant: &Variant, jobs: u64, job: &(impl Fn() + Sync)) -> f64 {
    let (run, taken, barrier) = (&variant.run, AtomicU64::new(0), Barrier::new(THREADS + 1));
    let mut served = Vec::new();
    let mut took = Duration::ZERO;
    thread::scope(|scope| {
        let work = || {
            barrier.wait();
            let mut own = 0.0;
            loop {
                let number = taken.fetch_add(1, Ordering::Relaxed);
                if number >= jobs {
                    return own;
                }
                run(job);
                // At first some threads are not awake yet, which is no fault of whoever hands out slots.
                if number >= jobs / 4 {
                    own += 1.0;
                }
            }
        };
        let running: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        took = stopwatch(|| {
            // Inside, because this thread may be the last to wake.
            barrier.wait();
            served.extend(running.into_iter().map(|thread| thread.join().expect("a job does not panic")));
        });
    });
    let most = served.iter().copied().fold(0.0, f64::max);
    let least = served.iter().copied().fold(f64::INFINITY, f64::min);
    variant.fairness.borrow_mut().push(least / most);
    jobs as f64 / took.as_secs_f64()
}

/// Work and not a wait for the clock: a job that is preempted must not get shorter by it.
fn spin(times: u64) {
    let mut value = times;
    for _ in 0..times {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
