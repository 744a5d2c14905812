//! Slow and panicking handlers, and values that are buried.

use super::*;
use crate::testing::ManualClock;

/// What a handler heard: the length of a pause in microseconds, or how many events were dropped.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Paused(u128),
    Dropped(u64),
}

/// The events of a clock whose thread runs only when it is let.
struct Bench {
    clock: ManualClock,
    events: Events,
    sink: Arc<Sink>,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Bench {
    /// The handler panics at a pause of this length.
    fn new(panics_at: u64) -> Bench {
        let clock = ManualClock::new();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let sink = Sink::new(Box::new(move |event| match event {
            Event::Paused { left } if *left == Duration::from_micros(panics_at) => {
                std::panic::resume_unwind(Box::new("the handler's own panic"));
            }
            Event::Paused { left } => log.lock().push(Heard::Paused(left.as_micros())),
            Event::Dropped { count } => log.lock().push(Heard::Dropped(*count)),
            other => panic!("{other:?} was never sent"),
        }));
        Bench { events: Events::new(clock.clock()), clock, sink, heard }
    }

    fn send(&self, lengths: std::ops::Range<u64>) {
        for length in lengths {
            self.events.send(&self.sink, Event::Paused { left: Duration::from_micros(length) });
        }
    }

    fn heard(&self) -> Vec<Heard> {
        self.clock.settle();
        std::mem::take(&mut *self.heard.lock())
    }
}

fn paused(lengths: std::ops::Range<u64>) -> Vec<Heard> {
    lengths.map(|length| Heard::Paused(length.into())).collect()
}

#[test]
fn events_are_delivered_in_order_on_a_thread_of_their_own() {
    let bench = Bench::new(u64::MAX);
    bench.send(0..3);
    assert_eq!(*bench.heard.lock(), [], "not on the sender's thread");
    assert_eq!(bench.heard(), paused(0..3));
    bench.send(3..5);
    assert_eq!(bench.heard(), paused(3..5));
}

#[test]
fn a_full_queue_drops_the_oldest_and_counts_them() {
    let bench = Bench::new(u64::MAX);
    bench.send(0..CAPACITY as u64);
    assert_eq!(bench.heard(), paused(0..CAPACITY as u64), "as many as fit are all delivered");

    bench.send(0..CAPACITY as u64 + 7);
    let mut expected = vec![Heard::Dropped(7)];
    expected.extend(paused(7..CAPACITY as u64 + 7));
    assert_eq!(bench.heard(), expected);

    bench.send(0..1);
    assert_eq!(bench.heard(), paused(0..1), "what was told is not told again");
}

#[test]
fn each_handler_hears_of_its_own_losses() {
    let (bench, slow) = (Bench::new(u64::MAX), Bench::new(u64::MAX));
    for _ in 0..3 {
        bench.events.send(&slow.sink, Event::Paused { left: Duration::ZERO });
    }
    bench.send(0..CAPACITY as u64 - 1);
    bench.clock.settle();
    assert_eq!(*slow.heard.lock(), [Heard::Dropped(2), Heard::Paused(0)]);
    assert_eq!(bench.heard(), paused(0..CAPACITY as u64 - 1));
}

#[test]
fn a_handler_that_panics_hears_the_next_event() {
    let bench = Bench::new(1);
    bench.send(0..3);
    assert_eq!(bench.heard(), [Heard::Paused(0), Heard::Paused(2)]);
}

/// A value that says on which thread it was dropped, and may panic then.
struct Buried {
    on: Arc<Mutex<Vec<String>>>,
    panics: bool,
}

impl Drop for Buried {
    fn drop(&mut self) {
        self.on.lock().push(std::thread::current().name().unwrap_or("?").to_owned());
        if self.panics {
            std::panic::resume_unwind(Box::new("the value's own panic"));
        }
    }
}

#[test]
fn values_are_buried_on_the_events_thread() {
    let bench = Bench::new(u64::MAX);
    let on = Arc::new(Mutex::new(Vec::new()));
    for panics in [false, true] {
        bench.events.bury(Box::new(Buried { on: Arc::clone(&on), panics }));
    }
    assert!(on.lock().is_empty());
    bench.send(0..1);
    assert_eq!(bench.heard(), paused(0..1), "also after a value that panicked");
    assert_eq!(*on.lock(), ["valve-events", "valve-events"]);
}

#[test]
fn a_full_queue_still_buries_on_the_events_thread() {
    let bench = Bench::new(u64::MAX);
    let on = Arc::new(Mutex::new(Vec::new()));
    bench.events.bury(Box::new(Buried { on: Arc::clone(&on), panics: false }));
    bench.send(0..CAPACITY as u64 + 1);
    bench.clock.settle();
    assert_eq!(*on.lock(), ["valve-events"]);
}

#[test]
fn the_thread_ends_with_its_owner_after_what_was_sent() {
    let Bench { clock, events, sink, heard } = Bench::new(u64::MAX);
    events.send(&sink, Event::Paused { left: Duration::ZERO });
    let shared = Arc::downgrade(&events.shared);
    drop(events);
    clock.settle();
    assert_eq!(*heard.lock(), paused(0..1));
    assert_eq!(shared.strong_count(), 0, "the thread holds on");
}
