//! Slots that were lost, given twice, or taken for ever.

use valve::{Error, Valve};

use crate::redis::proxy::{Flow, Proxy, Way};
use crate::redis::server::Server;
use crate::redis::world::{Counter, grants, hasty_store, leases, log, most_held, store, valve, wait_until};
use crate::redis::{Stopwatch, nap};
use crate::support::{ms, secs};

fn one_slot(server: &Server) -> Valve {
    valve(&store(&server.url())).global_concurrency(1, secs(5)).build().unwrap()
}

/// However a job ends, its slot is back for the next, elsewhere too.
#[test]
fn a_slot_comes_back_however_its_job_ends() {
    let server = Server::start();
    let (here, there) = (one_slot(&server), one_slot(&server));
    let panics = || {
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| here.run(|| panic!("a job's own"))));
        assert!(caught.is_err());
    };
    let ends: [(&str, &dyn Fn()); 5] = [
        ("a value", &|| here.run(|| ()).unwrap()),
        ("an error", &|| assert!(here.try_run(|| Err::<(), _>(Error::Cancelled)).is_err())),
        ("a panic", &panics),
        ("a dropped permit", &|| drop(here.acquire().unwrap())),
        ("a finished permit", &|| here.acquire().unwrap().finish().unwrap()),
    ];
    for (what, end) in ends {
        end();
        let watch = Stopwatch::start();
        there.job().max_wait(secs(2)).run(|_| ()).unwrap_or_else(|error| panic!("after {what}: {error}"));
        assert!(watch.elapsed() < ms(500), "after {what}: {:?}", watch.elapsed());
    }
    wait_until("all is released", || leases(&server) == 0);
    assert!(most_held(&log(&server)) <= 1);
}

/// Renewed each third of its length, never late, for as long as its job runs.
#[test]
fn leases_are_renewed_each_third_of_their_length() {
    let server = Server::start();
    let valve = valve(&store(&server.url())).global_concurrency(3, ms(900)).build().unwrap();
    let held: Vec<_> = (0..3).map(|_| valve.acquire().unwrap()).collect();
    nap(2_450);
    for permit in held {
        permit.finish().unwrap();
    }
    let log = log(&server);
    assert_eq!(most_held(&log), 3);
    for grant in grants(&server) {
        let stamps: Vec<_> = log
            .iter()
            .filter(|entry| entry.token == grant.token && entry.what != crate::redis::world::What::Release)
            .map(|entry| entry.at)
            .collect();
        assert!((7..=12).contains(&stamps.len()), "renewed at {stamps:?}");
        let widest = stamps.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(widest < 500_000, "{widest} us without a renewal");
    }
}

/// The slot of a grant that nobody heard of comes back, and is renewed by nobody.
#[test]
fn an_orphaned_lease_ends_by_itself() {
    let server = Server::start();
    let proxy = Proxy::to(server.address());
    let store = hasty_store(&proxy.url(), ms(150));
    let counter = Counter::new(&store, []);
    assert_eq!(counter.take(1, ms(50), &[1]).unwrap().granted, 1);
    nap(60);
    proxy.flow(Way::Down, Flow::Lost);
    counter.take(1, ms(500), &[2]).unwrap_err();
    proxy.heal();
    let orphan = grants(&server)[1].clone();
    let other = Counter::new(&crate::redis::world::store(&server.url()), []);
    assert_eq!(other.take(1, ms(500), &[3]).unwrap().granted, 0, "the orphan holds its slot");
    wait_until("it ends", || other.take(1, ms(500), &[3]).unwrap().granted == 1);
    let next = grants(&server)[2].clone();
    assert!((500_000..700_000).contains(&(next.at - orphan.at)), "{} us", next.at - orphan.at);
    assert!(next.fence > orphan.fence);
    assert!(
        !log(&server).iter().any(|entry| matches!(entry.what, crate::redis::world::What::Renewal { .. }))
    );
}

/// The rate is not paid by those who get no slot, and no slot is taken by those who lack the rate.
#[test]
fn slots_and_rates_are_taken_together_or_not_at_all() {
    let server = Server::start();
    let store = store(&server.url());
    let rule = || [valve::Rule::fixed_window(3, secs(3_600)).into()];
    let counter = Counter::new(&store, rule());
    assert_eq!(counter.take(1, secs(60), &[1]).unwrap().granted, 1);
    for token in 2..10 {
        assert_eq!(counter.take(1, secs(60), &[token]).unwrap().granted, 0);
    }
    counter.release(&[1]).unwrap();
    assert_eq!(
        counter.take(9, secs(60), &[20, 21, 22, 23]).unwrap().granted,
        2,
        "those refused paid the rate"
    );
    assert_eq!(leases(&server), 2, "one refused for its rate took a slot");
}
