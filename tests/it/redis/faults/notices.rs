//! Notices are hints: with them waiters elsewhere start at once, without them within a second, and nothing else depends on
//! them.

use std::thread;
use std::time::Duration;

use valve::{RedisStore, Rule, Subscriber, Valve};

use crate::redis::proxy::{Cut, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::{Counter, builder, grants, most_held, store, valve, wait_until};
use crate::redis::{Stopwatch, nap, world};
use crate::support::{SECOND, most_in_any, ms, secs};

fn ample() -> Rule {
    Rule::gcra(1_000, secs(1)).burst(1_000).into()
}

fn limited(store: &RedisStore) -> Valve {
    valve(store).rule(ample()).global_concurrency(1, secs(30)).build().unwrap()
}

/// Has `waiting` wait until it listens, so that a notice can be heard.
fn await_listening(server: &Server, count: usize) {
    let channel = channel(server);
    wait_until("a subscriber listens", || {
        server.cli(&["PUBSUB", "NUMSUB", &channel]).array()[1].int() >= count as i64
    });
}

/// The one channel that somebody listens to.
fn channel(server: &Server) -> String {
    wait_until("a subscriber listens", || !server.cli(&["PUBSUB", "CHANNELS"]).array().is_empty());
    server.cli(&["PUBSUB", "CHANNELS"]).array()[0].text()
}

/// How long after its release a slot that `there` waits for is given to it.
#[track_caller]
fn hand_over(server: &Server, here: &Valve, there: &Valve, before_release: impl FnOnce()) -> Duration {
    let held = here.acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| there.run(|| ()));
        wait_until("it waits", || there.stats().queued == 1);
        await_listening(server, 1);
        // Its first ask, and the one when it began to listen, are over.
        nap(50);
        before_release();
        let watch = Stopwatch::start();
        held.finish().unwrap();
        waiter.join().unwrap().unwrap();
        watch.elapsed()
    })
}

#[test]
fn a_release_wakes_waiters_elsewhere_at_once() {
    let server = Server::start();
    let (one, two) = (store(&server.url()), store(&server.url()));
    let (here, there) = (limited(&one), limited(&two));
    for _ in 0..3 {
        let took = hand_over(&server, &here, &there, || ());
        assert!(took < ms(300), "it learnt of the release after {took:?}");
    }
}

#[test]
fn a_lost_notice_costs_a_second_at_most() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let one = store(&server.url());
    let client = builder(&proxy.url()).build().unwrap();
    let two = RedisStore::new(&client);
    let (here, there) = (limited(&one), limited(&two));
    let took = hand_over(&server, &here, &there, || {
        // The waiter asks again in a second only, so what would pass next is the notice.
        proxy.cut_after(Way::Down, 0, Cut::Stall);
    });
    assert!((ms(300)..ms(1_300)).contains(&took), "the waiter looks each second, not after {took:?}");
}

#[test]
fn without_a_subscriber_waiters_poll() {
    let server = Server::start();
    let off = || RedisStore::new(&builder(&server.url()).subscriber(Subscriber::Off).build().unwrap());
    let (one, two) = (off(), off());
    let (here, there) = (limited(&one), limited(&two));
    let held = here.acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| there.run(|| ()));
        wait_until("it waits", || there.stats().queued == 1);
        nap(100);
        server.cli(&["CONFIG", "RESETSTAT"]);
        nap(1_000);
        let polls = server.calls("evalsha");
        assert!((10..=21).contains(&polls), "{polls} polls within a second");
        let watch = Stopwatch::start();
        held.finish().unwrap();
        waiter.join().unwrap().unwrap();
        assert!(watch.elapsed() < ms(250), "{:?}", watch.elapsed());
    });
    assert!(server.cli(&["PUBSUB", "CHANNELS"]).array().is_empty(), "somebody listens");
}

