//! The direct path: calls that nobody has to wait for, and calls that are told no.

use crate::rounds::{calibrate, interleave, median, ratio, stopwatch};
use crate::{Aim, Bound, Effort};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use pollster::block_on;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tokio::sync::Semaphore;
use valve::{Rule, Valve, ValveBuilder};

/// A thousand times what one thread can ask for, so that every call is granted.
const PER_SECOND: u32 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const SLOTS: u32 = 8;

/// What its rows are compared in; the first is what the others are measured against.
struct Group {
    title: &'static str,
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    /// Does it so many times.
    repeat: Box<dyn Fn(u64) + Sync>,
}

/// A row and how often it is repeated in a round.
struct Measured<'a> {
    row: &'a Row,
    times: u64,
}

/// What one row came to on so many threads.
struct Figure {
    ns: f64,
    ratio: f64,
}

pub(crate) fn measure(effort: Effort) -> Vec<Aim> {
    let groups = [one_rule(), rule_and_slots(), slots_only(), two_rules(), refused(), nested()];
    let one = on_threads(1, &groups, effort);
    let two = on_threads(2, &groups, effort);
    println!("direct path: ns per call and thread, median of {} rounds; threads not pinned", effort.rounds);
    println!("{:<48}{:>9}{:>8}{:>11}{:>8}", "", "1 thread", "ratio", "2 threads", "ratio");
    for ((group, one), two) in groups.iter().zip(&one).zip(&two) {
        println!("{}", group.title);
        for ((row, one), two) in group.rows.iter().zip(one).zip(two) {
            let name = row.name;
            println!("  {name:<46}{:>9.1}{:>8.2}{:>11.1}{:>8.2}", one.ns, one.ratio, two.ns, two.ratio);
        }
    }
    let [plain, run] = [0, 1].map(|row: usize| one[5][row].ns);
    println!(
        "  on one thread `run`, which sees to nested calls, adds {:.1} ns to the permit; aim <= 5",
        run - plain
    );
    println!();
    let aim = |what: &str, ratio| Aim { what: what.to_owned(), ratio, bound: Bound::AtMost(1.5) };
    vec![
        aim("try_acquire with one rule, 1 thread, to governor's check", one[0][1].ratio),
        aim("try_acquire with one rule, 2 threads, to governor's check", two[0][1].ratio),
        aim("acquire with a rule and a limit, 1 thread, to governor and tokio", one[1][1].ratio),
        aim("acquire with a rule and a limit, 2 threads, to governor and tokio", two[1][1].ratio),
    ]
}

fn one_rule() -> Group {
    let governor = permissive();
    let valve = built(Valve::builder("one rule").rule(generous()));
    Group {
        title: "one rule, granted",
        rows: vec![
            Row::new("governor check", move || granted(&governor)),
            Row::new("valve try_acquire", move || {
                black_box(&valve.try_acquire().expect("the rule admits all"));
            }),
        ],
    }
}

fn rule_and_slots() -> Group {
    let valves =
        [(); 2].map(|()| built(Valve::builder("rule and slots").rule(generous()).concurrency(SLOTS)));
    let limiters = [(); 2].map(|()| permissive());
    let semaphores = [(); 2].map(|()| Semaphore::new(SLOTS as usize));
    let ([acquired, tried], [governor_first, governor_then]) = (valves, limiters);
    let [tokio_tried, tokio_acquired] = semaphores;
    Group {
        title: "one rule and 8 slots, acquire and drop",
        rows: vec![
            Row::new("governor check, tokio try_acquire", move || {
                granted(&governor_first);
                black_box(&tokio_tried.try_acquire().expect("slots are free"));
            }),
            Row::new("valve acquire", move || {
                black_box(&acquired.acquire().expect("the rule admits all"));
            }),
            Row::new("valve try_acquire", move || {
                black_box(&tried.try_acquire().expect("the rule admits all"));
            }),
            Row::new("governor check, tokio acquire in block_on", move || {
                granted(&governor_then);
                black_box(&block_on(tokio_acquired.acquire()).expect("it is open"));
            }),
        ],
    }
}

