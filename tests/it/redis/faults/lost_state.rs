//! The server forgets: by a restart, a flush, an eviction, a stale replica. What is lost is lost; nothing else is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use valve::{Error, Event, Rule};

use crate::redis::proxy::{Flow, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::{Counter, LOG, builder, grants, leases, logged, store, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

/// Ten a second and five at once: from idle, five start.
fn bursty() -> Rule {
    Rule::gcra(10, secs(1)).burst(5).into()
}

/// How many of 20 jobs start at once.
#[track_caller]
fn start_at_once(counter: &Counter) -> usize {
    counter.admit(&[1; 20]).unwrap().granted
}

#[test]
fn a_restart_ends_leases_and_pauses_and_refills_the_budget() {
    let mut server = Server::start();
    let store = store(&server.url());
    let ttl = ms(1_500);
    let counter = Counter::of("rate", &store, [bursty()]);
    assert_eq!(start_at_once(&counter), 5);
    counter.pause(secs(60)).unwrap();
    let valve = valve(&store).global_concurrency(2, ttl).build().unwrap();
    let mut noticed = None;
    let result = valve.job().run(|running| {
        server.restart();
        let watch = Stopwatch::start();
        wait_until("the job is told of its loss", || running.is_aborted());
        noticed = Some(watch.elapsed());
    });
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    let noticed = noticed.unwrap();
    assert!(noticed <= ttl / 3 + ms(700), "the loss is noticed by the next renewal, not after {noticed:?}");
    assert_eq!(start_at_once(&counter), 5, "neither the debt nor the pause outlives the server");
    valve.run(|| ()).unwrap();
}

#[test]
fn a_flush_refills_the_budget_and_is_no_failure() {
    let server = Server::start();
    let failures = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failures);
    let store = store(&server.url());
    let on_event = move |event: &Event| {
        if matches!(event, Event::StoreError { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let valve = valve(&store).rule(bursty()).on_event(on_event).build().unwrap();
    let at_once = || (0..20).take_while(|_| valve.try_acquire().is_ok()).count();
    let watch = Stopwatch::start();
    let before = at_once();
    for flush in ["FLUSHALL", "FLUSHDB"] {
        server.cli(&[flush]);
        // What a valve was told last it believes until then.
        nap(110);
        let again = at_once();
        // What the rate alone gives meanwhile.
        let earned = watch.elapsed().as_millis() as usize / 100 + 1;
        assert!((5..=5 + earned).contains(&again), "{again} start after {flush}, {before} did before");
    }
    valve.pause(secs(60)).unwrap();
    server.cli(&["FLUSHALL"]);
    assert!(Counter::new(&store, [bursty()]).admits(), "the pause is gone too");
    assert_eq!(failures.load(Ordering::Relaxed), 0, "nothing failed");
}

#[test]
fn leases_lost_by_a_flush_are_noticed_at_the_next_renewal() {
    let server = Server::start();
    let store = store(&server.url());
    let ttl = ms(1_500);
    let valve = valve(&store).global_concurrency(2, ttl).build().unwrap();
    let most = AtomicUsize::new(0);
    let running = AtomicUsize::new(0);
    let job = || {
        valve.job().run(|job| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let watch = Stopwatch::start();
            while !job.is_aborted() && watch.elapsed() < ms(1_200) {
                nap(2);
            }
            running.fetch_sub(1, Ordering::SeqCst);
            watch.elapsed()
        })
    };
    thread::scope(|scope| {
        let first: Vec<_> = (0..2).map(|_| scope.spawn(job)).collect();
        wait_until("both slots are taken", || running.load(Ordering::SeqCst) == 2);
        // Their renewals are due in half a second, so the slots that vanish now are free till then.
        server.cli(&["FLUSHALL"]);
        let second: Vec<_> = (0..2).map(|_| scope.spawn(job)).collect();
        for lost in first {
            let result = lost.join().unwrap();
            assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
        }
        for kept in second {
            assert!(kept.join().unwrap().is_ok(), "a lease that was not lost");
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 4, "vanished slots are given again, and no more than once");
}

#[test]
fn forgotten_scripts_are_sent_again_and_nothing_is_spent_twice() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [Rule::fixed_window(1_000, secs(3_600)).into()]);
    let flushed = |what: &str, call: &dyn Fn()| {
        server.cli(&["CONFIG", "RESETSTAT"]);
        server.cli(&["SCRIPT", "FLUSH"]);
        call();
        assert_eq!(server.calls("eval"), 1, "{what}");
        assert!(server.calls("evalsha") <= 1, "{what}");
    };
    flushed("acquire", &|| assert!(counter.admits()));
    flushed("acquire again", &|| assert!(counter.admits()));
    flushed("take", &|| assert_eq!(counter.take(1, secs(60), &[7]).unwrap().granted, 1));
    flushed("renew", &|| assert_eq!(counter.renew(secs(60), &[7]).unwrap(), [true]));
    flushed("release", &|| counter.release(&[7]).unwrap());
    flushed("pause", &|| assert!(counter.pause(secs(60)).unwrap() > secs(59)));
    flushed("resume", &|| counter.resume().unwrap());
    assert_eq!(grants(&server).len(), 3);
    assert_eq!(counter.admit(&[1; 64]).unwrap().granted, 64);
    assert_eq!(grants(&server).len(), 67);
    assert_eq!(leases(&server), 0);
}

#[test]
fn an_evicting_server_is_warned_of_and_an_eviction_only_refills() {
    let server = Server::with(&["--maxmemory-policy", "volatile-ttl"]);
    logged();
    let store = store(&server.url());
    let counter = Counter::of("evicted", &store, [bursty()]);
    assert_eq!(start_at_once(&counter), 5);
    wait_until("the policy is warned of", || {
        logged().iter().any(|line| line.starts_with("WARN") && line.contains("maxmemory-policy"))
    });
    let warned = || logged().iter().filter(|line| line.contains("maxmemory-policy")).count();
    assert_eq!(warned(), 1, "{:?}", logged());
    // All that may go is our key: the log has no end.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("it is evicted", || {
        server.cli(&["SET", "other", "value"]);
        server.cli(&["EXISTS", "valve:{evicted}"]).int() == 0
    });
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(start_at_once(&counter), 5, "{}", server.cli(&["EXISTS", LOG]).int());
    assert_eq!(warned(), 1, "{:?}", logged());
}

/// The replica that takes over has not heard of the last grants. At most one budget is given twice.
#[test]
fn a_failover_to_a_stale_replica_is_like_a_flush() {
    let primary = Server::start();
    let link = Proxy::to(primary.address());
    let port = link.address().port().to_string();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    wait_until("the replica follows", || replica.info("master_link_status") == "up");
    let door = Proxy::to(primary.address());
    let store = store(&door.url());
    let counter = Counter::of("rate", &store, [bursty()]);
    link.flow(Way::Down, Flow::Held);
    assert_eq!(start_at_once(&counter), 5);
    let valve = valve(&store).global_concurrency(1, ms(1_500)).build().unwrap();
    let result = valve.job().run(|running| {
        replica.cli(&["REPLICAOF", "NO", "ONE"]);
        door.redirect(replica.address());
        wait_until("the job is told of its loss", || running.is_aborted());
    });
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    // A connection that the old server closed may cost one call.
    let again = counter.admit(&[1; 20]).or_else(|_| counter.admit(&[1; 20])).unwrap().granted;
    assert!((5..=6).contains(&again), "{again} start: one budget, and what the rate gives meanwhile");
    valve.run(|| ()).unwrap();
}

/// What a client sees that never looks at the log.
#[test]
fn building_a_valve_writes_nothing() {
    let server = Server::start();
    let plain = builder(&server.url()).build().unwrap();
    for _ in 0..20 {
        let store = valve::RedisStore::new(&plain);
        valve(&store).rule(bursty()).global_concurrency(1, secs(1)).build().unwrap();
    }
    assert!(server.keys().is_empty(), "{:?}", server.keys());
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 0);
}
