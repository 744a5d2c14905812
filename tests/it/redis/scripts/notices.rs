//! Who is told: of pauses and resumes everybody, of releases those who wait.

use valve::{Answer, Ask, Redis, RedisStore, RuleSet, Slots, Store, Token};

use crate::redis::resp::{Client, Reply};
use crate::redis::server::Server;
use crate::redis::world::Counter;
use crate::support::{ms, secs};

/// One who hears all notices of the default prefix.
pub(super) struct Listener(Client);

impl Listener {
    pub(super) fn new(server: &Server) -> Listener {
        let mut client = server.client();
        client.ask(&[b"SUBSCRIBE", b"valve:notices"]).unwrap();
        Listener(client)
    }

    /// What was said since the last time.
    pub(super) fn heard(&mut self, server: &Server) -> Vec<String> {
        server.cli(&["PUBLISH", "valve:notices", "end"]);
        let mut heard = Vec::new();
        loop {
            match self.0.receive().unwrap().array() {
                [_, _, Reply::Bytes(text)] if text == b"end" => return heard,
                [_, _, text] => heard.push(text.text()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Asks for slots under these names, of two that there are, giving back others.
pub(super) fn take(store: &RedisStore, tokens: &[u128], releases: &[u128], waits: bool) -> Answer {
    let [tokens, releases] =
        [tokens, releases].map(|names| names.iter().copied().map(Token).collect::<Vec<_>>());
    let (rules, costs) = (RuleSet::default(), vec![1; tokens.len()]);
    let mut ask = Ask::new(&rules, &costs);
    ask.slots = Some(Slots::new(2, secs(60), &tokens));
    (ask.releases, ask.waits) = (&releases, waits);
    let mut answer = Answer::default();
    store.open("id").unwrap().admit(&ask, &mut answer).unwrap();
    answer
}

#[test]
fn releases_are_told_only_while_somebody_waits() {
    let server = Server::start();
    let store = RedisStore::new(&Redis::open(&server.url()).unwrap());
    let counter = Counter::new(&store, []);
    let mut listener = Listener::new(&server);
    let none: [&str; 0] = [];

    take(&store, &[1, 2], &[], true);
    counter.release(&[1]).unwrap();
    assert_eq!(listener.heard(&server), none, "nobody was refused");
    take(&store, &[1, 3], &[], false);
    counter.release(&[1]).unwrap();
    assert_eq!(listener.heard(&server), none, "who was refused does not wait");

    take(&store, &[1, 3], &[], true);
    counter.release(&[77]).unwrap();
    assert_eq!(listener.heard(&server), none, "nothing became free");
    counter.release(&[1]).unwrap();
    assert_eq!(listener.heard(&server), ["fid"]);
    counter.release(&[2]).unwrap();
    assert_eq!(listener.heard(&server), none, "those who wait ask again, and then say so again");

    // Two at once are one notice; with an ask that takes as much again there is nothing to tell.
    assert_eq!(take(&store, &[1, 2, 3], &[], true).granted, 2);
    assert_eq!(take(&store, &[4, 5], &[1, 2], true).granted, 2);
    assert_eq!(listener.heard(&server), none);
    assert_eq!(take(&store, &[6], &[4, 5], true).granted, 1);
    assert_eq!(listener.heard(&server), ["fid"]);
    assert_eq!(take(&store, &[7, 8], &[], true).granted, 1);
    counter.release(&[6, 7]).unwrap();
    assert_eq!(listener.heard(&server), ["fid"]);
}

#[test]
fn a_pause_refuses_and_yet_the_releases_are_told() {
    let server = Server::start();
    let store = RedisStore::new(&Redis::open(&server.url()).unwrap());
    let counter = Counter::new(&store, []);
    take(&store, &[1, 2, 3], &[], true);
    counter.pause(secs(60)).unwrap();
    let mut listener = Listener::new(&server);
    assert_eq!(take(&store, &[4], &[1], true).granted, 0);
    assert_eq!(listener.heard(&server), ["fid"]);
}

#[test]
fn pauses_and_resumes_are_always_told() {
    let server = Server::start();
    let counter = Counter::of("a {b}", &RedisStore::new(&Redis::open(&server.url()).unwrap()), []);
    let mut listener = Listener::new(&server);
    counter.resume().unwrap();
    counter.pause(secs(60)).unwrap();
    counter.pause(ms(1)).unwrap();
    counter.resume().unwrap();
    assert_eq!(listener.heard(&server), ["ra {b}", "pa {b}", "pa {b}", "ra {b}"]);
}
