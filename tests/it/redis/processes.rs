//! Several processes on one server: their starts together, as the scripts wrote them down, keep every bound.

use std::thread;

use valve::{Feedback, RedisStore, Rule, Subscriber};

use super::process::Process;
use super::server::Server;
use super::world::{Entry, builder, grants_in, log, most_held, store, units, valve, wait_until};
use super::{Stopwatch, figure, nap};
use crate::support::{MILLISECOND, SECOND, closest, most_in_any, ms, secs};

/// How long the processes are saturated; `VALVE_FLEET_SECONDS` makes it longer.
pub(crate) fn fleet_ms() -> String {
    let seconds = std::env::var("VALVE_FLEET_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    (seconds.unwrap_or(8) * 1_000).to_string()
}

fn of(log: &[Entry], id: &str) -> Vec<Entry> {
    log.iter().filter(|entry| entry.id == id).cloned().collect()
}

/// How many processes took part.
fn workers(log: &[Entry]) -> usize {
    let mut names: Vec<_> = grants_in(log).into_iter().map(|grant| grant.worker).collect();
    names.sort();
    names.dedup();
    names.len()
}

#[test]
fn saturated_processes_keep_every_bound_together() {
    let server = Server::start();
    let (url, length) = (server.url(), fleet_ms());
    let start = |id: &str, name: &str, rules: &str, slots: &[(&str, &str)]| {
        let settings = [("url", &*url), ("id", id), ("name", name), ("rule", rules), ("ms", &length)];
        Process::start("saturate", &[&settings[..], slots].concat())
    };
    let slots = [("slots", "5"), ("ttl", "900"), ("lasts", "7"), ("threads", "6")];
    let mut processes = Vec::new();
    for name in ["first", "second", "third"] {
        processes.push(start("paced", name, "20/1000/1", &[]));
        processes.push(start("many", name, "200/1000/10 150/1000", &slots));
    }
    // One dies while it holds slots.
    let mut victim = start("many", "victim", "200/1000/10 150/1000", &slots);
    nap(3_000);
    victim.kill();
    processes.into_iter().for_each(Process::end);

    let log = log(&server);
    let (paced, many) = (of(&log, "paced"), of(&log, "many"));
    let starts = units(&grants_in(&paced));
    assert!(closest(&starts) >= 50 * MILLISECOND, "two starts {} us apart", closest(&starts));
    assert!(most_in_any(&starts, SECOND) <= 20);
    let seconds = length.parse::<usize>().unwrap() / 1_000;
    assert!(starts.len() >= seconds * 20 * 8 / 10, "only {} starts in {seconds} s", starts.len());
    assert_eq!(workers(&paced), 3);

    let starts = units(&grants_in(&many));
    assert!(most_in_any(&starts, SECOND) < 200 + 10);
    for window in starts.chunk_by(|one, other| one.0 / SECOND == other.0 / SECOND) {
        assert!(window.len() <= 150, "{} in one window", window.len());
    }
    let seen = (starts.len(), most_in_any(&starts, SECOND), most_held(&many));
    figure(&format!(
        "in {seconds} s {} starts, at most {} in a second and {} at once",
        seen.0, seen.1, seen.2
    ));
    assert!(most_held(&many) <= 5);
    assert_eq!(workers(&many), 4);
    assert!(starts.len() >= seconds * 50, "only {} starts in {seconds} s", starts.len());
}

#[test]
fn a_burst_from_many_processes_is_one_burst() {
    let server = Server::start();
    let url = server.url();
    let start = |name: &str| {
        let settings =
            [("url", &*url), ("name", name), ("rule", "10/1000/5"), ("ms", "3000"), ("threads", "8")];
        Process::start("saturate", &settings)
    };
    ["one", "two", "three"].map(start).into_iter().for_each(Process::end);
    let log = log(&server);
    let starts = units(&grants_in(&log));
    assert!(most_in_any(&starts, SECOND) <= 14, "{starts:?}");
    assert!(starts.len() >= 25, "{} starts in 3 s", starts.len());
    assert_eq!(workers(&log), 3);
}

#[test]
fn a_pause_stops_every_process() {
    let server = Server::start();
    let (url, pausing) = (server.url(), valve(&store(&server.url())).build().unwrap());
    let start = |name: &str| {
        let settings = [("url", &*url), ("name", name), ("rule", "200/1000/10"), ("ms", "4000")];
        Process::start("saturate", &settings)
    };
    let processes = ["one", "two", "three"].map(start);
    for process in &processes {
        process.says("wall");
    }
    nap(1_000);
    pausing.pause(secs(1)).unwrap();
    let recorded = server.time();
    processes.into_iter().for_each(Process::end);
    let starts = units(&grants_in(&log(&server)));
    let early = starts.iter().filter(|(at, _)| *at < recorded).count();
    // It was recorded before its answer came, so it ends before a second after that.
    let end = recorded + SECOND - 20 * MILLISECOND;
    let meanwhile = starts.iter().filter(|(at, _)| (recorded..end).contains(at)).count();
    let late = starts.iter().filter(|(at, _)| (end..recorded + 2 * SECOND).contains(at)).count();
    assert_eq!(meanwhile, 0, "{early} starts before, {late} after");
    assert!(early > 50 && late > 50, "{early} starts before, {late} after");
    // They go on at the pace of the rule, not in a rush.
    assert!(most_in_any(&starts, SECOND) <= 209);
}

#[test]
fn a_resume_reaches_other_processes_at_once() {
    let server = Server::start();
    let url = server.url();
    let here = valve(&store(&url)).build().unwrap();
    let mut there = Process::start("wait", &[("url", &url), ("rule", "1000/1000/1000")]);
    there.says("ready");
    here.pause(secs(60)).unwrap();
    there.tell("start");
    wait_until("it listens", || !server.cli(&["PUBSUB", "CHANNELS"]).array().is_empty());
    nap(700);
    let watch = Stopwatch::start();
    here.resume().unwrap();
    let waited = there.says("waited");
    assert!(watch.elapsed() < ms(400), "it learnt of the resume after {:?}", watch.elapsed());
    assert!(waited.ends_with("true"), "{waited}");
    there.tell("stop");
    there.end();
}

#[test]
fn what_one_process_observes_stops_the_other() {
    let server = Server::start();
    let url = server.url();
    let here = valve(&store(&url)).build().unwrap();
    let mut there = Process::start("wait", &[("url", &url), ("rule", "1000/1000/1000")]);
    there.says("ready");
    let told = here.observe(&Feedback::from_response(429, [("Retry-After", "2")]));
    assert_eq!(told, Some(secs(2)));
    wait_until("the pause is recorded", || server.cli(&["EXISTS", "valve:{id}"]).int() == 1);
    there.tell("start");
    let (waited, started) = there
        .says("waited")
        .split_once(' ')
        .map(|(ms, ok)| (ms.parse::<u64>().unwrap(), ok == "true"))
        .unwrap();
    assert!(started);
    assert!(waited >= 1_000, "it waited for {waited} ms only");
    there.tell("stop");
    there.end();
}

/// Said in the guarantees: without a subscriber a remembered pause is held to its end.
#[test]
fn without_a_subscriber_a_resume_elsewhere_is_learnt_late() {
    let server = Server::start();
    let client = builder(&server.url()).subscriber(Subscriber::Off).build().unwrap();
    let (deaf, here) = (RedisStore::new(&client), store(&server.url()));
    let ample = || Rule::gcra(1_000, secs(1)).burst(1_000);
    let (deaf, here) =
        (valve(&deaf).rule(ample()).build().unwrap(), valve(&here).rule(ample()).build().unwrap());
    here.pause(ms(1_200)).unwrap();
    thread::scope(|scope| {
        let watch = Stopwatch::start();
        let waiter = scope.spawn(|| deaf.run(|| ()));
        wait_until("it waits", || deaf.stats().queued == 1);
        nap(100);
        here.resume().unwrap();
        here.run(|| ()).unwrap();
        waiter.join().unwrap().unwrap();
        assert!(watch.elapsed() < ms(2_000), "{:?}", watch.elapsed());
    });
    // Its own acts at once.
    deaf.pause(secs(60)).unwrap();
    deaf.resume().unwrap();
    let watch = Stopwatch::start();
    deaf.run(|| ()).unwrap();
    assert!(watch.elapsed() < ms(300), "{:?}", watch.elapsed());
}

/// What waits is in the process's memory and nowhere else.
#[test]
fn what_waits_dies_with_its_process() {
    let server = Server::start();
    let url = server.url();
    let here = valve(&store(&url)).rule(Rule::fixed_window(1, secs(3_600))).build().unwrap();
    here.run(|| ()).unwrap();
    let keys = server.keys();
    let mut there = Process::start("wait", &[("url", &url), ("rule", "1/3600000")]);
    there.says("ready");
    there.tell("start");
    wait_until("it asks", || server.calls("evalsha") >= 1 && server.info("connected_clients") != "1");
    nap(300);
    there.kill();
    assert_eq!(server.keys(), keys, "something of it is in the store");
    assert_eq!(grants_in(&log(&server)).len(), 1);
}
