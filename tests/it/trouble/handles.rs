//! Last handles dropped in unlikely places: each drop returns at once, and no thread stays behind.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;
use valve::{Event, MemoryStore, OwnedPermit, Remote, Rule, Scheduler, Valve};

use super::alone::alone;
use super::{Footprint, millis, seconds};
use crate::hooked::{Called, Hooked};

thread_local! {
    static UNTIL_THE_END: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// What a thread holds to its end, and does as it ends.
struct Held {
    valve: Option<Valve>,
    _permit: Option<OwnedPermit>,
    runs: bool,
    ended: mpsc::Sender<&'static str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let valve = self.valve.take().unwrap();
        if self.runs {
            // The second has to wait for the rule.
            valve.run(|| ()).unwrap();
            valve.run(|| ()).unwrap();
        }
        drop(valve);
        self.ended.send("ended").unwrap();
    }
}

/// A valve that is all there is of its scheduler.
fn only_valve() -> Valve {
    let scheduler = Scheduler::new().unwrap();
    let rule = Rule::gcra(100, seconds(1));
    Valve::builder("only").rule(rule).concurrency(2).scheduler(&scheduler).build().unwrap()
}

#[test]
fn the_last_handle_may_go_anywhere() {
    alone(concat!(module_path!(), "::the_last_handle_may_go_anywhere"), || {
        // What starts once in a process is no leak.
        Valve::builder("first").on_event(|_| ()).build().unwrap().run(|| ()).unwrap();
        let before = Footprint::settled();
        let places: [(&str, fn()); 8] = [
            ("inside its own job", in_its_job),
            ("on another thread, while a permit lives", before_its_permit),
            ("in its event handler", in_its_handler),
            ("inside its store", in_its_store),
            ("inside its remote store", in_its_remote_store),
            ("as a thread ends", in_a_destructor),
            ("by the thread that waited last", after_a_wait),
            ("before a scheduler that is shut down", after_shutdown),
        ];
        for (place, drop_there) in places {
            for _ in 0..20 {
                drop_there();
            }
            let after = Footprint::now();
            assert!(after.threads.len() < 30, "threads pile up when dropped {place}: {after:?}");
        }
        before.check_back();
    });
}

fn in_its_job() {
    let valve = only_valve();
    let slot = Mutex::new(Some(valve.clone()));
    valve.run(|| drop(slot.lock().take())).unwrap();
    // A permit is the last one then.
    let permit = valve.acquire_owned().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            drop(valve);
            drop(permit);
        });
    });
}

fn before_its_permit() {
    let valve = only_valve();
    let permit = valve.acquire_owned().unwrap();
    thread::scope(|scope| drop(scope.spawn(move || drop(valve))));
    permit.finish().unwrap();
}

fn in_its_handler() {
    let slot: Arc<Mutex<Option<Valve>>> = Arc::default();
    let (dropped, drops) = mpsc::channel();
    let scheduler = Scheduler::new().unwrap();
    let own = Arc::clone(&slot);
    let handler = move |event: &Event| {
        if matches!(event, Event::Resumed) {
            drop(own.lock().take());
            dropped.send(()).unwrap();
        }
    };
    let valve = Valve::builder("handled").scheduler(&scheduler).on_event(handler).build().unwrap();
    drop(scheduler);
    *slot.lock() = Some(valve.clone());
    valve.pause(seconds(60)).unwrap();
    valve.resume().unwrap();
    drop(valve);
    drops.recv_timeout(seconds(10)).expect("the handler hangs");
}

fn in_its_store() {
    dropped_by_the_store(None);
}

fn in_its_remote_store() {
    dropped_by_the_store(Some(Remote::new(2, millis(500)).unwrap()));
}

/// The store holds the only handle besides the caller's, and lets it go as it is asked.
fn dropped_by_the_store(remote: Option<Remote>) {
    let slot: Arc<Mutex<Option<Valve>>> = Arc::default();
    let own = Arc::clone(&slot);
    let store = Hooked::new(MemoryStore::new(), remote, move |called| {
        if called == Called::Admit {
            drop(own.lock().take());
        }
        Ok(())
    });
    let scheduler = Scheduler::new().unwrap();
    let rule = Rule::gcra(100, seconds(1));
    let valve = Valve::builder("store").rule(rule).store(store).scheduler(&scheduler).build().unwrap();
    for _ in 0..2 {
        *slot.lock() = Some(valve.clone());
        // A call with a deadline this near is asked for by a worker, if the store is remote.
        valve.job().max_wait(millis(400)).run(|_| ()).unwrap();
    }
}

fn in_a_destructor() {
    for runs in [false, true] {
        for on_the_worlds_scheduler in [false, true] {
            let (ended, ends) = mpsc::channel();
            let thread = thread::Builder::new().spawn(move || {
                let valve = match on_the_worlds_scheduler {
                    true => Valve::builder("tls").rule(Rule::gcra(100, seconds(1))).build().unwrap(),
                    false => only_valve(),
                };
                let permit = (!runs).then(|| valve.acquire_owned().unwrap());
                let held = Held { valve: Some(valve), _permit: permit, runs, ended };
                UNTIL_THE_END.with_borrow_mut(|all| all.push(held));
            });
            thread.unwrap().join().unwrap();
            assert_eq!(ends.recv_timeout(seconds(10)), Ok("ended"));
        }
    }
}

fn after_a_wait() {
    let valve = only_valve();
    let held = [valve.acquire_owned().unwrap(), valve.acquire_owned().unwrap()];
    let waiter = valve.clone();
    let thread = thread::Builder::new().spawn(move || waiter.run(|| ())).unwrap();
    while valve.stats().queued == 0 {
        thread::yield_now();
    }
    drop(valve);
    drop(held);
    thread.join().unwrap().unwrap();
}

fn after_shutdown() {
    let scheduler = Scheduler::new().unwrap();
    let rule = Rule::gcra(1, seconds(3_600));
    let valve = Valve::builder("shut").rule(rule).scheduler(&scheduler).build().unwrap();
    valve.run(|| ()).unwrap();
    let waiter = valve.clone();
    let thread = thread::Builder::new().spawn(move || waiter.run(|| ())).unwrap();
    while valve.stats().queued == 0 {
        thread::yield_now();
    }
    scheduler.shutdown(seconds(10)).unwrap();
    // Whoever waited for time to pass is told that none will.
    assert!(matches!(thread.join().unwrap(), Err(valve::Error::Closed)));
    assert!(matches!(valve.run(|| ()), Err(valve::Error::Closed)));
    drop(scheduler);
    drop(valve);
}
