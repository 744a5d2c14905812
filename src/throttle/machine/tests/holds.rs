//! The hold of a running key on the engine's: random ticks, answers and ends, against who may have the key by then.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const PATIENCE: Tick = 1_000 * MS;

/// What happens next, so many microseconds later.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The timer comes, on time or late.
    Timer {
        late: Tick,
    },
    /// The extension on its way is answered.
    Answer {
        wrote: bool,
    },
    /// The engine must not be asked: the breaker is open.
    TimerSkipped,
    Pass(Tick),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![Just(0), 0..300 * MS].prop_map(|late| Step::Timer { late }),
        4 => any::<bool>().prop_map(|wrote| Step::Answer { wrote }),
        1 => Just(Step::TimerSkipped),
        3 => (0..400 * MS).prop_map(Step::Pass),
    ]
}

/// What is known without the machine: when the last good write was sent, and what is on its way.
struct Known {
    held_until: Tick,
    flight: Option<Tick>,
    timings: Timings,
}

impl Known {
    fn expected(&self, now: Tick) -> Write {
        if now < self.held_until { Write::Over { until: self.held_until } } else { Write::IfAbsent }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// A held key is overwritten only before its lease has ended by our own clock; one extension is on its way at most, until
    /// it has not come back for the time it is given; what comes back after that changes nothing.
    #[test]
    fn a_key_is_overwritten_only_while_it_is_certainly_held(
        window_ms in 1..2_000_u64,
        acquired in any::<bool>(),
        steps in vec(step(), 0..60),
        ends_after in 0..500 * MS,
    ) {
        let timings = timings(window_ms, Sharing::Shared);
        let mut now = 5 * MS;
        let mut stage: Stage<Tick> = Stage::Acquiring(Phase::Leading);
        let until = acquired.then_some(now + timings.lease);
        stage.run(now, until, &timings);
        let mut known = Known { held_until: until.unwrap_or(0), flight: None, timings };
        let begun = now;
        for step in steps {
            match step {
                Step::Pass(length) => now += length,
                Step::Timer { late } => {
                    let at = stage.wakes_at().unwrap();
                    prop_assert_eq!((at - begun) % known.timings.interval, 0, "off the grid");
                    now = now.max(at) + late;
                    timer(&mut stage, at, now, true, &mut known)?;
                    prop_assert!(stage.wakes_at().unwrap() > now);
                }
                Step::TimerSkipped => {
                    let at = stage.wakes_at().unwrap();
                    now = now.max(at);
                    timer(&mut stage, at, now, false, &mut known)?;
                }
                Step::Answer { wrote } => {
                    let Some(sent) = known.flight.take() else { continue };
                    prop_assert_eq!(stage.extended(sent, wrote, now, &known.timings), Some(sent));
                    // One that overwrote and came back late may have met another's key.
                    if wrote && !(sent < known.held_until && now >= known.held_until) {
                        known.held_until = sent + known.timings.lease;
                    }
                    prop_assert_eq!(stage.extended(sent, true, now, &known.timings), None, "it came back twice");
                }
            }
        }
        now += ends_after;
        let awaited = known.flight.map_or(Ended::Close, |sent| Ended::Await(sent + PATIENCE));
        prop_assert_eq!(stage.end(now, Owed::Nothing, &known.timings), awaited);
        let (write, given_up) = stage.close(now);
        prop_assert_eq!(write, known.expected(now));
        prop_assert_eq!(given_up, known.flight);
    }
}

fn timer(
    stage: &mut Stage<Tick>,
    at: Tick,
    now: Tick,
    admitted: bool,
    known: &mut Known,
) -> Result<(), TestCaseError> {
    let mut before = None;
    let mut asked = false;
    let due = stage.due(at, now, Owed::Nothing, &known.timings, |given_up| {
        (before, asked) = (given_up, true);
        admitted.then_some(now)
    });
    if known.flight.is_some_and(|sent| now < sent + PATIENCE) {
        prop_assert_eq!((due, asked), (Due::Nothing, false), "two extensions on their way");
        return Ok(());
    }
    prop_assert_eq!(before, known.flight.take(), "who was given up");
    if admitted {
        prop_assert_eq!(due, Due::Extend { sent: now, write: known.expected(now) });
        known.flight = Some(now);
    } else {
        prop_assert_eq!(due, Due::Nothing);
    }
    Ok(())
}
