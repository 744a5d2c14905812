//! Owners of slots that stand still, die or are starved: what becomes of their slots, and what they are told.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use valve::{Error, Rule, Subscriber, Valve};

use crate::redis::process::Process;
use crate::redis::proxy::{Cut, Flow, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::{
    Counter, What, builder_as, grants, hasty_store, leases, log, most_held, store, valve, wait_until,
};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

const TTL: Duration = Duration::from_millis(600);

/// A process that holds the only slot until it is told to end its job.
fn holder(server: &Server) -> Process {
    let process = Process::start("hold", &[("url", &server.url()), ("limit", "1"), ("ttl", "600")]);
    process.says("holds");
    process
}

fn one_slot(server: &Server) -> Valve {
    valve(&store(&server.url())).global_concurrency(1, TTL).build().unwrap()
}

#[test]
fn a_frozen_owner_is_told_as_soon_as_it_looks() {
    let server = Server::start();
    let mut frozen = holder(&server);
    let mine: u64 = frozen.says("holds").parse().unwrap();
    let valve = one_slot(&server);
    frozen.freeze();
    let watch = Stopwatch::start();
    let next = valve.job().run(|running| running.fencing_token().unwrap().get()).unwrap();
    assert!(watch.elapsed() <= TTL + ms(1_200), "its slot came back after {:?}", watch.elapsed());
    assert!(next > mine, "the next owner's fencing token is {next}, the frozen one's {mine}");
    let held = valve.acquire().unwrap();
    frozen.thaw();
    // What it renews and releases now is not the new owner's.
    frozen.tell("look");
    assert_eq!(frozen.says("aborted"), "true", "it does not see at once that it is too late");
    frozen.tell("end");
    assert_eq!(frozen.says("ended"), "7", "its call does not say that the lease was lost");
    assert_eq!(frozen.says("callback"), "1");
    nap(700);
    assert!(!held.is_aborted(), "the new owner lost its slot to the old one");
    held.finish().unwrap();
    assert!(most_held(&log(&server)) <= 1);
    frozen.end();
}

#[test]
fn a_killed_owners_slot_comes_back() {
    let server = Server::start();
    let deaf = builder_as("deaf", &server.url()).subscriber(Subscriber::Off).build().unwrap();
    let deaf = valve(&valve::RedisStore::new(&deaf)).global_concurrency(1, TTL).build().unwrap();
    // Nobody tells of it, so a waiter finds out when it looks: each second if it listens, else each 50 ms.
    for (valve, poll) in [(one_slot(&server), ms(1_200)), (deaf, ms(300))] {
        let mut killed = holder(&server);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| valve.run(|| ()));
            wait_until("it waits", || valve.stats().queued == 1);
            nap(100);
            let watch = Stopwatch::start();
            killed.kill();
            waiter.join().unwrap().unwrap();
            assert!(watch.elapsed() <= TTL + poll, "{:?}", watch.elapsed());
        });
    }
    assert!(most_held(&log(&server)) <= 1);
}

/// A thousand names, and nothing of them is left but what must remember the fencing token.
#[test]
fn dead_workers_leave_no_keys() {
    let server = Server::start();
    let mut process =
        Process::start("hold-many", &[("url", &server.url()), ("ids", "1000"), ("ttl", "1000")]);
    process.says("holds");
    let sets = || server.keys().iter().filter(|key| key.ends_with(b":l")).count();
    assert_eq!(sets(), 1_000);
    process.kill();
    nap(2_000);
    assert_eq!(sets(), 0, "sets of leases that have ended are left");
}

#[test]
fn leases_are_renewed_or_lost_with_a_word_while_the_machine_is_busy() {
    let server = Server::start();
    let store = store(&server.url());
    let valve = valve(&store).global_concurrency(64, secs(2)).build().unwrap();
    let (over, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let result = valve.job().run(|_| {
                    let mut sum = 0_u64;
                    while !over.load(Ordering::Relaxed) {
                        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
                    }
                });
                if result.is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("all run", || valve.stats().running == 64);
        nap(3_500);
        over.store(true, Ordering::Relaxed);
    });
    let log = log(&server);
    let renewed = log.iter().filter(|entry| matches!(entry.what, What::Renewal { .. })).count();
    assert_eq!(most_held(&log), 64);
    // One that came too late is told; none is lost without a word.
    let lost = lost.load(Ordering::Relaxed);
    assert!(renewed / 3 + lost >= 64, "{renewed} renewals, and {lost} leases were lost");
}

#[test]
fn a_failed_renewal_is_tried_again_until_the_end() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(100));
    let valve = valve(&store).global_concurrency(1, TTL).build().unwrap();
    // One renewal fails and the next is good.
    let result = valve.job().run(|running| {
        proxy.cut_all(Cut::Reset);
        proxy.cut_after(Way::Up, 10, Cut::Reset);
        nap(1_500);
        running.is_aborted()
    });
    assert!(!result.unwrap(), "one failure ended the lease");
    // None comes through: it is lost at its end by our own clock, however long the calls take.
    let result = valve.job().run(|running| {
        proxy.both(Flow::Lost);
        let watch = Stopwatch::start();
        wait_until("it is told", || running.is_aborted());
        watch.elapsed()
    });
    proxy.heal();
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
}

#[test]
fn a_job_is_told_by_the_end_of_its_lease_whatever_happens() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(400));
    let valve = valve(&store).global_concurrency(1, TTL).build().unwrap();
    let mut told = None;
    let result = valve.job().run(|running| {
        proxy.both(Flow::Lost);
        let watch = Stopwatch::start();
        wait_until("it is told", || running.is_aborted());
        told = Some(watch.elapsed());
    });
    proxy.heal();
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    assert!(told.unwrap() <= TTL + ms(20), "{told:?} after the last renewal could have been good");
}

