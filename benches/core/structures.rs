//! The scheduler's heap and wheel, few and many at a time. A million no longer fit the cache, which is most of the ratio.

use crate::Effort;
use crate::rounds::{median, stopwatch};
use std::hint::black_box;
use std::time::Duration;
use valve::testing::measure::{MeasuredHeap, MeasuredPlace, MeasuredTimer, MeasuredWheel};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// A step changes this part of what is inside, at most [`STEP_MAX`].
const PART: usize = 10;
const STEP_MAX: usize = 10_000;
/// Timers are due within this many ticks: an hour.
const HORIZON: u64 = 3_600_000_000;

trait Structure {
    type Key: Copy;
    fn insert(&mut self, random: u64) -> Self::Key;
    fn cancel(&mut self, key: Self::Key) -> bool;
    /// Takes what comes first, and says how much that was.
    fn pop(&mut self) -> usize;
}

/// What each operation takes, in ns.
struct Costs {
    insert: f64,
    cancel: f64,
    pop: f64,
}

pub(crate) fn measure(effort: Effort) {
    let steps = effort.rounds * 10;
    println!("heap and wheel: ns per operation, median of {steps} steps");
    println!("{:<48}{:>14}{:>14}{:>8}", "", "of 1,000", "of 1,000,000", "ratio");
    print(
        "heap, 8 priorities",
        &costs(MeasuredHeap::new, FEW, steps),
        &costs(MeasuredHeap::new, MANY, steps),
    );
    let wheels = [FEW, MANY].map(|size| costs(MeasuredWheel::new, size, steps));
    print("wheel, an hour ahead", &wheels[0], &wheels[1]);
    println!();
}

fn print(name: &str, few: &Costs, many: &Costs) {
    let operations = [
        ("insert", few.insert, many.insert),
        ("cancel", few.cancel, many.cancel),
        ("pop", few.pop, many.pop),
    ];
    for (operation, few, many) in operations {
        println!("  {:<46}{few:>14.1}{many:>14.1}{:>8.2}", format!("{name}: {operation}"), many / few);
    }
}

fn costs<S: Structure>(new: impl Fn() -> S, size: usize, steps: usize) -> Costs {
    let (insert, cancel) = insert_and_cancel(new(), size, steps);
    Costs { insert, cancel, pop: pop(new(), size, steps) }
}

/// Random ones leave, as many come.
fn insert_and_cancel<S: Structure>(mut structure: S, size: usize, steps: usize) -> (f64, f64) {
    let mut random = Random(size as u64);
    let mut keys: Vec<_> = (0..size).map(|_| structure.insert(random.next())).collect();
    let step = (size / PART).min(STEP_MAX);
    let (mut inserts, mut cancels) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let leaving: Vec<_> = (0..step).map(|_| random.take(&mut keys)).collect();
        let coming: Vec<_> = (0..step).map(|_| random.next()).collect();
        let took = stopwatch(|| leaving.iter().for_each(|key| assert!(structure.cancel(*key))));
        cancels.push(each(took, step));
        let took = stopwatch(|| keys.extend(coming.iter().map(|random| structure.insert(*random))));
        inserts.push(each(took, step));
    }
    (median(&inserts), median(&cancels))
}

/// The first ones leave, as many come.
fn pop<S: Structure>(mut structure: S, size: usize, steps: usize) -> f64 {
    let mut random = Random(size as u64);
    let mut pops = Vec::new();
    let mut inside = 0;
    for _ in 0..steps {
        while inside < size {
            black_box(structure.insert(random.next()));
            inside += 1;
        }
        let step = (size / PART).min(STEP_MAX);
        let took = stopwatch(|| {
            while inside > size - step {
                inside -= structure.pop();
            }
        });
        pops.push(each(took, step));
    }
    median(&pops)
}

fn each(took: Duration, step: usize) -> f64 {
    took.as_nanos() as f64 / step as f64
}

impl Structure for MeasuredHeap {
    type Key = MeasuredPlace;

    fn insert(&mut self, random: u64) -> MeasuredPlace {
        self.insert((random % 8) as i32)
    }

    fn cancel(&mut self, key: MeasuredPlace) -> bool {
        self.cancel(key)
    }

    fn pop(&mut self) -> usize {
        assert!(self.pop());
        1
    }
}

impl Structure for MeasuredWheel {
    type Key = MeasuredTimer;

    fn insert(&mut self, random: u64) -> MeasuredTimer {
        self.insert(random % HORIZON)
    }

    fn cancel(&mut self, key: MeasuredTimer) -> bool {
        self.cancel(key)
    }

    fn pop(&mut self) -> usize {
        self.expire_first()
    }
}

/// The generator SplitMix64, so that every run measures the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn take<T>(&mut self, from: &mut Vec<T>) -> T {
        let place = self.next() % from.len() as u64;
        from.swap_remove(usize::try_from(place).expect("below a length"))
    }
}
