//! Handles go and valves close while the server is stalled: everything ends in bounded time, and nothing is left.

use std::cell::RefCell;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use valve::{Error, OwnedPermit, RedisStore, Rule, Scheduler, Valve};

use crate::redis::proxy::{Flow, Proxy};
use crate::redis::server::Server;
use crate::redis::world::{builder, hasty_store, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

fn ample() -> Rule {
    Rule::gcra(1_000, secs(1)).burst(1_000).into()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn closing_ends_all_waits_while_the_server_is_stalled() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(500));
    let valve = valve(&store).rule(ample()).build().unwrap();
    valve.run(|| ()).unwrap();
    proxy.both(Flow::Held);
    let closed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                if matches!(valve.run(|| ()), Err(Error::Closed)) {
                    closed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("all wait", || valve.stats().queued == 9);
        let watch = Stopwatch::start();
        valve.close();
        assert!(watch.elapsed() < ms(50), "close took {:?}", watch.elapsed());
        wait_until("those in the queue are told", || closed.load(Ordering::Relaxed) >= 9);
        assert!(watch.elapsed() < ms(200), "{:?}", watch.elapsed());
    });
    assert_eq!(closed.load(Ordering::Relaxed), 10);
}

#[test]
fn handles_may_go_anywhere_while_the_server_is_stalled() {
    thread_local! {
        static LAST: RefCell<Option<(Valve, OwnedPermit)>> = const { RefCell::new(None) };
    }
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    // The scheduler and the watch over descriptors that last for ever are there already.
    Valve::builder("first").build().unwrap().run(|| ()).unwrap();
    let before = (threads(), open_files());
    let scheduler = Scheduler::new().unwrap();
    let build = || {
        let client = builder(&proxy.url()).timeout(ms(300)).build().unwrap();
        let store = RedisStore::new(&client);
        let valve = valve(&store).rule(ample()).global_concurrency(50, secs(5)).scheduler(&scheduler);
        let valve = valve.build().unwrap();
        valve.run(|| ()).unwrap();
        valve
    };
    let quickly = |what: &str, act: &mut dyn FnMut()| {
        let watch = Stopwatch::start();
        act();
        assert!(watch.elapsed() < ms(300) + ms(200), "{what} took {:?}", watch.elapsed());
    };
    let (dropped, elsewhere, inside, local) = (build(), build(), build(), build());
    let permit = dropped.acquire_owned().unwrap();
    let kept = local.acquire_owned().unwrap();
    let own = inside.clone();
    inside
        .clone()
        .run(|| {
            proxy.both(Flow::Held);
            let mut handles = Some((inside, own));
            quickly("dropping inside a job", &mut || drop(handles.take()));
        })
        .unwrap();
    let mut handles = Some((permit, dropped));
    quickly("dropping a permit and its valve", &mut || drop(handles.take()));
    let mut handle = Some(elsewhere);
    quickly("dropping on another thread", &mut || {
        let handle = handle.take();
        thread::scope(|scope| scope.spawn(move || drop(handle)).join().unwrap());
    });
    let mut handles = Some((local, kept));
    quickly("dropping in a destructor of a thread's own", &mut || {
        let handles = handles.take();
        let leave = move || LAST.with(|last| *last.borrow_mut() = handles);
        thread::scope(|scope| scope.spawn(leave).join().unwrap());
    });
    proxy.heal();
    scheduler.shutdown(secs(5)).unwrap();
    drop((scheduler, proxy));
    // The proxy's own threads end within its poll, ours once their last call is over.
    wait_until("nothing is left", || threads() <= before.0 && open_files() <= before.1);
}

#[test]
fn a_hundred_clients_come_and_go_without_a_trace() {
    let server = Server::start();
    Valve::builder("first").build().unwrap().run(|| ()).unwrap();
    nap(50);
    let before = (threads(), open_files());
    let watch = Stopwatch::start();
    for _ in 0..100 {
        let store = RedisStore::new(&builder(&server.url()).build().unwrap());
        let valve = valve(&store).rule(ample()).global_concurrency(5, secs(5)).build().unwrap();
        valve.run(|| ()).unwrap();
        let watch = Stopwatch::start();
        drop((valve, store));
        assert!(watch.elapsed() < secs(1), "{:?}", watch.elapsed());
    }
    assert!(watch.elapsed() < secs(20), "{:?}", watch.elapsed());
    let watch = Stopwatch::start();
    wait_until("their threads end", || threads() <= before.0 + 2 && open_files() <= before.1 + 2);
    assert!(watch.elapsed() < secs(1), "{:?}", watch.elapsed());
}

#[test]
fn a_closed_client_refuses_and_its_connections_go() {
    let server = Server::start();
    let clients = || server.cli(&["CLIENT", "LIST"]).text().lines().count();
    let before = clients();
    let client = builder(&server.url()).build().unwrap();
    let store = RedisStore::new(&client);
    let valve = valve(&store).rule(ample()).build().unwrap();
    valve.run(|| ()).unwrap();
    client.close(secs(1)).unwrap();
    assert!(client.check().is_err());
    let result = valve.job().max_wait(ms(100)).run(|_| ());
    assert!(result.is_err(), "{result:?}");
    drop((valve, store, client));
    wait_until("its connections are closed", || clients() == before);
}
