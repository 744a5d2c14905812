//! Several processes, one server: each key at most once per window, never twice at once, and no last call is missed.

use std::collections::HashMap;

use super::worker::RUNS;
use super::{call, engine, throttle};
use crate::redis::process::Process;
use crate::redis::processes::fleet_ms;
use crate::redis::proxy::{Flow, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::wait_until;
use crate::redis::{figure, nap};

/// What was written down: when by the server's clock in ms, what, which key, by whom.
struct Entry {
    at: u64,
    what: String,
    key: String,
    by: String,
}

fn entries(server: &Server) -> Vec<Entry> {
    let reply = server.cli(&["XRANGE", RUNS, "-", "+"]);
    let entry = |entry: &crate::redis::resp::Reply| {
        let (id, fields) = (entry.array()[0].text(), entry.array()[1].array());
        let at = id.split_once('-').unwrap().0.parse().unwrap();
        Entry { at, what: fields[1].text(), key: fields[3].text(), by: fields[5].text() }
    };
    reply.array().iter().map(entry).collect()
}

/// Who is judged together.
#[derive(Clone, Copy, PartialEq)]
enum Between {
    /// All instances share their windows.
    All,
    /// Each keeps its own: the engine was not always there.
    Each,
}

/// No two runs of a key overlap, and from the end of one to the start of the next a window passes.
#[track_caller]
fn check_windows(log: &[Entry], window: u64, between: Between) -> usize {
    let mut last: HashMap<(&str, &str), (&str, u64)> = HashMap::new();
    let mut runs = 0;
    for entry in log.iter().filter(|entry| entry.what != "call") {
        let group = if between == Between::All { "" } else { entry.by.as_str() };
        let before = last.insert((&entry.key, group), (&entry.what, entry.at));
        if entry.what == "start" {
            runs += 1;
            if let Some((what, at)) = before {
                assert_eq!(what, "end", "key {} ran twice at once, at {}", entry.key, entry.at);
                // Both stamps are cut to whole milliseconds.
                let gap = entry.at - at;
                assert!(gap + 1 >= window, "key {} ran again after {gap} ms, at {}", entry.key, entry.at);
            }
        }
    }
    runs
}

/// After the last call of each instance for each key, it ran that key.
#[track_caller]
fn check_covered(log: &[Entry]) -> usize {
    let mut last_call: HashMap<(&str, &str), usize> = HashMap::new();
    let mut last_start: HashMap<(&str, &str), usize> = HashMap::new();
    for (place, entry) in log.iter().enumerate() {
        match entry.what.as_str() {
            "call" => drop(last_call.insert((&entry.key, &entry.by), place)),
            "start" => drop(last_start.insert((&entry.key, &entry.by), place)),
            _ => {}
        }
    }
    for (who, place) in &last_call {
        let covered = last_start.get(who).is_some_and(|start| start > place);
        assert!(covered, "the last call of {who:?} was never run");
    }
    last_call.len()
}

fn start(server: &Server, url: &str, name: &str, more: &[(&str, &str)]) -> Process {
    let log = server.address().to_string();
    let (seed, ms) = (name.len().to_string(), fleet_ms());
    let mut settings = vec![
        ("name", name),
        ("url", url),
        ("log", log.as_str()),
        ("seed", seed.as_str()),
        ("keys", "100"),
        ("window", "100"),
        ("lasts", "25"),
        ("threads", "2"),
        ("pause", "200"),
        ("ms", ms.as_str()),
    ];
    settings.extend(more);
    Process::start("throttle", &settings)
}

#[test]
fn three_processes_run_a_key_once_per_window_between_them() {
    let server = Server::start();
    let url = server.url();
    let workers: Vec<_> = ["a", "bb", "ccc"].map(|name| start(&server, &url, name, &[])).into();
    for worker in workers {
        // So few call for the same key at a time that nobody loses ten races for it.
        assert_eq!(worker.says("left"), "0 dropped 0");
        worker.end();
    }
    let log = entries(&server);
    let runs = check_windows(&log, 100, Between::All);
    let keys = check_covered(&log);
    figure(&format!("{runs} runs, {keys} last calls covered"));
    assert!(runs >= 150, "{runs} runs");
    assert!(keys >= 150, "{keys} last calls");
    for by in ["a", "bb", "ccc"] {
        assert!(log.iter().any(|entry| entry.by == by && entry.what == "start"), "{by} never ran");
    }
}

#[test]
fn neither_a_crowd_nor_a_clock_that_is_an_hour_off_lets_two_run_a_key() {
    let server = Server::start();
    let url = server.url();
    let busy = [("keys", "5"), ("ms", "3000"), ("pause", "30"), ("threads", "3")];
    let ahead = [&busy[..], &[("skew", "3600")]].concat();
    let workers: Vec<_> =
        [("a", &busy[..]), ("bb", &ahead)].map(|(name, more)| start(&server, &url, name, more)).into();
    for worker in workers {
        let left = worker.says("left");
        assert!(left.starts_with("0 dropped "), "{left}");
        worker.end();
    }
    let runs = check_windows(&entries(&server), 100, Between::All);
    assert!(runs >= 5 * 10, "{runs} runs");
}

#[test]
fn without_the_server_each_process_keeps_its_own_windows() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let workers: Vec<_> = ["a", "bb"].map(|name| start(&server, &proxy.url(), name, &[])).into();
    nap(1_500);
    proxy.flow(Way::Down, Flow::Lost);
    nap(1_500);
    proxy.heal();
    for worker in workers {
        assert_eq!(worker.says("left"), "0 dropped 0");
        worker.end();
    }
    let log = entries(&server);
    let runs = check_windows(&log, 100, Between::Each);
    check_covered(&log);
    assert!(runs >= 150, "{runs} runs");
}

#[test]
fn a_killed_process_takes_its_calls_along() {
    let server = Server::start();
    let url = server.url();
    let window = [("window", "2000"), ("ms", "500"), ("keys", "1"), ("threads", "1"), ("lasts", "0")];
    let mut worker = start(&server, &url, "a", &window);
    wait_until("it has called again", || {
        entries(&server).iter().filter(|entry| entry.what == "call").count() >= 3
    });
    worker.kill();
    let ours: Vec<_> = server.keys().into_iter().filter(|key| key.starts_with(b"w:")).collect();
    assert_eq!(ours, [b"w:0".to_vec()], "the server has the window's key and nothing else");
    nap(2_300);
    let starts = entries(&server).iter().filter(|entry| entry.what == "start").count();
    assert_eq!(starts, 1, "a call outlived its process");
    // Nothing is left behind that would keep others from running the key.
    assert_eq!(call(&throttle("w:", 2_000, engine(&url)), "0"), valve::Ran::Now);
}
