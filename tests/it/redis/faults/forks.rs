//! A forked child has the parent's sockets and none of its threads: it touches neither.

use std::time::Duration;

use valve::{Error, Redis, RedisStore, Rule, Valve};

use crate::redis::server::Server;
use crate::redis::world::{builder, grants, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::secs;

#[test]
fn a_forked_child_leaves_its_parents_connections_alone() {
    let server = Server::start();
    let client = builder(&server.url()).build().unwrap();
    let store = RedisStore::new(&client);
    let rule = || Rule::gcra(1_000, secs(1)).burst(1_000);
    let valve = valve(&store).rule(rule()).global_concurrency(5, secs(5)).build().unwrap();
    valve.run(|| ()).unwrap();
    let permit = valve.acquire_owned().unwrap();
    let list = || server.cli(&["CLIENT", "LIST"]).text();
    wait_until("it was asked whether the server evicts", || {
        server.calls("config|get") == 1 && !list().contains("cmd=config")
    });
    let clients = || list().lines().count();
    let (before, url) = (clients(), server.url());
    in_a_child(|| {
        let watch = Stopwatch::start();
        let refused = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
        let answers = [
            refused(valve.job().max_wait(Duration::from_millis(500)).run(|_| ())),
            refused(valve.pause(secs(1))),
            refused(Redis::open(&url).map(drop)),
            refused(client.close(secs(1))),
            client.check().is_err(),
            refused(Valve::builder("id").store(store.clone()).build().map(drop)),
            {
                drop((permit, valve.clone(), store.clone(), client.clone()));
                true
            },
            watch.elapsed() < secs(1),
        ];
        answers.iter().position(|good| !good).map_or(0, |place| place as i32 + 1)
    });
    assert_eq!(clients(), before, "the child opened or closed a connection");
    for _ in 0..100 {
        valve.run(|| ()).unwrap();
    }
    assert_eq!(grants(&server).len(), 102);
}

/// Forks; the child ends with what `child` gives, which must be 0 and come within 10 s.
#[track_caller]
#[expect(unsafe_code, reason = "there is no safe fork")]
fn in_a_child(child: impl FnOnce() -> i32) {
    // SAFETY: the child calls the crate under test, which promises to take no lock then, and `_exit`.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "{}", std::io::Error::last_os_error());
    if process == 0 {
        let status = child();
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit(status) };
    }
    let watch = Stopwatch::start();
    let mut status = 0;
    // SAFETY: the status outlives the call.
    while unsafe { libc::waitpid(process, &mut status, libc::WNOHANG) } != process {
        if watch.elapsed() > secs(10) {
            // SAFETY: a signal to our own child.
            unsafe { libc::kill(process, libc::SIGKILL) };
            panic!("the child hangs");
        }
        nap(1);
    }
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the first wrong answer");
}
