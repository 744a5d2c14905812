//! Model checking: small scenes over whole valves, over a ticket alone and over the scheduler, each played under very many
//! schedules of its threads.
//!
//! shuttle picks which thread goes on at every lock, wait and atomic access, at random or by priorities that change a few
//! times (PCT). A scene fails if a thread hangs, if a limit is passed at any start, or if the figures at the end do not
//! add up. Each of the [planted bugs](PLANTED) must be found too, or the scenes would prove nothing.
//!
//! Time: the clock stands still until the scheduler would sleep, then it jumps to the next timer. So any time may pass
//! between two steps, but never beyond [`HORIZON`](stage::HORIZON): what is due later never comes, and whoever relies on
//! it, because its wake-up was lost, hangs and is found.
//!
//! Every atomic access counts as sequentially consistent here: a wrong memory order would not be found.
#![expect(clippy::unwrap_used, reason = "a test, all of it")]

mod endings;
mod rates;
mod remote;
mod retries;
mod sharing;
mod slots;
mod stage;
mod ticket;
mod timers;
mod windows;

use crate::planted::plant;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Scene = fn();

const SCENES: &[(&str, Scene)] = &[
    ("a ticket is settled once", ticket::settled_once),
    ("a slot is handed on", slots::handed_on),
    ("a release meets a call that joins", slots::release_meets_join),
    ("a cancel meets the grant", slots::cancel_meets_grant),
    ("a deadline meets the grant", slots::deadline_meets_grant),
    ("try_acquire meets the turn in flight", slots::try_meets_turn),
    ("a quick refusal meets a call that joins", slots::quick_refusal_meets_join),
    ("a cancelled head makes way for a cheaper call", rates::cancelled_head_makes_way),
    ("calls wait for their rate", rates::each_waits_for_its_rate),
    ("a deadline meets the rate", rates::deadline_meets_rate),
    ("a pause ends before an ask does", rates::resume_meets_ask),
    ("a resume reaches the other valve", sharing::resume_reaches_the_other),
    ("two valves spend one budget", sharing::one_budget),
    ("close meets calls that join", endings::close_meets_join),
    ("a drain meets the last release", endings::drain_meets_last_release),
    ("a drain's deadline meets the last release", endings::drain_deadline_meets_last_release),
    ("the scheduler holds the last handle", endings::scheduler_holds_the_last_handle),
    ("the scheduler stops below a wait", endings::scheduler_stops_below_a_wait),
    ("the scheduler stops below a drain", endings::scheduler_stops_below_a_drain),
    ("events arrive in order", endings::events_arrive_in_order),
    ("a timer is set while the scheduler falls asleep", timers::set_meets_sleep),
    ("a timer is taken back while it comes due", timers::cancel_meets_due),
    ("a cancel meets an answer in flight", remote::cancel_meets_answer),
    ("a deadline meets an answer in flight", remote::deadline_meets_answer),
    ("a store fails and recovers", remote::store_recovers),
    ("throttle: calls meet a run and its window", windows::calls_meet_run_and_window),
    ("throttle: the end of a window meets a call", windows::window_end_meets_call),
    ("throttle: one worker serves every key", windows::worker_serves_every_key),
    ("throttle: destroy meets calls", windows::destroy_meets_calls),
    ("throttle: a flush meets calls", windows::flush_meets_calls),
    ("throttle: a deadline meets the outcome", windows::deadline_meets_outcome),
    ("throttle: the last handle goes with a call", windows::last_handle_goes_with_a_call),
    ("throttle: two race for a window", windows::two_race_for_a_window),
    ("a resume meets an observed pause", remote::resume_meets_observed_pause),
    ("a deadline meets the answer to a pause", remote::deadline_meets_pause),
    ("a retry at once keeps its place", retries::at_once_keeps_its_place),
    ("a cancel meets the end of a back-off", retries::cancel_meets_back_off),
    ("close meets a back-off", retries::close_meets_back_off),
    ("a drain meets a back-off", retries::drain_meets_back_off),
];

/// Each planted bug and the scene that shows it.
const PLANTED: &[(&str, Scene)] = &[
    ("notify-before-publish", ticket::settled_once),
    ("settle-without-compare", ticket::settled_once),
    ("no-rearm-after-cancel", rates::cancelled_head_makes_way),
    ("turn-not-passed-on", slots::handed_on),
    ("old-hint-kept", rates::resume_meets_ask),
    ("forgotten-unseen", windows::window_end_meets_call),
    ("timer-not-moved-up", windows::flush_meets_calls),
    ("next-task-left", windows::worker_serves_every_key),
    ("destroyed-late", windows::destroy_meets_calls),
    ("handle-not-kept", windows::last_handle_goes_with_a_call),
    ("slot-freed-before-the-retry-is-back", retries::at_once_keeps_its_place),
    ("back-offs-not-owed", retries::drain_meets_back_off),
    ("next-write-not-sent-for", remote::resume_meets_observed_pause),
];

/// Schedules of each scene.
const RANDOM: usize = 10_000;
const PCT: usize = 2_000;
/// How many changes of priority PCT makes, and one more.
const DEPTH: usize = 3;
/// Far more steps than any scene has: a schedule that is longer spins.
const STEPS_MAX: usize = 20_000;
/// Of each thread. shuttle's default is too little for a wheel that is built on the stack.
const STACK: usize = 512 * 1024;

/// Fixed, so that what fails once fails for everyone. `SHUTTLE_RANDOM_SEED` takes its place; `VALVE_SCENE` picks the
/// scenes whose names contain it.
const SEED: u64 = 20_240_817;

#[test]
#[expect(clippy::print_stdout, reason = "the figures are the result")]
fn no_schedule_breaks_a_scene_and_every_planted_bug_breaks_one() {
    let wanted = std::env::var("VALVE_SCENE").unwrap_or_default();
    let mut schedules = 0;
    for (name, scene) in SCENES.iter().filter(|(name, _)| name.contains(&wanted)) {
        let random = explore(RandomScheduler::new_from_seed(SEED, RANDOM), *scene);
        let pct = explore(PctScheduler::new_from_seed(SEED, DEPTH, PCT), *scene);
        println!("model: {name}: {random} random, {pct} by priorities");
        schedules += random + pct;
    }
    println!("model: the failures that follow are of planted bugs");
    let found = PLANTED.iter().filter(|(bug, scene)| finds(bug, *scene)).count();
    println!("model: {schedules} schedules, 0 violations; planted {} / found {found}", PLANTED.len());
    assert_eq!(found, PLANTED.len(), "a planted bug was not found");
}

/// Plays a scene until the scheduler has no schedule left, and says how many it had.
fn explore(scheduler: impl Scheduler + 'static, scene: Scene) -> usize {
    Runner::new(scheduler, config()).run(scene)
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config
}

#[expect(clippy::print_stdout, reason = "the figures are the result")]
fn finds(bug: &'static str, scene: Scene) -> bool {
    let _planted = plant(bug);
    let tried = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tried);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut config = config();
        config.failure_persistence = FailurePersistence::None;
        Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, RANDOM), config).run(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            scene();
        })
    }));
    std::panic::set_hook(hook);
    let tried = tried.load(Ordering::Relaxed);
    match played {
        Err(_) => println!("model: planted {bug}: found after {tried} schedules"),
        Ok(_) => println!("model: planted {bug}: NOT found in {tried} schedules"),
    }
    played.is_err()
}