/// The renewal is carried out, but its answer comes when the job has been told already.
#[test]
fn a_renewal_heard_of_too_late_gives_nothing_back() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), secs(2));
    let valve = valve(&store).global_concurrency(1, TTL).build().unwrap();
    // The connection for renewals is there, so what is held back is the answer.
    Counter::new(&store, []).renew(TTL, &[1]).unwrap();
    let result = valve.job().run(|running| {
        proxy.flow(Way::Down, Flow::Held);
        wait_until("it is told", || running.is_aborted());
        let renewed = log(&server).iter().filter(|entry| matches!(entry.what, What::Renewal { .. })).count();
        assert!(renewed >= 1, "the server renewed nothing");
        proxy.heal();
        nap(100);
        assert!(running.is_aborted(), "a late answer gave the slot back");
    });
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
}

/// The lease lasts from when the server carries the ask out, but is trusted from when it was sent.
#[test]
fn a_lease_is_trusted_from_its_sending() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), secs(2));
    let valve = valve(&store).global_concurrency(1, secs(1)).build().unwrap();
    valve.run(|| ()).unwrap();
    nap(50);
    proxy.delay(Way::Up, ms(400));
    let watch = Stopwatch::start();
    let mut told = None;
    let result = valve.job().run(|running| {
        let lasts = server.cli(&["ZRANGE", "valve:{id}:l", "0", "-1", "WITHSCORES"]);
        let left = lasts.array()[1].text().parse::<u64>().unwrap() - server.time();
        assert!((850_000..=1_000_000).contains(&left), "the lease lasts 1 s from its grant: {left} us");
        proxy.both(Flow::Lost);
        wait_until("it is told", || running.is_aborted());
        told = Some(watch.elapsed());
    });
    proxy.heal();
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    let told = told.unwrap();
    assert!((ms(950)..ms(1_100)).contains(&told), "told {told:?} after the ask was sent");
}

#[test]
fn a_thousand_empty_jobs_leave_no_lease_and_no_renewal() {
    let server = Server::start();
    let store = store(&server.url());
    let valve = valve(&store).global_concurrency(1, ms(300)).build().unwrap();
    for _ in 0..1_000 {
        valve.run(|| ()).unwrap();
    }
    wait_until("the last slot is free", || leases(&server) == 0);
    let count = log(&server).len();
    nap(600);
    assert_eq!(log(&server).len(), count, "something was renewed after its end");
    let log = log(&server);
    let mut released = std::collections::HashSet::new();
    for entry in &log {
        match entry.what {
            What::Release => drop(released.insert(entry.token)),
            What::Renewal { .. } => {
                assert!(!released.contains(&entry.token), "renewed after its release: {entry:?}")
            }
            What::Grant { .. } => {}
        }
    }
    assert_eq!(released.len(), 1_000);
    assert_eq!(most_held(&log), 1);
}

#[test]
fn a_late_release_frees_nobody_elses_slot() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, []);
    let ttl = ms(100);
    let first = counter.take(1, ttl, &[1]).unwrap();
    assert_eq!(first.granted, 1);
    assert_eq!(counter.take(1, ttl, &[2]).unwrap().granted, 0);
    nap(120);
    assert_eq!(counter.renew(ttl, &[1]).unwrap(), [false], "an ended lease is not revived");
    let second = counter.take(1, secs(60), &[2]).unwrap();
    assert_eq!(second.granted, 1);
    assert!(second.fence > first.fence);
    counter.release(&[1]).unwrap();
    assert_eq!(counter.renew(secs(60), &[1, 2]).unwrap(), [false, true]);
    assert_eq!(counter.take(1, ttl, &[3]).unwrap().granted, 0, "a late release freed the slot of another");
    counter.release(&[2]).unwrap();
    assert_eq!(counter.take(1, ttl, &[3]).unwrap().granted, 1);
}

/// Renewed just in time it holds for its whole length from then on.
#[test]
fn a_renewal_counts_from_itself() {
    let server = Server::start();
    let counter = Counter::new(&store(&server.url()), []);
    let ttl = ms(400);
    counter.take(1, ttl, &[1]).unwrap();
    nap(250);
    assert_eq!(counter.renew(ttl, &[1]).unwrap(), [true]);
    nap(250);
    assert_eq!(counter.take(1, ttl, &[2]).unwrap().granted, 0, "the first end counted");
    wait_until("it ends", || counter.take(1, ttl, &[2]).unwrap().granted == 1);
}

#[test]
fn a_slot_that_is_taken_stays_taken_while_others_build_valves() {
    let server = Server::start();
    let here = valve(&store(&server.url())).global_concurrency(1, secs(5)).build().unwrap();
    let held = here.acquire().unwrap();
    for _ in 0..20 {
        let client = builder_as("other", &server.url()).build().unwrap();
        let other = valve(&valve::RedisStore::new(&client))
            .rule(Rule::gcra(10, secs(1)))
            .global_concurrency(1, secs(5));
        let other = other.build().unwrap();
        assert!(matches!(other.try_acquire(), Err(Error::WouldWait { .. })));
        let short = other.job().max_wait(ms(20)).run(|_| ());
        assert!(matches!(short, Err(Error::Timeout { .. })), "{short:?}");
    }
    assert_eq!(grants(&server).len(), 1);
    held.finish().unwrap();
}
