//! The lease protocol as a model, explored through every schedule that a small world has, and checked against the code.
//!
//! A world is up to three processes, each with at most one job, and one store of one or two slots. Time goes in ticks: a
//! lease lasts three, is renewed after one, and a call is given up after one. Any call may be late on its way there or back,
//! lost on either, or doubled; a process may freeze for as long as it likes, also between reading a clock and acting on
//! it, or crash; the store may lose its state. How much of that is out of order at one time is bounded (`World`), how often
//! is not: states are told apart by what is left of every time limit, so the explorer ends although time does not.
//! All clocks run equally fast: of others it claims nothing.
//!
//! Each rule of the model names its line in the code where it stands: `owner.rs` is `src/lease.rs`, `store.rs` is
//! `src/store/memory.rs`, and `schedule.rs` is how `src/valve/leasing.rs` and `src/valve/turn.rs` use the two. That owner
//! and store do what the code does is tested call by call, in `src/lease/tests/` and in `compared.rs`.

mod claims;
mod compared;
mod deeds;
mod explorer;
mod owner;
mod rules;
mod schedule;
mod state;
mod store;

use claims::{Claim, Seen, Sometimes};
use explorer::{Explored, explore};
use rules::Broken;
use state::World;
use std::sync::atomic::{AtomicUsize, Ordering};

const WORLD: World =
    World { processes: 3, slots: 1, losses: 0, troubles: 2, names: 1, fences: 0, broken: None };

/// Largest first, so that two threads share them well.
const WORLDS: [World; 6] = [
    World { slots: 2, ..WORLD },
    World { losses: 1, ..WORLD },
    World { processes: 2, names: 2, ..WORLD },
    World { slots: 2, losses: 1, troubles: 1, names: 2, ..WORLD },
    World { losses: 1, troubles: 1, fences: 3, ..WORLD },
    World { processes: 2, troubles: 3, ..WORLD },
];

/// What each broken rule breaks first, in the smallest world that shows it.
const CAUGHT: [(Broken, Claim, World); Broken::ALL.len()] = {
    use Claim::{
        AFreeSlotIsNotRefused, AWaiterEndsByItsDeadline, AnOrphanEndsByItself, FencingTokensIncrease,
        LossIsNeverTakenBack, NeverMoreLeasesThanSlots, TrustMeansALiveLease,
    };
    let small = World { processes: 2, ..WORLD };
    let fenced = World { losses: 1, troubles: 1, fences: 3, ..small };
    [
        (Broken::RenewalRevives, NeverMoreLeasesThanSlots, small),
        (Broken::ReleaseBySlot, TrustMeansALiveLease, small),
        (Broken::LeaseWithoutEnd, AnOrphanEndsByItself, small),
        (Broken::PurgeForgotten, AFreeSlotIsNotRefused, small),
        (Broken::FenceForgotten, FencingTokensIncrease, fenced),
        (Broken::FloorIgnored, FencingTokensIncrease, fenced),
        (Broken::NotAfterIgnored, AnOrphanEndsByItself, small),
        (Broken::TrustFromGrant, TrustMeansALiveLease, small),
        (Broken::TrustFromAnswer, TrustMeansALiveLease, small),
        (Broken::EndIncluded, TrustMeansALiveLease, small),
        (Broken::FlagInsteadOfEnd, TrustMeansALiveLease, small),
        (Broken::LateRenewalRestores, LossIsNeverTakenBack, small),
        (Broken::LossNotKept, LossIsNeverTakenBack, small),
        (Broken::StoreNotBelieved, LossIsNeverTakenBack, World { losses: 1, ..small }),
        (Broken::GrantNotTakenBack, AnOrphanEndsByItself, small),
        (Broken::DeadlineIgnored, AWaiterEndsByItsDeadline, small),
        (Broken::NameReused, TrustMeansALiveLease, small),
    ]
};

#[test]
#[expect(clippy::print_stdout, reason = "the figures are shown by tests/run")]
fn simulation_of_every_schedule_keeps_every_claim() {
    let explored = explore_all();
    let mut seen = Seen::default();
    for one in &explored {
        if let Some((breach, story)) = &one.breach {
            panic!("{breach:?} after {} steps:\n{}", story.len(), story.join("\n"));
        }
        seen.add(one.seen);
    }
    let lacks = seen.lacks();
    let missed: Vec<String> = CAUGHT.iter().filter_map(missed).collect();
    let sum = |count: fn(&Explored) -> usize| explored.iter().map(count).sum::<usize>();
    let (caught, met) = (CAUGHT.len() - missed.len(), Sometimes::ALL.len() - lacks.len());
    print!("protocol: {} states, {} transitions, ", sum(|one| one.states), sum(|one| one.transitions));
    print!("up to {} steps deep, violations 0, ", explored.iter().map(|one| one.depth).max().unwrap());
    println!("variants caught {caught} / {}, sometimes seen {met} / {}", CAUGHT.len(), Sometimes::ALL.len());
    assert!(missed.is_empty(), "{missed:#?}");
    assert!(lacks.is_empty(), "never met: {lacks:?}");
}

#[test]
fn every_rule_has_its_breach() {
    assert_eq!(CAUGHT.map(|(broken, ..)| broken), Broken::ALL);
}

#[test]
fn a_breach_is_told_in_as_few_steps_as_there_are() {
    let world = World { processes: 2, broken: Some(Broken::LossNotKept), ..WORLD };
    let (_, story) = explore(world).breach.unwrap();
    let expected = [
        "process 0: sends the ask: done",
        "a tick passes",
        "process 0: sends the renewal: carried out, the answer is late",
        "a tick passes",
        "process 0: freezes with a good answer in its hand",
        "a tick passes",
        "process 0: thaws",
        "process 0: hears of the renewal",
    ];
    assert_eq!(story, expected);
}

/// All worlds, shared by two threads.
fn explore_all() -> Vec<Explored> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut explored = Vec::new();
        while let Some(&world) = WORLDS.get(next.fetch_add(1, Ordering::Relaxed)) {
            explored.push(explore(world));
        }
        explored
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut explored = work();
        explored.extend(other.join().unwrap());
        explored
    })
}

/// Says what is wrong if a broken rule is not caught for what it breaks.
fn missed(&(broken, claim, world): &(Broken, Claim, World)) -> Option<String> {
    let breach = explore(World { broken: Some(broken), ..world }).breach;
    match breach {
        Some((breach, _)) if breach.0 == claim => None,
        other => Some(format!("{broken:?} should break {claim:?}, not {other:#?}")),
    }
}