fn slots_only() -> Group {
    let valve = built(Valve::builder("slots").concurrency(SLOTS));
    let [tried, acquired] = [(); 2].map(|()| Semaphore::new(SLOTS as usize));
    Group {
        title: "8 slots, acquire and drop",
        rows: vec![
            Row::new("tokio try_acquire", move || {
                black_box(&tried.try_acquire().expect("slots are free"));
            }),
            Row::new("valve acquire", move || {
                black_box(&valve.acquire().expect("slots are free"));
            }),
            Row::new("tokio acquire in block_on", move || {
                black_box(&block_on(acquired.acquire()).expect("it is open"));
            }),
        ],
    }
}

/// The peer spends from the first limiter even if the second refuses; a valve does not.
fn two_rules() -> Group {
    let [first, second] = [(); 2].map(|()| permissive());
    let hourly = Rule::fixed_window(u32::MAX, HOUR).named("hourly");
    let valve = built(Valve::builder("two rules").rule(generous()).rule(hourly));
    Group {
        title: "two rules, granted",
        rows: vec![
            Row::new("governor check, twice", move || {
                granted(&first);
                granted(&second);
            }),
            Row::new("valve try_acquire", move || {
                black_box(&valve.try_acquire().expect("the rules admit all"));
            }),
        ],
    }
}

fn refused() -> Group {
    let governor = RateLimiter::direct(Quota::with_period(HOUR).expect("an hour is a period"));
    granted(&governor);
    let valve = built(Valve::builder("refused").rule(Rule::gcra(1, HOUR)));
    drop(valve.try_acquire().expect("the first is free"));
    Group {
        title: "one rule, refused",
        rows: vec![
            Row::new("governor check", move || {
                black_box(&governor.check().expect_err("the budget is spent"));
            }),
            Row::new("valve try_acquire", move || {
                black_box(&valve.try_acquire().expect_err("the budget is spent"));
            }),
        ],
    }
}

fn nested() -> Group {
    let [held, run] = [(); 2].map(|()| built(Valve::builder("slots").concurrency(SLOTS)));
    Group {
        title: "8 slots, with and without the check for nested calls",
        rows: vec![
            Row::new("valve acquire, drop", move || {
                black_box(&held.acquire().expect("slots are free"));
            }),
            Row::new("valve run", move || {
                run.run(|| black_box(())).expect("slots are free");
            }),
        ],
    }
}

fn permissive() -> DefaultDirectRateLimiter {
    let per_second = const { NonZeroU32::new(PER_SECOND).expect("not 0") };
    RateLimiter::direct(Quota::per_second(per_second))
}

fn granted(limiter: &DefaultDirectRateLimiter) {
    black_box(limiter.check()).expect("the quota admits all");
}

fn generous() -> Rule {
    Rule::gcra(PER_SECOND, SECOND).burst(PER_SECOND).into()
}

/// With an id, counted for `stats` and behind `dyn Store`, as every valve is.
fn built(builder: ValveBuilder) -> Valve {
    builder.build().expect("the settings are sound")
}

impl Row {
    fn new(name: &'static str, work: impl Fn() + Sync + 'static) -> Row {
        let repeat = move |times| (0..times).for_each(|_| work());
        Row { name, repeat: Box::new(repeat) }
    }
}

/// For each group the figures of its rows, all measured in the same rounds.
fn on_threads(threads: u32, groups: &[Group], effort: Effort) -> Vec<Vec<Figure>> {
    let long = Duration::from_millis(effort.milliseconds);
    let rows: Vec<Measured<'_>> = groups
        .iter()
        .flat_map(|group| &group.rows)
        .map(|row| Measured { row, times: calibrate(long, |times| time(threads, row, times)) })
        .collect();
    let figures = interleave(effort.rounds, &rows, |measured| {
        time(threads, measured.row, measured.times).as_nanos() as f64 / measured.times as f64
    });
    let mut figures = figures.as_slice();
    let mut answer = Vec::new();
    for group in groups {
        let (own, rest) = figures.split_at(group.rows.len());
        let figure = |row: &Vec<f64>| Figure { ns: median(row), ratio: ratio(row, &own[0]) };
        answer.push(own.iter().map(figure).collect());
        figures = rest;
    }
    answer
}

/// How long a thread takes, on average, while all do the same.
fn time(threads: u32, row: &Row, times: u64) -> Duration {
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
