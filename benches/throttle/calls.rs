//! Calls that are left to a later run, and calls that run at once because their key is new.

use crate::rounds::{calibrate, interleave, median, ratio, stopwatch};
use crate::{Aim, Effort, Failure, Throttle, builder, keys};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use valve::{MemoryEngine, Ran, ThrottleWindowBuilder};

/// So many are used in turn, where it is not always one.
const MANY: usize = 1_024;
/// Of one throttle: its tables grow up to that.
const FRESH: usize = 4_000;

/// What a call carries to its run.
const CARRIED: &str = "what changed in this room";

/// One way to make a call, and how often it is repeated in a round.
struct Row {
    name: &'static str,
    repeat: Box<dyn Fn(u64) + Sync>,
}

pub(crate) fn coalesced(effort: Effort) -> Result<Vec<Aim>, Failure> {
    let rows = [alone(), map(), one_key()?, many_keys()?];
    let columns = [1, 2].map(|threads| on_threads(threads, &rows, effort));
    println!("coalesced: ns per call and thread, median of {} rounds", effort.rounds);
    println!("{:<48}{:>9}{:>8}{:>11}{:>8}", "", "1 thread", "ratio", "2 threads", "ratio");
    for (number, row) in rows.iter().enumerate() {
        print!("  {:<46}", row.name);
        for (column, width) in columns.iter().zip([9, 11]) {
            let own = &column[number];
            print!("{:>width$.1}{:>8.2}", median(own), ratio(own, &column[0]));
        }
        println!();
    }
    println!();
    let [one, _] = &columns;
    Ok(vec![
        Aim { what: "a coalesced exec, one thread, one key, ns", figure: median(&one[2]), most: 80.0 },
        Aim {
            what: "likewise, without its closure, ns",
            figure: median(&one[2]) - median(&one[0]),
            most: 80.0,
        },
    ])
}

/// What every row does beside its own: the closure takes a string along, and is boxed and dropped.
fn alone() -> Row {
    Row::new("the closure alone: made, boxed, dropped", || {
        let carried = black_box(CARRIED).to_owned();
        let work: Box<dyn FnOnce() -> u64 + Send> = Box::new(move || carried.len() as u64);
        drop(black_box(work));
    })
}

/// What one would write by hand, without any run yet.
fn map() -> Row {
    type Work = Box<dyn FnOnce() -> u64 + Send>;
    let newest: Mutex<HashMap<String, Work>> = Mutex::default();
    let key = keys(1).remove(0);
    newest.lock().insert(key.clone(), Box::new(|| 0));
    Row::new("a map of the newest closures under a lock", move || {
        let carried = black_box(CARRIED).to_owned();
        let work: Work = Box::new(move || carried.len() as u64);
        let mut newest = newest.lock();
        let place = newest.get_mut(black_box(&*key)).expect("it was added");
        let replaced = std::mem::replace(place, work);
        drop(newest);
        drop(replaced);
    })
}

fn one_key() -> Result<Row, Failure> {
    let throttle = builder().build()?;
    let key = keys(1).remove(0);
    open(&throttle, &key)?;
    Ok(Row::new("exec, one key", move || coalesce(&throttle, &key)))
}

fn many_keys() -> Result<Row, Failure> {
    let throttle = builder().build()?;
    let keys = keys(MANY);
    keys.iter().try_for_each(|key| open(&throttle, key))?;
    let repeat = move |times| {
        for (_, key) in (0..times).zip(keys.iter().cycle()) {
            coalesce(&throttle, key);
        }
    };
    Ok(Row { name: "exec, 1,024 keys in turn", repeat: Box::new(repeat) })
}

/// Makes the key's window begin, and a call wait for its end.
fn open(throttle: &Throttle, key: &str) -> Result<(), Failure> {
    for expected in [Ran::Now, Ran::Later] {
        assert_eq!(throttle.job(key, |_run| Ok(0)).exec()?, expected);
    }
    Ok(())
}

fn coalesce(throttle: &Throttle, key: &str) {
    let carried = black_box(CARRIED).to_owned();
    let ran = throttle.job(key, move |_run| Ok(carried.len() as u64)).exec();
    assert!(matches!(ran, Ok(Ran::Later)), "its window is open");
}

impl Row {
    fn new(name: &'static str, work: impl Fn() + Sync + 'static) -> Row {
        Row { name, repeat: Box::new(move |times| (0..times).for_each(|_| work())) }
    }
}

/// The nanoseconds of each row, one a round.
fn on_threads(threads: u32, rows: &[Row], effort: Effort) -> Vec<Vec<f64>> {
    let calibrated: Vec<(&Row, u64)> = rows
        .iter()
        .map(|row| (row, calibrate(effort.length, |times| together(threads, row, times))))
        .collect();
    interleave(effort.rounds, &calibrated, |(row, times)| {
        together(threads, row, *times).as_nanos() as f64 / *times as f64
    })
}

/// How long a thread takes, on average, while all do the same.
fn together(threads: u32, row: &Row, times: u64) -> Duration {
    let barrier = Barrier::new(threads as usize);
    thread::scope(|scope| {
        let work = || {
            barrier.wait();
            stopwatch(|| (row.repeat)(times))
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("a row does not panic")).sum::<Duration>()
    }) / threads
}

/// How the throttle of a row is made, anew for each round.
type Made = fn() -> ThrottleWindowBuilder<u64, String>;

pub(crate) fn leading(effort: Effort) -> Result<Aim, Failure> {
    let keys = keys(FRESH);
    let rows: [(&str, Made); 3] = [
        ("exec, windows of its own", builder),
        ("exec, an engine in memory for several", || builder().engine(MemoryEngine::new())),
        ("exec, windows of 1 ms that end meanwhile", || builder().window(Duration::from_millis(1))),
    ];
    let failure = RefCell::new(None);
    let figures = interleave(effort.rounds, &rows, |(_, made)| {
        lead_all(*made, &keys).unwrap_or_else(|error| {
            *failure.borrow_mut() = Some(error);
            f64::NAN
        })
    });
    if let Some(failure) = failure.into_inner() {
        return Err(failure);
    }
    println!("leading: us per run of a new key, one of {FRESH}, median of {} rounds", effort.rounds);
    println!("{:<48}{:>9}{:>8}", "", "us", "ratio");
    for ((name, _), own) in rows.iter().zip(&figures) {
        println!("  {name:<46}{:>9.2}{:>8.2}", median(own), ratio(own, &figures[0]));
    }
    println!();
    Ok(Aim { what: "a leading run, us", figure: median(&figures[0]), most: 1.5 })
}

/// Microseconds that a run takes.
fn lead_all(made: Made, keys: &[String]) -> Result<f64, Failure> {
    let throttle = made().build()?;
    let mut all = Ok(());
    let took = stopwatch(|| {
        all = keys.iter().try_for_each(|key| {
            let carried = black_box(CARRIED).to_owned();
            throttle.job(key, move |_run| Ok(carried.len() as u64)).exec().map(|ran| {
                assert_eq!(ran, Ran::Now, "the key is new");
            })
        });
    });
    all?;
    Ok(took.as_secs_f64() * 1e6 / keys.len() as f64)
}
