//! Random programs of nested calls. On virtual time each alarm is compared with who waits for whom, and every program must
//! end; on real threads, with a slot more than all who wait can hold, there must be no alarm.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Concurrency, Error, Rule, Valve};

use crate::support::{Random, ms, secs};
use crate::watchdog::watchdog;

/// What one program's threads do, as they see it themselves.
#[derive(Default)]
struct Seen {
    /// For each thread: how many slots its jobs hold, and whether it waits with nothing to end that but a start.
    threads: HashMap<usize, (u64, bool)>,
    limit: u64,
    limit_changed: bool,
    ended: usize,
    alarms: usize,
}

struct Worker {
    number: usize,
    valve: Valve,
    clock: ManualClock,
    random: Random,
    seen: Arc<Mutex<Seen>>,
}

impl Worker {
    fn job(&mut self, depth: u64) {
        let kind = self.random.below(10);
        let lasts = ms(self.random.below(4));
        let (mine, valve) = (self.number, self.valve.clone());
        let plain = kind < 7 || kind == 9;
        self.seen.lock().threads.entry(mine).or_default().1 = plain;
        let ended = {
            let body = |worker: &mut Worker| {
                worker.hold(1, false);
                worker.clock.sleep(lasts);
                if depth > 1 && worker.random.below(3) > 0 {
                    worker.job(depth - 1);
                    worker.clock.sleep(lasts);
                }
                worker.hold(u64::MAX, false);
            };
            match kind {
                0..7 => valve.run(|| body(self)),
                7 | 8 => valve.job().max_wait(ms(5)).run(|_| body(self)),
                _ => valve.acquire().map(|permit| {
                    // A permit is no part of a circle, so its thread waits for nothing meanwhile.
                    self.hold(0, false);
                    self.clock.sleep(lasts);
                    drop(permit);
                }),
            }
        };
        match ended {
            Ok(()) | Err(Error::Timeout { .. }) => {}
            Err(Error::WouldDeadlock) => self.check_alarm(),
            Err(other) => panic!("{other:?}"),
        }
        self.seen.lock().threads.entry(mine).or_default().1 = false;
    }

    fn hold(&self, more: u64, waits: bool) {
        let mut seen = self.seen.lock();
        let (held, waiting) = seen.threads.entry(self.number).or_default();
        *held = held.wrapping_add(more);
        *waiting = waits;
    }

    /// All slots are held by threads that wait, this one included.
    fn check_alarm(&self) {
        let mut seen = self.seen.lock();
        seen.alarms += 1;
        seen.threads.entry(self.number).or_default().1 = true;
        let stuck: u64 = seen.threads.values().filter(|(_, waits)| *waits).map(|(held, _)| held).sum();
        assert!(
            seen.limit_changed || stuck >= seen.limit,
            "a false alarm: {stuck} of {}; {:?} {:?}",
            seen.limit,
            seen.threads,
            self.valve.stats()
        );
    }
}

/// Runs the program of this seed to its end; the alarms that were given.
fn run(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let clock = ManualClock::new();
    let (threads, limit) = (random.below(4) as usize + 1, random.below(4) + 1);
    let global = random.below(2) == 1;
    let limit_to = |limit: u64| match global {
        true => Concurrency::unlimited().global(limit as u32, secs(3)),
        false => Concurrency::unlimited().local(limit as u32),
    };
    let builder = Valve::builder("id").clock(&clock);
    let builder = if random.below(3) == 0 { builder.rule(Rule::gcra(1, ms(1)).burst(3)) } else { builder };
    let valve = builder.build().unwrap();
    valve.set_concurrency(limit_to(limit)).unwrap();
    let seen = Arc::new(Mutex::new(Seen { limit, ..Seen::default() }));
    for number in 0..threads {
        let mut worker = Worker {
            number,
            valve: valve.clone(),
            clock: clock.clone(),
            random: Random::new(seed * 100 + number as u64),
            seen: Arc::clone(&seen),
        };
        clock.spawn("worker", move || {
            for _ in 0..4 {
                worker.job(3);
            }
            worker.seen.lock().ended += 1;
        });
    }
    for _ in 0..random.below(3) {
        clock.advance(ms(random.below(20)));
        seen.lock().limit_changed = true;
        valve.set_concurrency(limit_to(random.below(4) + 1)).unwrap();
    }
    clock.advance(secs(60));
    let seen = seen.lock();
    assert_eq!(seen.ended, threads, "a circle that nobody saw; {:?}", seen.threads);
    assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
    seen.alarms
}

/// Seeds that failed once.
const KNOWN: [u64; 0] = [];

#[test]
fn every_program_ends_and_no_alarm_is_false() {
    let mut alarms = 0;
    for seed in KNOWN.into_iter().chain(0..600) {
        let result = std::panic::catch_unwind(|| run(seed));
        alarms += result.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    assert!(alarms > 300, "only {alarms} circles in all programs");
}

/// Each of five threads holds at most two slots while it waits for a third: of eleven, one is always in use or free.
#[test]
fn with_a_slot_to_spare_there_is_no_alarm() {
    let _hangs = watchdog(20);
    const THREADS: u32 = 5;
    for global in [false, true] {
        let builder = Valve::builder("id");
        let limit = THREADS * 2 + 1;
        let builder =
            if global { builder.global_concurrency(limit, secs(3)) } else { builder.concurrency(limit) };
        let valve = builder.build().unwrap();
        thread::scope(|scope| {
            for thread in 0..u64::from(THREADS) {
                let valve = &valve;
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for _ in 0..3_000 {
                        nest(valve, random.below(3), &mut random);
                    }
                });
            }
            // A permit takes a slot away now and then, and the limit changes above that bound.
            for round in 0..500 {
                let permit = valve.acquire().unwrap();
                let limit = limit + round % 3;
                let limits = Concurrency::unlimited();
                let limits = if global { limits.global(limit, secs(3)) } else { limits.local(limit) };
                valve.set_concurrency(limits).unwrap();
                drop(permit);
            }
        });
        assert_eq!((valve.stats().running, valve.stats().queued), (0, 0));
    }
}

fn nest(valve: &Valve, deeper: u64, random: &mut Random) {
    let spin = random.below(200);
    valve
        .run(|| {
            (0..spin).for_each(|_| std::hint::spin_loop());
            if deeper > 0 {
                nest(valve, deeper - 1, random);
            }
        })
        .unwrap();
}
