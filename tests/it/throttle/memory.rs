//! Keys are remembered no longer than their windows: of a hundred thousand nothing is left but what one needs as well.

mod counting;

use valve::{MemoryEngine, Ran};

use self::counting::live;
use super::stage::{Builder, Stage, Throttle, check_stats};
use crate::support::ms;
use crate::trouble::alone::alone;

const WINDOW: u64 = 100;
const MANY: usize = 100_000;
/// Enough that every part of a throttle has had a key, and every worker a run.
const FEW: usize = 1_000;
const LEFT_MAX: isize = 1_024;

/// What comes of each key.
#[derive(Clone, Copy)]
enum Calls {
    /// One that runs at once.
    Leading,
    /// Another one that is left to the end of the window.
    Both,
}

/// Makes these calls for so many keys; waits until their windows have passed, and a sweep of the engine after them.
fn come_and_go(stage: &Stage, throttle: &Throttle, calls: Calls, keys: usize) {
    make(throttle, calls, keys);
    stage.clock.advance(ms(5 * WINDOW));
    check_stats(throttle, (0, 0, 0, 0));
}

fn make(throttle: &Throttle, calls: Calls, keys: usize) {
    for number in 0..keys {
        let (key, carried) = (format!("room:{number:011}"), "what changed".to_owned());
        assert_eq!(throttle.job(&key, |_run| Ok(0)).exec().unwrap(), Ran::Now);
        if let Calls::Both = calls {
            let job = throttle.job(&key, move |_run| Ok(u32::try_from(carried.len()).unwrap()));
            assert_eq!(job.exec().unwrap(), Ran::Later);
        }
    }
    assert_eq!(throttle.stats().keys, keys);
}

#[track_caller]
fn check(stage: &Stage, builder: Builder, calls: Calls) {
    let throttle = builder.build().unwrap();
    come_and_go(stage, &throttle, calls, FEW);
    let before = live();
    come_and_go(stage, &throttle, calls, MANY);
    check_left(before);
    // Once more: what the first time cost is not paid each time.
    come_and_go(stage, &throttle, calls, MANY);
    check_left(before);
}

#[track_caller]
fn check_left(before: isize) {
    let left = live() - before;
    // Less than before is fine: a thread that ended meanwhile gave back what was its own.
    assert!(left <= LEFT_MAX, "{left} bytes are left");
}

#[test]
fn when_the_windows_have_passed_nothing_is_left() {
    alone(concat!(module_path!(), "::when_the_windows_have_passed_nothing_is_left"), || {
        for calls in [Calls::Leading, Calls::Both] {
            let stage = Stage::new();
            check(&stage, stage.builder(WINDOW), calls);
        }
    });
}

#[test]
fn when_the_windows_on_an_engine_have_passed_nothing_is_left() {
    alone(concat!(module_path!(), "::when_the_windows_on_an_engine_have_passed_nothing_is_left"), || {
        for calls in [Calls::Leading, Calls::Both] {
            let stage = Stage::new();
            let engine = MemoryEngine::builder().clock(&stage.clock).sweep_interval(ms(WINDOW)).build();
            let engine = engine.unwrap();
            check(&stage, stage.builder(WINDOW).engine(engine.clone()), calls);
            assert!(engine.is_empty());
        }
    });
}

#[test]
fn a_destroyed_throttle_occupies_no_more_than_an_empty_one() {
    alone(concat!(module_path!(), "::a_destroyed_throttle_occupies_no_more_than_an_empty_one"), || {
        let stage = Stage::new();
        let build = || stage.builder(WINDOW).build().unwrap();
        // The many keys of the second are dropped by a worker.
        for (calls, keys) in [(Calls::Leading, MANY / 2), (Calls::Both, 2 * MANY)] {
            let [first, second] = [(); 2].map(|()| build());
            // The scheduler has served a throttle before, and a thread has waited for a lock: the first costs a table for all.
            make(&first, calls, FEW);
            first.destroy();
            let thread = stage.clock.spawn("first", || ());
            stage.clock.advance(ms(5 * WINDOW));
            thread.join().unwrap();
            let before = live();
            make(&second, calls, keys);
            second.destroy();
            stage.clock.advance(ms(5 * WINDOW));
            check_stats(&second, (0, 0, 0, 0));
            check_left(before);
        }
    });
}
