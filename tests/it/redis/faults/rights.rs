//! Credentials and rights that are missing or wrong, and keys that are somebody else's.

use std::sync::Arc;
use std::thread;

use valve::{Error, Event, Redis, RedisStore, StoreErrorKind, Valve};

use super::refusals::{ample, check, check_modes};
use crate::redis::server::Server;
use crate::redis::world::{Counter, grants, logged, store, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

#[test]
fn credentials_that_are_refused_are_named_and_never_shown() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    logged();
    let counter = |url: &str| Counter::new(&store(url), [ample()]);
    let address = server.address();
    check(counter(&server.url()).admit(&[1]), StoreErrorKind::Auth, "password");
    let wrong = format!("redis://:wr0ng@{address}");
    check(counter(&wrong).admit(&[1]), StoreErrorKind::Auth, "password");
    let unknown = format!("redis://nobody:wr0ng@{address}");
    check(counter(&unknown).admit(&[1]), StoreErrorKind::Auth, "password");
    let right = format!("redis://:s3cret@{address}");
    assert!(counter(&right).admits());

    let client = Redis::builder(&wrong).build().unwrap();
    let store = RedisStore::new(&client);
    let events: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&events);
    let on_event = move |event: &Event| heard.lock().push(format!("{event:?}"));
    let waiting = Valve::builder("id").store(store).rule(ample()).on_event(on_event).build().unwrap();
    let result = waiting.job().max_wait(ms(300)).run(|_| ());
    let checked = client.check();
    wait_until("the refusal is told", || !events.lock().is_empty());
    let mut shown = events.lock().clone();
    shown.extend(logged());
    shown.push(format!("{client:?} {:?}", Redis::builder(&wrong)));
    shown.push(format!("{result:?} {checked:?} {}", checked.clone().unwrap_err()));
    assert_eq!(checked.unwrap_err().kind(), StoreErrorKind::Auth);
    for text in shown {
        assert!(!text.contains("wr0ng") && !text.contains("s3cret"), "a password is shown: {text}");
    }
}

#[test]
fn a_user_removed_while_in_use_is_refused_without_a_storm() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "worker", "on", ">pass", "~*", "&*", "+@all"]);
    let store = store(&format!("redis://worker:pass@{}", server.address()));
    let counter = Counter::new(&store, [ample()]);
    assert!(counter.admits());
    server.cli(&["ACL", "DELUSER", "worker"]);
    wait_until("it is refused", || {
        counter.admit(&[1]).is_err_and(|error| error.kind() == StoreErrorKind::Auth)
    });
    let waiting = valve(&store).rule(ample()).build().unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let result = waiting.job().max_wait(secs(1)).run(|_| ());
                assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
            });
        }
    });
    let attempts = server.calls("auth");
    assert!(attempts <= 12, "{attempts} attempts to log in within a second");
    check_modes(&store, StoreErrorKind::Auth, || {
        server.cli(&["ACL", "SETUSER", "worker", "on", ">pass", "~*", "&*", "+@all"]);
    });
}

/// Each missing right is named in the error; the right to publish alone is done without.
#[test]
fn missing_rights_are_named() {
    let server = Server::start();
    logged();
    let all = ["on", ">pass", "~*", "&*", "+@all"];
    for (number, denied) in ["-evalsha", "-time"].into_iter().enumerate() {
        let user = format!("user{number}");
        let right = denied.trim_start_matches('-');
        server.cli(&[&["ACL", "SETUSER", &user], &all[..], &[denied]].concat());
        let url = format!("redis://{user}:pass@{}", server.address());
        let error = Counter::new(&store(&url), [ample()]).admit(&[1]).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Permission, "{denied}: {error}");
        assert!(error.to_string().to_lowercase().contains(right), "{denied}: {error}");
        let checked = Redis::open(&url).unwrap().check().unwrap_err();
        assert_eq!(checked.kind(), StoreErrorKind::Permission, "{denied}: {checked}");
        assert!(checked.to_string().to_lowercase().contains(right), "{denied}: {checked}");
    }
    assert_eq!(grants(&server).len(), 0);
}

#[test]
fn without_the_right_to_publish_waiters_poll() {
    let server = Server::start();
    logged();
    server.cli(&["ACL", "SETUSER", "mute", "on", ">pass", "~*", "resetchannels", "+@all"]);
    let url = format!("redis://mute:pass@{}", server.address());
    let (one, two) = (store(&url), store(&url));
    let limited = |store| valve(store).rule(ample()).global_concurrency(1, secs(5)).build().unwrap();
    let (here, there) = (limited(&one), limited(&two));
    for round in 0..3 {
        let held = here.acquire().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| there.run(|| ()));
            wait_until("it waits", || there.stats().queued == 1);
            nap(50);
            let watch = Stopwatch::start();
            held.finish().unwrap();
            waiter.join().unwrap().unwrap();
            assert!(
                watch.elapsed() < ms(400),
                "round {round}: the waiter learns of it after {:?}",
                watch.elapsed()
            );
        });
    }
    assert_eq!(grants(&server).len(), 6, "each start is one grant");
    let warned = logged().iter().filter(|line| line.starts_with("WARN") && line.contains("PUBLISH")).count();
    assert!((1..=2).contains(&warned), "once for each client: {:?}", logged());
    let checked = Redis::open(&url).unwrap().check();
    assert_eq!(checked.unwrap_err().kind(), StoreErrorKind::Permission);
}

#[test]
fn a_foreign_key_under_our_name_is_reported_and_kept() {
    let server = Server::start();
    logged();
    server.cli(&["LPUSH", "valve:{id}", "theirs"]);
    let store = store(&server.url());
    let counter = Counter::new(&store, [ample()]);
    check(counter.admit(&[1]), StoreErrorKind::Corrupt, "valve:{id}");
    check(counter.pause(secs(1)), StoreErrorKind::Corrupt, "valve:{id}");
    server.cli(&["SET", "valve:{slots}:l", "theirs"]);
    let slots = Counter::of("slots", &store, []);
    check(slots.take(1, secs(1), &[1]), StoreErrorKind::Corrupt, "valve:{slots}:l");
    check(slots.renew(secs(1), &[1]), StoreErrorKind::Corrupt, "valve:{slots}:l");
    let waiting = valve(&store).rule(ample()).build().unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let timed_out = waiting.job().max_wait(secs(1)).run(|_| ());
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
    let asks = server.calls("evalsha");
    assert!((2..=8).contains(&asks), "{asks} asks within a second");
    let warned =
        logged().iter().filter(|line| line.starts_with("WARN") && line.contains("valve:{id}")).count();
    assert_eq!(warned, 1, "{:?}", logged());
    assert_eq!(server.cli(&["LRANGE", "valve:{id}", "0", "-1"]).array()[0].text(), "theirs");
    assert_eq!(server.cli(&["GET", "valve:{slots}:l"]).text(), "theirs");
    check_modes(&store, StoreErrorKind::Corrupt, || {
        server.cli(&["DEL", "valve:{id}"]);
    });
}
