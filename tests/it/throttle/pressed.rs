//! Where a throttle is pressed from outside: engines that wait for a valve, threads that are refused, destructors that panic,
//! answers that come too late.

use std::sync::Arc;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Engine, MemoryEngine, Scheduler, SetOptions, StoreError, ThrottleWindow, Valve};

use super::scripted::{AT_ONCE, Operation, Scripted, after};
use super::stage::{Stage, check_stats, work};
use crate::support::ms;
use crate::trouble::alone::alone;
use crate::trouble::refused_threads::Refusing;

/// An engine whose writes need a permit.
#[derive(Clone)]
struct Limited {
    inner: MemoryEngine,
    valve: Valve,
    clock: ManualClock,
}

impl Engine for Limited {
    fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.inner.get(key)
    }

    fn set(&self, key: &str, value: &str, options: SetOptions) -> Result<bool, StoreError> {
        let _permit = self.valve.acquire().unwrap();
        self.inner.set(key, value, options)
    }

    fn del(&self, key: &str) -> Result<(), StoreError> {
        self.inner.del(key)
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.inner.clear()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// A worker that waits within an engine call is away once, not twice.
#[test]
fn an_engine_may_wait_for_a_valve_longer_than_it_is_waited_for() {
    let stage = Stage::new();
    let valve = Valve::builder("v").clock(&stage.clock).build().unwrap();
    let inner = MemoryEngine::builder().clock(&stage.clock).build().unwrap();
    let engine = Limited { inner, valve: valve.clone(), clock: stage.clock.clone() };
    let throttle = stage.builder(100).engine(engine).engine_timeout(ms(50)).workers(1).build().unwrap();
    for key in ["a", "b"] {
        stage.exec(&throttle, 0, key, work(1));
        stage.exec(&throttle, 10, key, work(2));
        stage.exec(&throttle, 2_000, key, work(3));
        stage.exec(&throttle, 2_010, key, work(4));
    }
    stage.at(50, move || valve.pause(ms(500)).unwrap());
    stage.until(10_000);
    check_stats(&throttle, (0, 0, 0, 0));
    assert_eq!(stage.starts().len(), 8, "{:#?}", stage.trace());
}

/// An extension that is carried out after the hold has ended takes the key from nobody by our own close.
#[test]
fn an_extension_that_comes_too_late_restores_no_hold() {
    let stage = Stage::new();
    let engine = Scripted::new(&stage);
    let throttle = stage.on(&engine, 50);
    engine.answers(|asked| match (asked.operation, asked.nth) {
        (Operation::Set, 1) => after(120),
        _ => AT_ONCE,
    });
    stage.exec(&throttle, 0, "k", work(1).takes(255));
    // Another instance takes the key as soon as it is free, for 200 ms.
    for (at, name) in [(215, "second"), (306, "third")] {
        let (foreign, story) = (engine.clone(), stage.clone());
        stage.at(at, move || story.say(format!("{name} {}", foreign.foreign_claim("p:k", 200))));
    }
    stage.until(1_000);
    assert!(stage.trace().contains(&"306 third false".to_owned()), "{:#?}", stage.trace());
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a destructor panics, as it should");
    }
}

#[test]
fn another_callers_destructor_does_not_panic_in_the_leaders_thread() {
    let stage = Stage::new();
    let valve = Valve::builder("v").clock(&stage.clock).concurrency(1).build().unwrap();
    let throttle = stage.builder(100).valve(&valve).build().unwrap();
    let held = valve.acquire().unwrap();
    stage.exec(&throttle, 0, "k", work(1));
    let (story, other) = (stage.clone(), throttle.clone());
    stage.at(10, move || {
        let bomb = Bomb;
        let work = move |_: &valve::Run<'_>| {
            let _bomb = &bomb;
            Ok(7)
        };
        story.say(format!("other {:?}", other.job("k", work).exec()));
    });
    stage.until(20);
    valve.close();
    stage.until(1_000);
    drop(held);
    let trace = stage.trace();
    assert!(trace.iter().any(|line| line.starts_with("20 exec 1: valve")), "{trace:#?}");
}

/// Says on which thread it is dropped.
struct Tells(Arc<Mutex<Vec<String>>>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
    }
}

#[test]
fn a_scheduler_that_stops_drops_no_closure_of_a_key_that_runs() {
    let names: Arc<Mutex<Vec<String>>> = Arc::default();
    let scheduler = Scheduler::new().unwrap();
    let builder = ThrottleWindow::<(), String>::builder("p:").engine(MemoryEngine::new());
    let throttle = builder.scheduler(&scheduler).build().unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let work = move |_: &valve::Run<'_>| {
                begun.send(()).unwrap();
                ends.recv().unwrap();
                Ok(())
            };
            let _ = throttle.job("k", work).exec();
        });
        begins.recv().unwrap();
        let tells = Tells(Arc::clone(&names));
        let work = move |_: &valve::Run<'_>| {
            let _tells = &tells;
            Ok(())
        };
        let _ = throttle.job("k", work).exec().unwrap();
        scheduler.shutdown(ms(5_000)).unwrap();
        end.send(()).unwrap();
    });
    for _ in 0..500 {
        if !names.lock().is_empty() {
            break;
        }
        crate::trouble::nap(10);
    }
    let names = names.lock().clone();
    assert!(!names.is_empty() && !names.contains(&"valve-scheduler".to_owned()), "{names:?}");
}

/// Each refused run gives its permit back, which lets the next be refused: not one within the other.
#[test]
fn a_long_line_at_the_valve_whose_threads_are_refused_needs_no_deep_stack() {
    alone(
        concat!(module_path!(), "::a_long_line_at_the_valve_whose_threads_are_refused_needs_no_deep_stack"),
        || {
            let valve = Valve::builder("v").concurrency(1).build().unwrap();
            let builder = ThrottleWindow::<(), String>::builder("p:").window(ms(1_000));
            let throttle = builder.valve(&valve).build().unwrap();
            let keys: Vec<_> = (0..5_000).map(|key| key.to_string()).collect();
            for key in keys.iter().chain(&keys) {
                let _ = throttle.job(key, |_| Ok(())).exec().unwrap();
            }
            let held = valve.acquire().unwrap();
            while valve.stats().queued < keys.len() {
                crate::trouble::nap(10);
            }
            let stingy = Refusing::new();
            drop(held);
            drop(stingy);
            for _ in 0..1_000 {
                if throttle.stats().pending == 0 {
                    return;
                }
                crate::trouble::nap(10);
            }
            panic!("{:?}", throttle.stats());
        },
    );
}
