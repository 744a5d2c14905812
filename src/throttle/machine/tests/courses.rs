//! Random calls of one key, against what the documentation says of them in plain words.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// A run: when it began and ended, what it was, how many calls it covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ran {
    from: Tick,
    to: Tick,
    phase: Phase,
    covered: usize,
}

/// A throttle of one key that drives the machine from event to event.
struct Course<'a> {
    timings: Timings,
    lasts: &'a [Tick],
    stage: Option<Stage<()>>,
    waiting: usize,
    ran: Vec<Ran>,
}

impl Course<'_> {
    fn owed(&self) -> Owed {
        if self.waiting > 0 { Owed::Run } else { Owed::Nothing }
    }

    fn call(&mut self, now: Tick) {
        let owed = self.owed();
        if self.stage.as_ref().is_some_and(|stage| !stage.has_passed(now, owed)) {
            self.waiting += 1;
            return;
        }
        self.stage = Some(Stage::Acquiring(Phase::Leading));
        self.waiting = 1;
        self.run(now, Phase::Leading);
    }

    fn run(&mut self, now: Tick, phase: Phase) {
        let stage = self.stage.as_mut().unwrap();
        stage.run(now, Some(now + self.timings.lease), &self.timings);
        let covered = std::mem::take(&mut self.waiting);
        let to = now + self.lasts[self.ran.len() % self.lasts.len()];
        self.ran.push(Ran { from: now, to, phase, covered });
    }

    /// The next thing that happens by itself.
    fn next(&self) -> Option<Tick> {
        let stage = self.stage.as_ref()?;
        match stage {
            Stage::Running(_) => Some(self.ran.last().unwrap().to),
            stage => stage.wakes_at(),
        }
    }

    fn happen(&mut self, now: Tick) {
        let owed = self.owed();
        let timings = self.timings;
        let stage = self.stage.as_mut().unwrap();
        if matches!(stage, Stage::Running(_)) {
            if stage.end(now, owed, &timings) == Ended::Close {
                let (write, _) = stage.close(now);
                assert!(
                    matches!(write, Write::Over { .. })
                        || self.ran.last().unwrap().to - self.ran.last().unwrap().from >= timings.lease
                );
                stage.open(now, now, true, owed, &timings);
            }
            return;
        }
        match stage.due(now, now, owed, &timings, |_| None) {
            Due::Forget => self.stage = None,
            Due::Run => {
                assert!(stage.begin(now).is_some());
                self.run(now, Phase::Trailing);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn played(timings: Timings, calls: &[Tick], lasts: &[Tick]) -> Vec<Ran> {
    let mut course = Course { timings, lasts, stage: None, waiting: 0, ran: Vec::new() };
    for &call in calls {
        while let Some(next) = course.next().filter(|next| *next <= call) {
            course.happen(next);
        }
        course.call(call);
    }
    while let Some(next) = course.next() {
        course.happen(next);
    }
    assert!(course.stage.is_none());
    course.ran
}

/// In plain words: a call of an idle key runs; what comes until a window after the run's end runs at that end, all of it once.
fn expected(gap: Tick, calls: &[Tick], lasts: &[Tick]) -> Vec<Ran> {
    let mut ran: Vec<Ran> = Vec::new();
    let mut left = calls.iter().copied().peekable();
    let mut add = |from: Tick, phase: Phase, covered: usize| {
        let to = from + lasts[ran.len() % lasts.len()];
        ran.push(Ran { from, to, phase, covered });
        to + gap
    };
    while let Some(first) = left.next() {
        let mut window_ends = add(first, Phase::Leading, 1);
        loop {
            let mut covered = 0;
            while left.next_if(|call| *call < window_ends).is_some() {
                covered += 1;
            }
            if covered == 0 {
                break;
            }
            window_ends = add(window_ends, Phase::Trailing, covered);
        }
    }
    ran
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_course_is_what_the_documentation_says(
        window_ms in 1..50_u64,
        shared in any::<bool>(),
        between in vec(prop_oneof![Just(0), 0..5 * MS, 0..120 * MS], 1..80),
        lasts in vec(prop_oneof![Just(0), 0..20 * MS, 0..400 * MS], 1..8),
    ) {
        let sharing = if shared { Sharing::Shared } else { Sharing::Private };
        let timings = timings(window_ms, sharing);
        let calls: Vec<Tick> = between.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let gap = window_ms * MS + if shared { 2 * MS } else { 0 };
        let ran = played(timings, &calls, &lasts);
        prop_assert_eq!(ran.iter().map(|run| run.covered).sum::<usize>(), calls.len(), "calls lost or covered twice");
        prop_assert_eq!(ran, expected(gap, &calls, &lasts));
    }
}
