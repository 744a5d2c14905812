//! Whose turn it is, what a resume takes out, and what becomes of writes that no thread makes.

use super::{Turn, Unmade, Write, Writes};
use crate::clock::{Clock, Tick};
use crate::store::{Errand, Remote, Work};
use crate::sync::{AtomicBool, Mutex};
use std::sync::Arc;

/// A write with a name that notes what becomes of it.
struct Noted {
    name: &'static str,
    pause: bool,
    log: Arc<Mutex<Vec<String>>>,
}

impl Write for Noted {
    fn make(self: Arc<Self>) {
        self.log.lock().push(format!("{} made", self.name));
    }

    fn unmade(self: Arc<Self>, why: Unmade) {
        let why = match why {
            Unmade::Resumed => "resumed",
            Unmade::NoThread => "without a thread",
        };
        self.log.lock().push(format!("{} {why}", self.name));
    }

    fn is_pause(&self) -> bool {
        self.pause
    }

    fn lengthen(&self, valve: u64, until: Tick) -> bool {
        self.log.lock().push(format!("{} until {until} by {valve}", self.name));
        self.pause
    }
}

#[derive(Default)]
struct Bench {
    log: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    fn write(&self, name: &'static str) -> Arc<dyn Write> {
        Arc::new(Noted { name, pause: !name.contains("resume"), log: Arc::clone(&self.log) })
    }

    fn pops(&self, writes: &mut Writes) -> Vec<String> {
        while let Some(write) = writes.pop() {
            write.make();
        }
        std::mem::take(&mut *self.log.lock())
    }
}

fn ids() -> [Arc<str>; 2] {
    ["a".into(), "b".into()]
}

#[test]
fn ids_take_turns_and_keep_their_order() {
    let (bench, [a, b]) = (Bench::default(), ids());
    let mut writes = Writes::default();
    for name in ["a1", "a2", "a3"] {
        writes.push(&a, bench.write(name));
    }
    for name in ["b1", "b2"] {
        writes.push(&b, bench.write(name));
    }
    assert_eq!(bench.pops(&mut writes), ["a1 made", "b1 made", "a2 made", "b2 made", "a3 made"]);
    assert!(writes.due.is_empty() && writes.turns.is_empty(), "an id is left that has nothing due");
}

#[test]
fn a_resume_takes_out_the_pauses_of_its_id() {
    let (bench, [a, b]) = (Bench::default(), ids());
    let mut writes = Writes::default();
    writes.push(&a, bench.write("a1"));
    writes.push(&b, bench.write("b1"));
    writes.push(&a, bench.write("a resume"));
    writes.push(&a, bench.write("a2"));
    assert_eq!(writes.take_pauses(&a).len(), 2);
    assert_eq!(bench.pops(&mut writes), ["a resume made", "b1 made"]);

    writes.push(&a, bench.write("a3"));
    writes.push(&b, bench.write("b2"));
    assert_eq!((writes.take_pauses(&a).len(), writes.take_pauses(&a).len()), (1, 0));
    assert_eq!(bench.pops(&mut writes), ["b2 made"]);
}

/// The thread that another's errand asked for was refused, and ours went with it.
#[test]
fn a_turn_that_gets_no_thread_says_so_to_all() {
    let (bench, [a, b]) = (Bench::default(), ids());
    let remote = Remote::default();
    let turn = |taken| Turn { remote: remote.clone(), clock: Clock::System, taken: AtomicBool::new(taken) };
    let due = |serving| {
        remote.queue_write(&a, bench.write("a1"));
        remote.queue_write(&b, bench.write("b1"));
        remote.handle.state.lock().writes.serving = serving;
    };
    let log = || std::mem::take(&mut *bench.log.lock());
    due(true);
    drop(turn(false));
    assert_eq!(log(), ["a1 without a thread", "b1 without a thread"]);
    assert!(!remote.handle.state.lock().writes.serving, "nobody would be sent for again");

    // One that was served has made one, and leaves the others to the next.
    due(true);
    assert!(!remote.lengthen_last_pause(&"c".into(), 1, 5));
    assert!(remote.lengthen_last_pause(&a, 1, 5));
    assert_eq!(log(), ["a1 until 5 by 1"]);
    let last = turn(false);
    drop(remote.take_pauses(&b));
    Arc::new(last).run(Work::Leases);
    assert_eq!(log(), ["a1 made"]);
    assert!(!remote.handle.state.lock().writes.serving);
}
