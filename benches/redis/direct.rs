//! A call that nobody holds up, beside the round trip it cannot do without.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, SystemTime};

use r2d2_redis::redis::{Value, cmd};
use valve::testing::measure::BareAdmissions;
use valve::{Redis, Valve};

use crate::rounds::{calibrate, interleave, median, ratio, stopwatch};
use crate::server::{Server, connect};
use crate::{Aim, Effort, Failure, builder, wide};

const SLOTS: u32 = 1_000;
const TTL: Duration = Duration::from_secs(30);
/// How many releases are looked at one by one.
const RELEASES: usize = 200;

enum Variant {
    Bare(RefCell<BareAdmissions>),
    Valve(Valve),
}

const NAMES: [&str; 4] = [
    "rate: the script's bare round trip",
    "rate: acquire and drop",
    "rate and slots: the script's bare round trip",
    "rate and slots: acquire and drop",
];

pub(crate) fn measure(server: &Server, effort: Effort) -> Result<Vec<Aim>, Failure> {
    let redis = Redis::open(server.url())?;
    let bare = |id, slots| -> Result<Variant, Failure> {
        Ok(Variant::Bare(RefCell::new(BareAdmissions::new(&redis, id, [wide()], slots)?)))
    };
    let variants = [
        bare("bare-rate", None)?,
        Variant::Valve(builder(server, "rate")?.rule(wide()).build()?),
        bare("bare-slots", Some((SLOTS, TTL)))?,
        Variant::Valve(builder(server, "slots")?.rule(wide()).global_concurrency(SLOTS, TTL).build()?),
    ];
    // Connected, the script known, and whatever else only the first call needs.
    for variant in &variants {
        variant.call(10);
    }
    let calls = calibrate(effort.length, |times| stopwatch(|| variants[0].call(times)));
    let figures = interleave(effort.rounds, &variants, |variant| {
        stopwatch(|| variant.call(calls)).as_secs_f64() * 1e6 / calls as f64
    });
    let ratios = [ratio(&figures[1], &figures[0]), ratio(&figures[3], &figures[2])];

    println!("direct: one thread, nobody waits, {calls} calls a round");
    println!("{:<48}{:>9}{:>8}", "", "us/call", "ratio");
    for (number, (name, own)) in NAMES.iter().zip(&figures).enumerate() {
        let beside = ratio(own, &figures[number / 2 * 2]);
        println!("  {name:<46}{:>9.1}{beside:>8.3}", median(own));
    }
    let Variant::Valve(slots) = &variants[3] else { unreachable!("it is a valve") };
    let waits = releases(server, slots)?;
    let slowest = waits.iter().copied().fold(0.0, f64::max);
    println!("  a release alone is on the wire after {:.2} ms, at most {slowest:.2} ms\n", median(&waits));
    Ok(vec![
        Aim { what: "acquire to the bare round trip", figure: ratios[0], most: 1.25 },
        Aim { what: "acquire and release to the bare round trip", figure: ratios[1], most: 1.25 },
        Aim { what: "a release alone on the wire, ms", figure: median(&waits), most: 2.0 },
    ])
}

impl Variant {
    fn call(&self, times: u64) {
        match self {
            Variant::Bare(bare) => bare.borrow_mut().run(times).expect("the server answers"),
            Variant::Valve(valve) => {
                for _ in 0..times {
                    drop(valve.acquire().expect("the server answers"));
                }
            }
        }
    }
}

/// How long after a job's end the server got its release, in milliseconds, when no other call took it along.
fn releases(server: &Server, valve: &Valve) -> Result<Vec<f64>, Failure> {
    let mut monitor = connect(server.url())?;
    cmd("MONITOR").query::<()>(&mut monitor)?;
    let mut waits = Vec::new();
    for _ in 0..RELEASES {
        let permit = valve.acquire()?;
        next_script(&mut monitor)?;
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        drop(permit);
        waits.push((next_script(&mut monitor)? - end.as_secs_f64()) * 1e3);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(waits)
}

/// When, by the server's clock, which is this machine's, it was next told to run a script.
fn next_script(monitor: &mut r2d2_redis::redis::Connection) -> Result<f64, Failure> {
    loop {
        let Value::Status(line) = monitor.recv_response()? else {
            return Err("MONITOR shows no line".into());
        };
        if line.contains("\"EVALSHA\"") {
            let time = line.split(' ').next().unwrap_or_default();
            return Ok(time.parse()?);
        }
    }
}
