//! Rates that were passed, starved or miscounted.

use std::thread;

use valve::{Error, Rule};

use crate::redis::proxy::{Cut, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::{Counter, grants, hasty_store, store, units, valve};
use crate::redis::{Stopwatch, nap};
use crate::support::{MILLISECOND, Random, SECOND, most_in_any, ms, secs, us};

/// With thousands a second nothing was ever limited, for the keys expired at once.
#[test]
fn thousands_a_second_are_still_limited() {
    let server = Server::start();
    let store = store(&server.url());
    let counter = Counter::new(&store, [Rule::gcra(5_000, secs(1)).into()]);
    let watch = Stopwatch::start();
    while watch.elapsed() < secs(2) {
        if counter.admit(&[1; 64]).unwrap().granted > 0 {
            let left = server.cli(&["PTTL", "valve:{id}"]).int();
            assert!(left >= 1 || left == -2, "the key lives {left} ms more");
        }
    }
    let starts = units(&grants(&server));
    assert!(most_in_any(&starts, SECOND) <= 5_000);
    assert!(starts.len() > 500, "{} starts", starts.len());
    let pairs = starts.windows(2).map(|pair| pair[1].0 - pair[0].0).min().unwrap();
    assert!(pairs >= 200, "{pairs} us apart");
}

/// A fraction of a millisecond made an expiry that the server refused.
#[test]
fn three_hundred_a_second_drift_nowhere() {
    let server = Server::start();
    let store = store(&server.url());
    let valve = valve(&store).rule(Rule::gcra(300, secs(1))).build().unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..75 {
                    valve.run(|| ()).unwrap();
                }
            });
        }
    });
    let starts = units(&grants(&server));
    assert_eq!(starts.len(), 600);
    assert!(most_in_any(&starts, SECOND) <= 300);
    let took = starts[599].0 - starts[0].0;
    assert!((1_996_666..20_000_000).contains(&took), "600 starts took {took} us");
}

/// A count that outlived its window starved the next two.
#[test]
fn each_window_admits_its_limit_and_no_more() {
    let server = Server::start();
    let store = store(&server.url());
    let valve = valve(&store).rule(Rule::fixed_window(10, secs(1))).build().unwrap();
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while watch.elapsed() < secs(5) {
                    let _ = valve.job().max_wait(secs(5).saturating_sub(watch.elapsed())).run(|_| ());
                }
            });
        }
    });
    let starts = units(&grants(&server));
    let windows: Vec<_> =
        starts.chunk_by(|one, other| one.0 / SECOND == other.0 / SECOND).map(<[_]>::len).collect();
    assert!(windows.len() >= 5, "{windows:?}");
    // The first and the last may have been seen in part.
    assert!(windows[1..windows.len() - 1].iter().all(|count| *count == 10), "{windows:?}");
    assert!(windows.iter().all(|count| *count <= 10), "{windows:?}");
}

/// A cost that one rule can never admit was answered as if it might, and paid to the other.
#[test]
fn one_rule_too_small_spends_no_other() {
    let server = Server::start();
    let store = store(&server.url());
    let rules = || [Rule::gcra(10, secs(1)).burst(10).into(), Rule::fixed_window(3, secs(1)).into()];
    let valve = rules().into_iter().fold(valve(&store), valve::ValveBuilder::rule).build().unwrap();
    for result in [valve.job().cost(5).run(|_| ()), valve.job().cost(5).try_acquire().map(drop)] {
        assert!(matches!(result, Err(Error::CostTooLarge { max: 3, .. })), "{result:?}");
    }
    assert!(grants(&server).is_empty() && server.keys().is_empty());
    let counter = Counter::new(&store, rules());
    assert_eq!(counter.admit(&[1; 3]).unwrap().granted, 3);
}

