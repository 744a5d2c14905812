//! The server's clock is stepped while valves go by it.

use valve::{Abort, Error, Rule};

use crate::redis::Stopwatch;
use crate::redis::process::Process;
use crate::redis::server::Server;
use crate::redis::world::{Counter, grants, store, units, valve, wait_until};
use crate::support::{SECOND, most_in_any, ms, secs};

#[test]
fn a_clock_that_leaps_ahead_ends_what_was_due_by_then() {
    let server = Server::with_clock();
    let store = store(&server.url());
    let counter = Counter::new(&store, [Rule::gcra(1, secs(10)).into()]);
    assert!(counter.admits());
    let answer = counter.admit(&[1]).unwrap();
    let (_, wait) = answer.refusal.unwrap().rate.unwrap();
    assert!(wait > secs(9) && wait <= secs(10), "{wait:?}");
    let plain = Counter::of("plain", &store, []);
    assert_eq!(plain.take(1, secs(5), &[1]).unwrap().granted, 1);
    assert!(plain.pause(secs(20)).unwrap() <= secs(20));

    server.turn_clock(30);
    assert!(counter.admits(), "the debt was due");
    assert!(!counter.admits(), "the limit holds from there on");
    assert_eq!(plain.renew(secs(5), &[1]).unwrap(), [false], "the lease was due");
    assert_eq!(plain.take(1, secs(5), &[2]).unwrap().granted, 1, "the pause and the lease were due");
}

#[test]
fn a_job_whose_lease_a_leap_of_the_clock_ends_is_told_so() {
    let server = Server::with_clock();
    let store = store(&server.url());
    let valve = valve(&store).global_concurrency(1, ms(1_500)).build().unwrap();
    let result = valve.job().run(|running| {
        server.turn_clock(30);
        wait_until("the job is told of its loss", || running.is_aborted());
        running.aborted()
    });
    assert!(matches!(result, Err(Error::LeaseLost)), "{result:?}");
    let after = valve.job().run(|running| running.aborted());
    assert_eq!(after.unwrap(), None::<Abort>);
}

#[test]
fn a_clock_that_falls_back_an_hour_stalls_nothing() {
    let server = Server::with_clock();
    let store = store(&server.url());
    let paced = Counter::of("paced", &store, [Rule::gcra(10, secs(1)).into()]);
    let window = Counter::of("window", &store, [Rule::fixed_window(5, secs(1)).into()]);
    let plain = Counter::of("plain", &store, []);
    let paused = Counter::of("paused", &store, []);
    assert!(paced.admits());
    assert_eq!(plain.take(1, ms(600), &[1]).unwrap().granted, 1);
    paused.pause(ms(400)).unwrap();
    let watch = Stopwatch::start();
    let before = window.admit(&[1; 3]).unwrap();
    assert_eq!(before.granted, 3);

    server.turn_clock(-3_600);
    let refused = window.admit(&[1; 5]).unwrap();
    assert_eq!(refused.granted, 2, "a later window becomes the current one, its count included");
    let (_, wait) = refused.refusal.unwrap().rate.unwrap();
    assert!(wait <= secs(1), "{wait:?}");
    assert_eq!(plain.take(1, ms(600), &[2]).unwrap().granted, 0, "the lease keeps its length");
    wait_until("the rate goes on", || paced.admits());
    assert!(watch.elapsed() < secs(10), "it took {:?}", watch.elapsed());
    wait_until("the window goes on", || window.admit(&[1; 5]).unwrap().granted == 5);
    wait_until("the pause ends", || paused.admits());
    assert!(watch.elapsed() >= ms(400), "the pause keeps its length");
    wait_until("the lease ends", || plain.take(1, ms(600), &[2]).unwrap().granted == 1);
    assert!(watch.elapsed() >= ms(600), "the lease keeps its length");
    assert!(watch.elapsed() < secs(10), "it took {:?}", watch.elapsed());
}

#[test]
fn a_valve_goes_on_when_the_clock_falls_back() {
    let server = Server::with_clock();
    let valve = valve(&store(&server.url())).rule(Rule::gcra(20, secs(1))).build().unwrap();
    let watch = Stopwatch::start();
    for run in 0..30 {
        if run == 10 {
            server.turn_clock(-3_600);
        }
        if run == 20 {
            server.turn_clock(3_600);
        }
        valve.run(|| ()).unwrap();
    }
    assert!(watch.elapsed() >= ms(17 * 50), "two leaps end two debts at most: {:?}", watch.elapsed());
    assert!(watch.elapsed() < secs(10), "it took {:?}", watch.elapsed());
}

/// Ten nodes passed their own clocks to the script of another limiter; a slow one set the time back for all.
#[test]
fn the_clocks_of_the_clients_never_matter() {
    let server = Server::start();
    let url = server.url();
    let workers = ["-10", "10"].map(|skew| {
        Process::start(
            "saturate",
            &[("url", &url), ("name", skew), ("skew", skew), ("rule", "4/1000/1"), ("ms", "3000")],
        )
    });
    let walls = workers.each_ref().map(|worker| worker.says("wall").parse::<u64>().unwrap());
    assert!(walls[1] - walls[0] > 15, "their clocks are not apart: {walls:?}");
    workers.into_iter().for_each(Process::end);
    let grants = units(&grants(&server));
    assert!(most_in_any(&grants, SECOND) <= 4, "{grants:?}");
    assert!(grants.len() >= 9, "{grants:?}");
}
