//! Pauses and order on one server: what is recorded, what is remembered, and who goes first.

use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use valve::{Blocked, Error, Event, Feedback, OnStoreError, Rule, StoreErrorKind};

use super::proxy::{Flow, Proxy, Way};
use super::server::Server;
use super::world::{Counter, hasty_store, store, valve, wait_until};
use super::{Stopwatch, nap};
use crate::support::{ms, secs};

fn ample() -> Rule {
    Rule::gcra(1_000, secs(1)).burst(1_000).into()
}

#[test]
fn a_known_pause_spares_the_server() {
    let mut server = Server::start();
    let valve =
        valve(&store(&server.url())).rule(ample()).on_store_error(OnStoreError::Open).build().unwrap();
    valve.run(|| ()).unwrap();
    let watch = Stopwatch::start();
    valve.pause(secs(3)).unwrap();
    // That it listens from now on is news, after which it asks once.
    wait_until("it listens", || !server.cli(&["PUBSUB", "CHANNELS"]).array().is_empty());
    nap(100);
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    server.cli(&["CONFIG", "RESETSTAT"]);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..100).map(|_| scope.spawn(|| valve.run(|| ()))).collect();
        wait_until("all wait", || valve.stats().queued == 100);
        nap(500);
        let asked = server.calls("evalsha") + server.calls("eval");
        assert_eq!(asked, 0, "the server was asked during a pause that is known");
        // It also holds while the server is gone and jobs start without its rules.
        server.kill();
        let early = valve.job().max_wait(ms(300)).run(|_| ());
        assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
            assert!(watch.elapsed() >= secs(3) - ms(1), "it started after {:?}", watch.elapsed());
        }
    });
}

/// V28: who knows the pause from having made it is never refused by the server, and listens all the same.
#[test]
fn a_resume_elsewhere_reaches_who_paused() {
    let server = Server::start();
    let (one, two) = (store(&server.url()), store(&server.url()));
    let (here, there) = (valve(&one).build().unwrap(), valve(&two).build().unwrap());
    here.pause(secs(60)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| here.job().max_wait(secs(10)).run(|_| ()));
        wait_until("it waits", || here.stats().queued == 1);
        nap(700);
        let watch = Stopwatch::start();
        there.resume().unwrap();
        waiter.join().unwrap().unwrap();
        assert!(watch.elapsed() < secs(1), "it learnt of the resume after {:?}", watch.elapsed());
    });
}

#[test]
fn pauses_only_lengthen_and_resume_ends_any() {
    let server = Server::start();
    let (one, two) = (store(&server.url()), store(&server.url()));
    let (here, there) = (Counter::new(&one, [ample()]), Counter::new(&two, [ample()]));
    let left = |counter: &Counter| counter.admit(&[1]).unwrap().refusal.and_then(|refusal| refusal.pause);
    assert!(here.pause(secs(5)).unwrap() <= secs(5));
    let kept = there.pause(secs(1)).unwrap();
    assert!(kept > secs(4) && kept <= secs(5), "a shorter pause leaves {kept:?}");
    assert!(there.pause(secs(60)).unwrap() > secs(59));
    assert!(left(&here).unwrap() > secs(59));
    assert_eq!(here.admit(&[1]).unwrap().granted, 0);
    here.resume().unwrap();
    assert_eq!(left(&there), None);
    assert!(there.admits());
}

#[test]
fn a_pause_is_confirmed_or_failed() {
    let mut server = Server::start();
    let failed: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&failed);
    let on_event = move |event: &Event| {
        if matches!(event, Event::PauseFailed { .. }) {
            heard.lock().push(format!("{event:?}"));
        }
    };
    let valve = valve(&store(&server.url())).rule(ample()).on_event(on_event).build().unwrap();
    valve.pause(secs(60)).unwrap();
    assert!(!Counter::new(&store(&server.url()), [ample()]).admits(), "it was confirmed and not recorded");
    valve.resume().unwrap();
    valve.run(|| ()).unwrap();
    server.kill();
    for result in [valve.pause(secs(60)), valve.resume()] {
        match result {
            Err(Error::StoreUnavailable(error)) => assert_eq!(error.kind(), StoreErrorKind::Unreachable),
            other => panic!("{other:?}"),
        }
    }
}

/// What a provider says is heeded at once and recorded in the background, once, whether the server answers or not.
#[test]
fn observing_does_not_wait_for_a_stalled_server() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let failed: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&failed);
    let on_event = move |event: &Event| {
        if matches!(event, Event::PauseFailed { .. }) {
            heard.lock().push(format!("{event:?}"));
        }
    };
    let store = hasty_store(&proxy.url(), ms(200));
    let valve = valve(&store).rule(ample()).on_event(on_event).build().unwrap();
    valve.run(|| ()).unwrap();
    let answer = Feedback::from_response(429, [("Retry-After", "60")]);
    proxy.both(Flow::Lost);
    let watch = Stopwatch::start();
    assert_eq!(valve.observe(&answer), Some(secs(60)));
    assert!(watch.elapsed() < ms(20), "it took {:?}", watch.elapsed());
    assert!(matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. })));
    wait_until("the failure is told", || failed.lock().len() == 1);
    proxy.heal();
    nap(500);
    assert_eq!(failed.lock().len(), 1, "{:?}", failed.lock());
    assert!(Counter::new(&store, [ample()]).admits(), "the write was tried again");
    assert_eq!(valve.observe(&answer), Some(secs(60)));
    wait_until("the pause is recorded", || !Counter::new(&store, [ample()]).admits());
    valve.resume().unwrap();
    valve.run(|| ()).unwrap();
}

/// Neither the poll for slots nor the second's look of those who listen: the hint says when.
#[test]
fn a_wait_for_a_rate_asks_at_its_hint_only() {
    let server = Server::start();
    let store = store(&server.url());
    let builder = valve(&store).rule(Rule::gcra(1, secs(2))).global_concurrency(5, secs(5));
    let valve = builder.build().unwrap();
    valve.run(|| ()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| valve.run(|| ()));
        wait_until("it waits", || valve.stats().queued == 1);
        nap(100);
        server.cli(&["CONFIG", "RESETSTAT"]);
        nap(1_500);
        assert_eq!(server.calls("evalsha"), 0, "it asks before its hint");
        waiter.join().unwrap().unwrap();
        let asks = server.calls("evalsha");
        assert!(asks <= 3, "{asks} scripts for one start and its release");
    });
}

/// Two connections, one of them slow: a later call must not come first by the faster one.
#[test]
fn equal_priorities_start_in_call_order_over_a_slow_connection() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let valve = valve(&store(&proxy.url())).rule(Rule::gcra(200, secs(1))).build().unwrap();
    valve.run(|| ()).unwrap();
    let order: Mutex<Vec<u64>> = Mutex::default();
    thread::scope(|scope| {
        let (valve, order, proxy) = (&valve, &order, &proxy);
        let held = valve.pause(ms(400));
        held.unwrap();
        for number in 0..30 {
            scope.spawn(move || {
                let stamp = valve.job().run(|running| running.admitted_at()).unwrap();
                let stamp = stamp.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
                order.lock().push(stamp * 100 + number);
            });
            wait_until("it waits", || valve.stats().queued == number as usize + 1);
        }
        for step in 0..40 {
            proxy.delay(Way::Down, ms(step % 4 * 10));
            nap(15);
        }
        proxy.heal();
    });
    let mut order = order.into_inner();
    order.sort_unstable();
    let numbers: Vec<_> = order.into_iter().map(|entry| entry % 100).collect();
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
}
