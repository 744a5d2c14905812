//! The system refuses a thread: an error or a wait, never a panic, and all works once it gives threads again.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use valve::{Error, Event, MemoryStore, Remote, Rule, Scheduler, Valve};

use super::alone::alone;
use super::{Footprint, check_sound, millis, nap, seconds};
use crate::hooked::Hooked;

#[test]
fn a_refused_thread_is_an_error() {
    alone(concat!(module_path!(), "::a_refused_thread_is_an_error"), || {
        let before = Footprint::settled();
        refused(Scheduler::with_stack(1 << 46));
        assert_eq!(Footprint::now(), before, "something of it is left behind");

        // The process's own scheduler, and then the thread for handlers.
        let stingy = Refusing::new();
        refused(Valve::builder("first").build());
        refused(Scheduler::new());
        drop(stingy);
        assert_eq!(Footprint::now(), before, "something of it is left behind");
        let valve = Valve::builder("first").concurrency(2).build().unwrap();
        let stingy = Refusing::new();
        refused(Valve::builder("second").on_event(|_| ()).build());
        valve.run(|| ()).unwrap();
        drop(stingy);
        check_sound(&valve, 2);

        let told = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&told);
        let count = move |_: &Event| {
            counting.fetch_add(1, Ordering::Relaxed);
        };
        let heard = Valve::builder("second").on_event(count).build().unwrap();
        heard.pause(millis(1)).unwrap();
        heard.resume().unwrap();
        wait_until(|| told.load(Ordering::Relaxed) == 2);
    });
}

#[test]
fn a_refused_store_worker_only_delays() {
    alone(concat!(module_path!(), "::a_refused_store_worker_only_delays"), || {
        let before = Footprint::settled();
        let scheduler = Scheduler::new().unwrap();
        let store = Hooked::new(MemoryStore::new(), Some(Remote::default()), |_| Ok(()));
        let rule = Rule::gcra(1_000, seconds(1)).burst(100);
        let valve = Valve::builder("remote").rule(rule).concurrency(1).store(store).scheduler(&scheduler);
        let valve = valve.build().unwrap();
        drop(scheduler);
        let held = valve.acquire().unwrap();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..5).map(|_| scope.spawn(|| valve.run(|| ()))).collect();
            let impatient = scope.spawn(|| valve.job().max_wait(millis(100)).run(|_| ()));
            wait_until(|| valve.stats().queued == 6);
            let stingy = Refusing::new();
            drop(held);
            assert!(matches!(impatient.join().unwrap(), Err(Error::Timeout { .. })));
            assert_eq!(valve.stats().started, 1, "someone started without being asked for");
            drop(stingy);
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
        });
        check_sound(&valve, 1);
        drop(valve);
        before.check_back();
    });
}

#[test]
fn a_refused_lease_thread_is_asked_for_again_while_the_lease_lasts() {
    alone(
        concat!(module_path!(), "::a_refused_lease_thread_is_asked_for_again_while_the_lease_lasts"),
        leases,
    );
}

fn leases() {
    let before = Footprint::settled();
    let scheduler = Scheduler::new().unwrap();
    let store = || Hooked::new(MemoryStore::new(), Some(Remote::default()), |_| Ok(()));
    let leased = |ttl| Valve::builder("leased").global_concurrency(1, ttl).scheduler(&scheduler);
    let kept = leased(millis(3_000)).store(store()).build().unwrap();
    let lost = leased(millis(600)).store(store()).build().unwrap();
    let (mine, stays) = (kept.acquire().unwrap(), lost.acquire().unwrap());

    // The first renewals of both fall due while no thread can be had, and one lease ends meanwhile.
    let stingy = Refusing::new();
    nap(1_200);
    assert!(stays.is_aborted());
    drop(stingy);
    assert!(matches!(stays.finish(), Err(Error::LeaseLost)));
    nap(2_200);
    assert!(!mine.is_aborted(), "a lease was given up that could have been renewed");
    mine.finish().unwrap();
    kept.run(|| ()).unwrap();
    lost.run(|| ()).unwrap();
    drop((kept, lost, scheduler));
    before.check_back();
}

#[cfg(feature = "redis")]
#[test]
fn a_client_that_is_refused_its_threads_is_an_error() {
    alone(concat!(module_path!(), "::a_client_that_is_refused_its_threads_is_an_error"), || {
        Valve::builder("first").build().unwrap();
        let before = Footprint::settled();
        let stingy = Refusing::new();
        for _ in 0..3 {
            refused(valve::Redis::open("redis://127.0.0.1:1"));
        }
        drop(stingy);
        before.check_back();
        let client = valve::Redis::open("redis://127.0.0.1:1").unwrap();
        assert!(client.check().is_err());
        drop(client);
        before.check_back();
    });
}

#[test]
fn a_lease_that_no_thread_renews_is_lost_with_a_word() {
    alone(concat!(module_path!(), "::a_lease_that_no_thread_renews_is_lost_with_a_word"), || {
        let store = Hooked::new(MemoryStore::new(), Some(Remote::default()), |_| Ok(()));
        let valve = Valve::builder("remote").global_concurrency(1, millis(300)).store(store).build().unwrap();
        let stingy = Refusing::new();
        let result = valve.job().run(|running| wait_until(|| running.is_aborted()));
        drop(stingy);
        assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
        valve.job().max_wait(seconds(5)).run(|running| nap(500 + u64::from(running.is_aborted()))).unwrap();
    });
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, Error>) {
    match result {
        Err(error @ Error::Spawn(_)) => {
            assert_eq!(error.code(), 12);
            assert!(std::error::Error::source(&error).is_some(), "it does not say why");
        }
        other => panic!("the system gave a thread: {other:?}"),
    }
}

#[track_caller]
fn wait_until(mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        nap(10);
    }
    panic!("not within 10 s");
}

/// While it lives, the process gets no address space for another thread's stack.
pub(crate) struct Refusing {
    before: libc::rlimit,
}

/// Enough for whatever the test allocates, too little for a stack of 2 MiB.
const SPARE: libc::rlim_t = 1 << 20;

impl Refusing {
    pub(crate) fn new() -> Refusing {
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: libc::rlim_t = pages.split(' ').next().unwrap().parse().unwrap();
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        limit(|| unsafe_get(&mut before));
        let now = libc::rlimit { rlim_cur: pages * 4_096 + SPARE, ..before };
        limit(|| unsafe_set(&now));
        Refusing { before }
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        limit(|| unsafe_set(&self.before));
    }
}

fn limit(call: impl FnOnce() -> libc::c_int) {
    assert_eq!(call(), 0, "{}", std::io::Error::last_os_error());
}

#[expect(unsafe_code, reason = "no safe function of the standard library limits a process")]
fn unsafe_get(limit: &mut libc::rlimit) -> libc::c_int {
    // SAFETY: the pointer is to a `rlimit` that outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, limit) }
}

#[expect(unsafe_code, reason = "no safe function of the standard library limits a process")]
fn unsafe_set(limit: &libc::rlimit) -> libc::c_int {
    // SAFETY: the pointer is to a `rlimit` that outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }
}