#[test]
fn with_a_subscriber_waiters_ask_once_a_second() {
    let server = Server::start();
    let (one, two) = (store(&server.url()), store(&server.url()));
    let (here, there) = (limited(&one), limited(&two));
    let held = here.acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| there.job().max_wait(secs(20)).run(|_| ()));
        wait_until("it waits", || there.stats().queued == 1);
        await_listening(&server, 1);
        nap(200);
        server.cli(&["CONFIG", "RESETSTAT"]);
        nap(2_500);
        let polls = server.calls("evalsha");
        assert!((2..=4).contains(&polls), "{polls} polls within 2.5 s");
        drop(held);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_resume_elsewhere_ends_a_long_wait() {
    let server = Server::start();
    let (one, two) = (store(&server.url()), store(&server.url()));
    let build = |store| valve(store).rule(ample()).build().unwrap();
    let (here, there) = (build(&one), build(&two));
    here.pause(secs(60)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| there.run(|| ()));
        wait_until("it waits", || there.stats().queued == 1);
        await_listening(&server, 1);
        nap(300);
        let watch = Stopwatch::start();
        here.resume().unwrap();
        waiter.join().unwrap().unwrap();
        assert!(watch.elapsed() < ms(300), "it learnt of the resume after {:?}", watch.elapsed());
    });
}

#[test]
fn a_lost_subscription_comes_back_and_wakes_all_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let (one, two) = (store(&server.url()), store(&proxy.url()));
    let (here, there) = (limited(&one), limited(&two));
    for cut in ["kill", "reset", "close", "stall"] {
        let took = hand_over(&server, &here, &there, || match cut {
            "kill" => drop(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"])),
            "reset" => proxy.cut_all(Cut::Reset),
            "close" => proxy.cut_all(Cut::Close),
            _ => proxy.cut_after(Way::Down, 0, Cut::Stall),
        });
        proxy.heal();
        let most = if cut == "stall" { ms(5_000) } else { ms(1_300) };
        assert!(took < most, "after {cut}: {took:?}");
    }
    // And then they come again.
    await_listening(&server, 1);
    nap(100);
    let took = hand_over(&server, &here, &there, || ());
    assert!(took < ms(300), "{took:?}");
}

#[test]
fn forged_doubled_and_foreign_notices_break_no_bound() {
    let server = Server::start();
    let store = store(&server.url());
    let rule = Rule::gcra(20, secs(1));
    let valve = valve(&store).rule(rule).global_concurrency(2, secs(5)).build().unwrap();
    let held: Vec<_> = (0..2).map(|_| valve.acquire().unwrap()).collect();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..10).map(|_| scope.spawn(|| valve.run(|| nap(1)))).collect();
        let channel = channel(&server);
        let payloads: [&[u8]; 8] = [b"fid", b"pid", b"rid", b"", b"f", b"zid", b"f\xff\xfe", b"fother"];
        let flood = |times: usize| {
            for number in 0..times {
                server.ask(&[b"PUBLISH", channel.as_bytes(), payloads[number % payloads.len()]]);
            }
        };
        server.cli(&["CONFIG", "RESETSTAT"]);
        flood(4_000);
        nap(100);
        let asked = server.calls("evalsha");
        // Three of eight are worth an ask; what comes during an ask is worth one more.
        assert!(asked <= 1_500, "{asked} asks");
        nap(400);
        assert!(server.calls("evalsha") <= asked + 1, "a flood is still being worked off");
        assert_eq!(grants(&server).len(), 2, "a forged notice started a job");
        drop(held);
        flood(400);
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
    let log = world::log(&server);
    assert!(most_held(&log) <= 2);
    assert!(most_in_any(&world::units(&grants(&server)), SECOND) <= 20);
}

/// Another's smaller limit, or that of an earlier version, is its own affair.
#[test]
fn each_process_goes_by_its_own_limit() {
    let server = Server::start();
    let store = store(&server.url());
    let (many, few) = (Counter::new(&store, []), Counter::new(&store, []));
    let ttl = secs(60);
    assert_eq!(many.take(5, ttl, &[1]).unwrap().granted, 1);
    assert_eq!(few.take(2, ttl, &[2, 3]).unwrap().granted, 1, "it starts while fewer than 2 are held");
    assert_eq!(few.take(2, ttl, &[3]).unwrap().granted, 0);
    assert_eq!(
        many.take(5, ttl, &[4, 5, 6, 7, 8]).unwrap().granted,
        3,
        "the other's limit is not written back"
    );
    assert_eq!(few.take(2, ttl, &[3]).unwrap().granted, 0);
    many.release(&[1, 4, 5]).unwrap();
    assert_eq!(few.take(2, ttl, &[3]).unwrap().granted, 0);
    many.release(&[6]).unwrap();
    assert_eq!(few.take(2, ttl, &[3]).unwrap().granted, 1);
}
