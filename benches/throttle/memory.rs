//! A million keys: what they occupy, how fast they are let go, and what is left when their windows have passed.

use crate::counting::{live, start, stop};
use crate::rounds::{median, stopwatch};
use crate::{Aim, Effort, Failure, Throttle, builder, keys};
use std::thread;
use std::time::{Duration, Instant};
use valve::{MemoryEngine, Ran};

/// A million keys are not made and let go as often as a call.
const ROUNDS: usize = 5;
const SOON: Duration = Duration::from_millis(500);
/// How long the last windows may take to pass.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(effort: Effort) -> Result<Vec<Aim>, Failure> {
    let keys = keys(effort.keys);
    let bytes = [occupied(&keys, Waiting::Nothing)?, occupied(&keys, Waiting::OneCall)?];
    let mut destroyed = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (waiting, took) in [Waiting::Nothing, Waiting::OneCall].into_iter().zip(&mut destroyed) {
            took.push(destroy(&keys, waiting)?);
        }
    }
    let destroyed = destroyed.map(|took| median(&took));
    println!("{} keys of 16 bytes; bytes as malloc rounds them", keys.len());
    println!("{:<48}{:>9}{:>14}", "", "bytes/key", "destroyed, ms");
    for (number, name) in ["an idle window", "a window and a call that waits"].into_iter().enumerate() {
        println!("  {name:<46}{:>9.0}{:>14.1}", bytes[number], destroyed[number]);
    }
    let own = left(&keys, |throttle| throttle)?;
    let shared = left(&keys, |throttle| throttle.engine(swept()))?;
    println!(
        "  once the windows have passed, {own} bytes are left, and {shared} with an engine for several\n"
    );
    Ok(vec![
        Aim { what: "bytes per key in an idle window", figure: bytes[0], most: 300.0 },
        Aim { what: "destroy, idle windows, ms", figure: destroyed[0], most: 300.0 },
        Aim { what: "destroy, a call waits in each window, ms", figure: destroyed[1], most: 300.0 },
        Aim { what: "bytes left when the windows have passed", figure: own as f64, most: 1_024.0 },
        Aim { what: "likewise, with an engine for several", figure: shared as f64, most: 1_024.0 },
    ])
}

/// What waits for the end of each window.
#[derive(Clone, Copy)]
enum Waiting {
    Nothing,
    OneCall,
}

fn fill(throttle: &Throttle, keys: &[String], waiting: Waiting) -> Result<(), Failure> {
    for key in keys {
        assert_eq!(throttle.job(key, |_run| Ok(0)).exec()?, Ran::Now, "the key is new");
        if let Waiting::OneCall = waiting {
            let carried = key.clone();
            let ran = throttle.job(key, move |_run| Ok(carried.len() as u64)).exec()?;
            assert_eq!(ran, Ran::Later, "its window is open");
        }
    }
    Ok(())
}

/// Bytes per key.
fn occupied(keys: &[String], waiting: Waiting) -> Result<f64, Failure> {
    let throttle = builder().build()?;
    start();
    let before = live();
    fill(&throttle, keys, waiting)?;
    let bytes = live() - before;
    stop();
    Ok(bytes as f64 / keys.len() as f64)
}

/// Milliseconds until `destroy` returns.
fn destroy(keys: &[String], waiting: Waiting) -> Result<f64, Failure> {
    let throttle = builder().build()?;
    fill(&throttle, keys, waiting)?;
    let took = stopwatch(|| throttle.destroy());
    assert_eq!(throttle.stats().keys, 0, "none outlives destroy");
    Ok(took.as_secs_f64() * 1e3)
}

/// Forgets what has expired soon after.
fn swept() -> MemoryEngine {
    MemoryEngine::builder().sweep_interval(SOON).build().expect("the interval is sound")
}

/// Bytes that are left of the keys once all is quiet.
fn left(
    keys: &[String],
    with: impl Fn(valve::ThrottleWindowBuilder<u64, String>) -> valve::ThrottleWindowBuilder<u64, String>,
) -> Result<isize, Failure> {
    start();
    let throttle = with(Throttle::builder("bench:").window(SOON)).build()?;
    // Threads, and the scheduler's lists, which grow to as many timers as there ever were at once.
    fill(&throttle, keys, Waiting::OneCall)?;
    quiet(&throttle)?;
    let before = live();
    fill(&throttle, keys, Waiting::OneCall)?;
    quiet(&throttle)?;
    let bytes = live() - before;
    stop();
    Ok(bytes)
}

/// Waits until the windows have passed, and the sweeps after them.
fn quiet(throttle: &Throttle) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let stats = throttle.stats();
        if stats.keys + stats.timers + stats.pending + stats.active == 0 {
            thread::sleep(SOON * 4);
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("after {PATIENCE:?} there are still {stats:?}").into());
        }
        thread::sleep(SOON / 10);
    }
}