/// Short intervals became expiries that were refused.
#[test]
fn short_intervals_work_or_are_refused_when_a_valve_is_built() {
    let server = Server::start();
    let store = store(&server.url());
    for interval in [us(1), us(600), us(1_500), ms(100)] {
        let rules: [Rule; 2] = [Rule::gcra(1, interval).into(), Rule::fixed_window(1, interval).into()];
        for rule in rules {
            match valve(&store).rule(rule).build() {
                Ok(valve) => (0..5).for_each(|_| valve.run(|| ()).unwrap()),
                Err(Error::Invalid { .. }) => {}
                Err(other) => panic!("{interval:?}: {other:?}"),
            }
        }
    }
}

/// The count was raised, the expiry was not set, and the limit stood for ever.
#[test]
fn cut_connections_leave_no_key_for_ever() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(100));
    let counter = Counter::new(&store, [Rule::gcra(1_000, secs(1)).burst(100).into()]);
    let mut random = Random::new(3);
    for round in 0..1_000 {
        let way = if random.below(2) == 0 { Way::Up } else { Way::Down };
        proxy.cut_after(
            way,
            random.below(400) as usize,
            if round % 2 == 0 { Cut::Reset } else { Cut::Close },
        );
        let _ = counter.take(3, ms(200), &[round + 1]);
    }
    proxy.heal();
    for key in server.keys().iter().filter(|key| key.starts_with(b"valve:")) {
        let left = server.ask(&[b"PTTL", key]).int();
        assert!(left >= 0 || left == -2, "{} has no end: {left}", String::from_utf8_lossy(key));
    }
    nap(300);
    assert_eq!(counter.take(3, ms(200), &[9_999]).unwrap().granted, 1);
}

#[test]
fn a_key_whose_end_somebody_removed_blocks_nobody() {
    let server = Server::start();
    let store = store(&server.url());
    let counter =
        Counter::new(&store, [Rule::gcra(1, ms(300)).into(), Rule::fixed_window(5, ms(300)).into()]);
    assert!(counter.admits());
    assert_eq!(server.cli(&["PERSIST", "valve:{id}"]).int(), 1);
    assert!(!counter.admits());
    nap(310);
    assert!(counter.admits(), "it blocks after its interval");
    // The end is not set anew with each start, but before it has come.
    nap(1_500);
    assert!(counter.admits());
    assert!(server.cli(&["PTTL", "valve:{id}"]).int() > 0, "its end was not set again");
}

/// A rate and nothing else: what one start leaves lives no longer than it matters.
#[test]
fn what_a_start_leaves_soon_goes() {
    let server = Server::start();
    let store = store(&server.url());
    assert!(Counter::of("rate", &store, [Rule::gcra(1, secs(1)).into()]).admits());
    let left = server.cli(&["PTTL", "valve:{rate}"]).int();
    // A second more, so that not each start has to put it off; and what is left is rounded up.
    assert!((1..=2_001).contains(&left), "{left} ms for a debt of one second");
    Counter::of("paused", &store, []).pause(ms(700)).unwrap();
    let left = server.cli(&["PTTL", "valve:{paused}"]).int();
    assert!((1..=1_701).contains(&left), "{left} ms for a pause of 700");
    let slots = Counter::of("slots", &store, []);
    assert_eq!(slots.take(1, ms(700), &[1]).unwrap().granted, 1);
    let left = server.cli(&["PTTL", "valve:{slots}:l"]).int();
    assert!((1..=1_701).contains(&left), "{left} ms for a lease of 700");
    let stamp = |key: &str| server.cli(&["EXISTS", key]).int();
    nap(2_100);
    let kept = ["valve:{rate}", "valve:{paused}", "valve:{slots}:l"].map(stamp);
    assert_eq!(kept, [0, 0, 0]);
    // It remembers the fencing token.
    assert_eq!(stamp("valve:{slots}"), 1);
    assert!(server.cli(&["PTTL", "valve:{slots}"]).int() <= 3_601 * (SECOND / MILLISECOND) as i64);
}
