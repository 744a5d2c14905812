//! Notices: a courtesy, but never a lie, and never told under a lock.

use super::{Bench, Clause};
use crate::rule::RuleSet;
use crate::store::{Answer, Ask, Counts, Deadline, Notice, Noticed, Slots, Store, Token, Wake};
use crate::sync::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(super) const RULES: &[Clause] = &[
    ("notices are of the id that is watched", notices_are_of_their_id),
    ("notices are told without locks", notices_are_told_without_locks),
    ("a watcher that is gone does no harm", gone_watchers_do_no_harm),
];

/// Notes what it is told, and asks the store about it at once.
struct Watcher {
    counts: Arc<dyn Counts>,
    heard: Mutex<Vec<Notice>>,
}

impl Noticed for Watcher {
    fn noticed(self: Arc<Self>, notice: Notice) {
        let asked = self.counts.admit(&Ask::new(&RuleSet::default(), &[1]), &mut Answer::default());
        drop(asked);
        self.heard.lock().push(notice);
    }
}

fn watch(bench: &Bench<'_>, store: &Arc<dyn Store>, id: &str) -> Arc<Watcher> {
    let watcher = Arc::new(Watcher { counts: bench.open(store, id), heard: Mutex::new(Vec::new()) });
    let weak = Arc::downgrade(&watcher);
    let target: Weak<dyn Noticed> = weak;
    bench.done(store.watch(Wake::new(id.into(), target)));
    watcher
}

/// Takes the only slot under the first name, is refused under the second, waiting, and releases it.
fn take_and_release(bench: &Bench<'_>, counts: &Arc<dyn Counts>) {
    let no_rules = bench.rules([]);
    for token in [Token(1), Token(2)] {
        let tokens = [token];
        let mut ask = Ask::new(&no_rules, &[1]);
        ask.slots = Some(Slots::new(1, Duration::from_secs(60), &tokens));
        ask.waits = true;
        bench.ask(counts, &ask);
    }
    bench.done(counts.release(&[Token(1)]));
}

fn notices_are_of_their_id(bench: &Bench<'_>) {
    let store = bench.store();
    let (paused, released, quiet) =
        (watch(bench, &store, "paused"), watch(bench, &store, "released"), watch(bench, &store, "quiet"));
    let counts = bench.open(&store, "paused");
    bench.done(counts.pause(Duration::from_secs(60), Deadline::never()));
    bench.done(counts.resume(Deadline::never()));
    take_and_release(bench, &bench.open(&store, "released"));
    bench.wait(Duration::from_millis(20));

    let expected: [(&str, &Watcher, &[Notice]); 3] = [
        ("a paused id", &paused, &[Notice::Paused, Notice::Resumed]),
        ("one with a release", &released, &[Notice::Released]),
        ("one of which nothing happened", &quiet, &[]),
    ];
    for (id, watcher, may) in expected {
        let heard = watcher.heard.lock();
        // Whether anything is told at all is no matter of one id.
        let right = |notice| matches!(notice, Notice::Listening | Notice::Silent) || may.contains(&notice);
        bench.ensure(heard.iter().all(|&notice| right(notice)), || format!("{id}: {:?}", *heard));
    }
}

fn notices_are_told_without_locks(bench: &Bench<'_>) {
    let store = bench.store();
    let watchers = [watch(bench, &store, "watched"), watch(bench, &store, "watched")];
    let counts = bench.open(&store, "watched");
    for _ in 0..3 {
        bench.done(counts.pause(Duration::from_secs(60), Deadline::never()));
        bench.done(counts.resume(Deadline::never()));
        take_and_release(bench, &counts);
        bench.done(counts.release(&[Token(2)]));
    }
    drop(watchers);
}

fn gone_watchers_do_no_harm(bench: &Bench<'_>) {
    let store = bench.store();
    let gone = watch(bench, &store, "watched");
    let weak = Arc::downgrade(&gone);
    drop(gone);
    bench.ensure(weak.upgrade().is_none(), || "the store keeps it alive".to_owned());
    let counts = bench.open(&store, "watched");
    bench.done(counts.pause(Duration::from_secs(60), Deadline::never()));
    bench.done(counts.resume(Deadline::never()));
    take_and_release(bench, &counts);
}
