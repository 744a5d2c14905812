//! Rounds in which every variant runs once, so that what disturbs the machine disturbs all of them.

use std::time::{Duration, Instant};

/// The figures of each variant, one a round. The order rotates: each variant is first, and follows the same other, in turn.
pub(crate) fn interleave<V>(rounds: usize, variants: &[V], measure: impl Fn(&V) -> f64) -> Vec<Vec<f64>> {
    let mut figures = vec![Vec::with_capacity(rounds); variants.len()];
    for round in 0..rounds {
        for step in 0..variants.len() {
            let turn = (round + step) % variants.len();
            figures[turn].push(measure(&variants[turn]));
        }
    }
    figures
}

pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median of the rounds' own ratios.
pub(crate) fn ratio(figures: &[f64], base: &[f64]) -> f64 {
    let ratios: Vec<f64> = figures.iter().zip(base).map(|(figure, base)| figure / base).collect();
    median(&ratios)
}

/// How often something must be repeated to last `long`, where `time` says how long so many times take.
pub(crate) fn calibrate(long: Duration, time: impl Fn(u64) -> Duration) -> u64 {
    let mut times = 16;
    loop {
        // The fastest of a few: one that was preempted would make each round, or each job, far too short.
        let took = (0..5).map(|_| time(times)).min().expect("five were timed");
        if took * 4 > long {
            let scaled = u128::from(times) * long.as_nanos() / took.as_nanos();
            return u64::try_from(scaled).expect("not many more than were timed").max(1);
        }
        times *= 2;
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock itself")]
pub(crate) fn stopwatch(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}
