//! Pauses and resumes of one id leave one at a time, in the order of their calls, and hold up no lease.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Blocked, Error, Executed, Feedback, MemoryStore, Remote, StoreError, StoreErrorKind, Valve};

use crate::hooked::{Called, Hooked};
use crate::support::{MILLISECOND, micros, ms, secs};

/// A store whose pauses and resumes take so long each, and when they began.
struct Slow {
    clock: ManualClock,
    store: Hooked,
    memory: MemoryStore,
    log: Arc<Mutex<Vec<(Called, u64)>>>,
}

type Answers = Arc<Mutex<Vec<(&'static str, u64, Result<(), Error>)>>>;

impl Slow {
    fn new(takes: Duration) -> Slow {
        let clock = ManualClock::new();
        let log: Arc<Mutex<Vec<(Called, u64)>>> = Arc::default();
        let memory = MemoryStore::builder().clock(&clock).build();
        let (its_clock, its_log) = (clock.clone(), Arc::clone(&log));
        let store = Hooked::new(memory.clone(), Some(Remote::new(1, ms(500)).unwrap()), move |called| {
            if let Called::Pause | Called::Resume = called {
                its_log.lock().push((called, micros(its_clock.now())));
                its_clock.sleep(takes);
            }
            Ok(())
        });
        Slow { clock, store, memory, log }
    }

    fn valve(&self, id: &str) -> Valve {
        Valve::builder(id).global_concurrency(5, secs(3)).store(self.store.clone()).build().unwrap()
    }

    /// What is left of the pause that the store knows of.
    fn recorded(&self) -> Option<Duration> {
        let valve = Valve::builder("id").store(self.memory.clone()).build().unwrap();
        match valve.try_acquire() {
            Err(Error::WouldWait { retry_after, blocked_by: Blocked::Paused, .. }) => retry_after,
            _ => None,
        }
    }

    /// Calls from a thread of its own and notes how that ended and when.
    fn calls(&self, valve: &Valve, answers: &Answers, name: &'static str) {
        let (valve, clock, answers) = (valve.clone(), self.clock.clone(), Arc::clone(answers));
        self.clock.spawn(name, move || {
            let answer = if name == "resume" { valve.resume() } else { valve.pause(secs(60)) };
            answers.lock().push((name, micros(clock.now()), answer));
        });
        self.clock.settle();
    }
}

const fn at(milliseconds: u64) -> u64 {
    milliseconds * MILLISECOND
}

fn refused(answer: &Result<(), Error>, kind: StoreErrorKind, executed: Executed) -> bool {
    let fits = |error: &StoreError| error.kind() == kind && error.executed() == executed;
    matches!(answer, Err(Error::StoreUnavailable(error)) if fits(error))
}

/// Also when two valves of the id make them; those of another id take turns with them.
#[test]
fn writes_of_one_id_leave_one_at_a_time_in_the_order_of_their_calls() {
    let slow = Slow::new(ms(50));
    let (one, same, other) = (slow.valve("id"), slow.valve("id"), slow.valve("other"));
    let answers = Answers::default();
    one.observe(&Feedback::pause(secs(10)));
    slow.clock.settle();
    slow.calls(&same, &answers, "resume");
    slow.calls(&one, &answers, "pause");
    slow.calls(&other, &answers, "pause");
    slow.clock.advance(secs(1));
    assert_eq!(
        *slow.log.lock(),
        [
            (Called::Pause, 0),
            (Called::Resume, at(50)),
            // The other id's turn comes first, so its pause is this or the next.
            (Called::Pause, at(100)),
            (Called::Pause, at(150)),
        ]
    );
    let ends: Vec<_> = answers.lock().iter().map(|(name, at, answer)| (*name, *at, answer.is_ok())).collect();
    assert_eq!(ends, [("resume", at(100), true), ("pause", at(150), true), ("pause", at(200), true)]);
    assert!(one.stats().paused_for > Some(secs(58)));
}

/// Pauses that wait to be sent become one, which is the longest; what one waits for is sent as it is.
#[test]
fn observed_pauses_that_wait_are_sent_as_one() {
    let slow = Slow::new(ms(100));
    let valve = slow.valve("id");
    let answers = Answers::default();
    for seconds in [1, 2, 9, 5, 3] {
        valve.observe(&Feedback::pause(secs(seconds)));
        slow.clock.settle();
    }
    slow.calls(&valve, &answers, "pause");
    for seconds in [61, 70] {
        valve.observe(&Feedback::pause(secs(seconds)));
    }
    slow.clock.advance(ms(150));
    // That of one second is recorded, the one of nine is on its way. The store counts from when each has come to it, 100 ms
    // after it was sent; the time that it waited here is not counted again.
    let until = |end: Duration| Some(end + ms(100) - slow.clock.now());
    assert_eq!(slow.recorded(), until(secs(1)));
    slow.clock.advance(ms(50));
    assert_eq!(slow.recorded(), until(secs(9)));
    slow.clock.advance(secs(1));
    assert_eq!(slow.log.lock().len(), 4);
    assert_eq!(slow.recorded(), until(secs(70)));
    assert_eq!(valve.stats().paused_for, until(secs(70)));
}

#[test]
fn a_resume_takes_the_place_of_pauses_that_were_not_sent() {
    let slow = Slow::new(ms(100));
    let (valve, same) = (slow.valve("id"), slow.valve("id"));
    let answers = Answers::default();
    slow.calls(&valve, &answers, "pause");
    slow.clock.advance(ms(10));
    slow.calls(&valve, &answers, "pause");
    valve.observe(&Feedback::pause(secs(60)));
    same.observe(&Feedback::pause(secs(60)));
    slow.clock.advance(ms(10));
    slow.calls(&valve, &answers, "resume");
    // Nobody holds up anybody any more but the pause that was sent, which no valve knows of yet.
    assert_eq!((valve.stats().paused_for, same.stats().paused_for), (None, None));
    slow.clock.advance(secs(1));
    assert_eq!(*slow.log.lock(), [(Called::Pause, 0), (Called::Resume, at(100))]);
    let answers = answers.lock();
    assert!(
        matches!(answers[0], ("pause", when, ref answer)
            if when == at(20) && refused(answer, StoreErrorKind::Other, Executed::No)),
        "{answers:?}"
    );
    assert!(
        matches!(answers[1..], [("pause", sent, Ok(())), ("resume", done, Ok(()))]
        if sent == at(100) && done == at(200)),
        "{answers:?}"
    );
    drop(same.try_acquire().unwrap());
    assert_eq!(valve.stats().paused_for, None);
}

/// Who waits for a write waits no longer than a call may take, though the store heeds no deadline; what was not sent by then
/// never is.
#[test]
fn confirming_takes_no_longer_than_a_call_may() {
    let slow = Slow::new(secs(2));
    let valve = slow.valve("id");
    let answers = Answers::default();
    slow.calls(&valve, &answers, "pause");
    slow.clock.advance(ms(100));
    slow.calls(&valve, &answers, "resume");
    slow.clock.advance(secs(60));
    let answers = answers.lock();
    let [(_, first, sent), (_, second, unsent)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*first, *second), (at(500), at(600)));
    assert!(refused(sent, StoreErrorKind::Timeout, Executed::Unknown), "{sent:?}");
    assert!(refused(unsent, StoreErrorKind::Timeout, Executed::No), "{unsent:?}");
    assert_eq!(slow.log.lock().len(), 1);
    assert_eq!(slow.clock.timers(), 0);
}

/// However many writes are due, one of the two lease threads is left to renew.
#[test]
fn writes_hold_up_no_renewal() {
    let slow = Slow::new(ms(500));
    let valve = slow.valve("id");
    let held = valve.acquire().unwrap();
    let others: Vec<_> = (0..100).map(|number| slow.valve(&format!("other-{number}"))).collect();
    for other in &others {
        other.observe(&Feedback::pause(secs(3_600)));
    }
    slow.clock.advance(secs(20));
    assert!(slow.log.lock().len() >= 39);
    assert!(!held.is_aborted(), "its lease of 3 s was not renewed");
    held.finish().unwrap();
}
