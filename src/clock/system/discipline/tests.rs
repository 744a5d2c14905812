//! The correction of the scale, on counters and clocks made up for it.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;
const TSC_HZ: u64 = 2_345_678_901;

fn at(scale: Scale, raw: u64) -> u64 {
    scale.line(raw).at(raw)
}

/// A counter and a system's clock, and a scale whose answers are checked as time passes.
struct World {
    hz: u64,
    raw: u64,
    system_ns: u64,
    /// Of a count, in 2^-32.
    fraction: u64,
    latest: u64,
    discipline: Discipline,
}

impl World {
    fn new(hz: u64, wrong_ppm: i64) -> Self {
        let true_rate = (1_000_000_u128 << FRACTION_BITS) / u128::from(hz);
        let rate = true_rate * u128::from(1_000_000_u64.checked_add_signed(wrong_ppm).unwrap()) / 1_000_000;
        let start = Reading { raw: 1 << 44, system_ns: 77 };
        let discipline = Discipline::new(start, u64::try_from(rate).unwrap());
        Self { hz, raw: start.raw, system_ns: start.system_ns, fraction: 0, latest: 1, discipline }
    }

    /// Both clocks run, and nobody ever reads less than before.
    #[track_caller]
    fn pass(&mut self, ns: u64) {
        for part in [ns / 10; 9].into_iter().chain([ns - ns / 10 * 9]) {
            let counted = u128::from(self.hz) * u128::from(part) * (1 << 32) / 1_000_000_000
                + u128::from(self.fraction);
            self.fraction = u64::try_from(counted % (1 << 32)).unwrap();
            self.raw += u64::try_from(counted >> 32).unwrap();
            self.system_ns += part;
            self.look();
        }
    }

    #[track_caller]
    fn look(&mut self) -> u64 {
        let ticks = at(self.discipline.scale(), self.raw);
        assert!(self.latest <= ticks, "went back from {} to {ticks}", self.latest);
        self.latest = ticks;
        ticks
    }

    #[track_caller]
    fn correct(&mut self) {
        self.discipline.correct(Reading { raw: self.raw, system_ns: self.system_ns });
        self.look();
    }

    #[track_caller]
    fn correct_each_second(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.pass(SECOND_NS);
            self.correct();
        }
    }

    /// How far ahead of the system's clock the answers are.
    #[track_caller]
    fn lead(&mut self) -> i64 {
        self.look() as i64 - 1 - (self.system_ns - 77) as i64 / 1_000
    }
}

#[track_caller]
fn check_converges(hz: u64, wrong_ppm: i64) {
    let mut world = World::new(hz, wrong_ppm);
    world.correct_each_second(1);
    assert!(world.lead().abs() <= wrong_ppm.abs() + 1, "off by {}", world.lead());
    world.correct_each_second(3);
    for _ in 0..1_000 {
        assert!(world.lead().abs() <= 1, "off by {}", world.lead());
        world.correct_each_second(1);
    }
}

#[test]
fn a_scale_that_starts_wrong_becomes_true_within_seconds() {
    for hz in [1_000_000, 24_000_000, 1_000_000_000, TSC_HZ, 5_000_000_000] {
        for wrong_ppm in [0, 100, -100, 800, -800] {
            check_converges(hz, wrong_ppm);
        }
    }
}

#[test]
fn a_scale_that_starts_far_off_becomes_true_after_a_step() {
    for wrong_ppm in [300_000, -300_000] {
        let mut world = World::new(TSC_HZ, wrong_ppm);
        world.correct_each_second(3);
        let lead = world.lead();
        world.correct_each_second(100);
        assert!((world.lead() - lead).abs() <= 1 && lead >= -1);
    }
}

#[test]
fn the_first_correction_may_come_soon_or_late() {
    for gap in [10_000_000, SECOND_NS, 3_600 * SECOND_NS, 10_000 * 3_600 * SECOND_NS] {
        for wrong_ppm in [5, -5] {
            let mut world = World::new(TSC_HZ, wrong_ppm);
            world.pass(gap);
            world.correct();
            // Some lead is slewed away; more than 10 ms of it stays.
            let kept = if world.lead() > 10_000 { world.lead() } else { 0 };
            world.correct_each_second(60);
            assert!((world.lead() - kept).abs() <= 1, "{gap}: {} instead of {kept}", world.lead());
        }
    }
}

#[test]
fn a_slew_ends_by_itself() {
    let mut world = World::new(TSC_HZ, 100);
    world.correct_each_second(1);
    // 100 us too far, to be lost in one second; nobody corrects for a while.
    assert!((99..=101).contains(&world.lead()));
    world.pass(SECOND_NS / 2);
    assert!((45..=55).contains(&world.lead()));
    world.pass(SECOND_NS / 2);
    assert!(world.lead().abs() <= 1);
    world.pass(600 * SECOND_NS);
    assert!(world.lead().abs() <= 1, "off by {}", world.lead());
}

/// The system's clock gets ahead by so much; then the answers lag by so much: at once, half a second and a
/// second later.
#[track_caller]
fn check_lag(lag_us: u64, expected: [i64; 3]) {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(100);
    world.system_ns += lag_us * 1_000;
    world.correct();
    let mut found = [-world.lead(), 0, 0];
    for lag in &mut found[1..] {
        world.pass(SECOND_NS / 2);
        *lag = -world.lead();
    }
    // The jump is taken for a little rate, too: 500 us of 100 s.
    let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= 6);
    assert!(close, "{found:?}, not {expected:?}");
}

#[test]
fn a_small_lag_is_slewed_and_a_great_one_made_up_for_at_once() {
    check_lag(100, [100, 50, 0]);
    check_lag(500, [500, 250, 0]);
    check_lag(10_100, [0, 0, 0]);
    check_lag(3_600_000_000, [0, 0, 0]);
}

#[test]
fn a_slew_changes_the_rate_by_at_most_500_parts_per_million() {
    for (lag_us, lead_us) in [(9_000, 0), (0, 9_000)] {
        let mut world = World::new(TSC_HZ, 0);
        world.correct_each_second(100);
        world.pass(SECOND_NS);
        world.system_ns += lag_us * 1_000;
        world.raw += TSC_HZ / 1_000_000 * lead_us;
        world.correct();
        let before = world.look();
        world.pass(10 * SECOND_NS);
        let slewed = (world.look() - before).abs_diff(10_000_000);
        // The jump is taken for a little rate, too: 9 ms of 101 s.
        assert!((4_000..=6_000).contains(&slewed), "slewed by {slewed} us in 10 s");
    }
}

#[test]
fn a_counter_that_runs_on_during_suspend_is_kept_ahead() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(100);
    world.raw += TSC_HZ * 3_600;
    world.look();
    for _ in 0..100 {
        world.correct_each_second(1);
        assert!((world.lead() - 3_600_000_000).abs() <= 1, "{}", world.lead());
    }
}

#[test]
fn time_that_the_counter_missed_during_suspend_is_made_up_for() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(100);
    world.system_ns += 3_600 * SECOND_NS;
    for _ in 0..100 {
        world.correct_each_second(1);
        assert!(world.lead().abs() <= 1, "{}", world.lead());
    }
}

#[test]
fn a_counter_that_starts_again_from_zero_is_followed() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(100);
    world.raw = 0;
    world.system_ns += SECOND_NS;
    world.correct();
    for _ in 0..100 {
        assert!(world.lead().abs() <= 1, "{}", world.lead());
        world.correct_each_second(1);
    }
}

#[test]
fn a_counter_that_stops_is_pulled_along_by_corrections() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(100);
    for _ in 0..100 {
        world.system_ns += SECOND_NS;
        world.correct();
        assert!(world.lead().abs() <= 1, "{}", world.lead());
    }
    // It runs again, and the rate was not forgotten.
    world.pass(SECOND_NS);
    assert!(world.lead().abs() <= 1, "{}", world.lead());
}

#[test]
fn a_counter_of_another_rate_is_followed_after_two_corrections() {
    for hz in [TSC_HZ / 10 * 13, TSC_HZ / 10 * 7] {
        let mut world = World::new(TSC_HZ, 0);
        world.correct_each_second(100);
        world.hz = hz;
        world.correct_each_second(2);
        let lead = world.lead();
        world.correct_each_second(100);
        assert!((world.lead() - lead).abs() <= 1, "{lead}, then {}", world.lead());
    }
}

#[test]
fn a_system_clock_that_is_slewed_for_hours_has_not_jumped() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(10);
    let true_rate = u128::from(world.discipline.rate);
    // 400 parts per million, seen after an hour: 1.4 s.
    world.hz = TSC_HZ - TSC_HZ / 2_500;
    world.pass(3_600 * SECOND_NS);
    world.correct();
    let gained = u128::from(world.discipline.rate) * 1_000_000 / true_rate;
    assert!((1_000_390..=1_000_400).contains(&gained), "{gained}");
}

#[test]
fn a_rate_beyond_belief_is_not_taken() {
    let mut world = World::new(TSC_HZ, 0);
    world.correct_each_second(2);
    let rate = world.discipline.rate;
    // The second of these is no jump any more, but no rate either.
    for counted in [1, 1, TSC_HZ / 3, TSC_HZ / 3, TSC_HZ * 3, TSC_HZ * 3] {
        world.raw += counted;
        world.system_ns += SECOND_NS;
        world.correct();
        assert_eq!(world.discipline.rate, rate, "after {counted} counts in a second");
    }
}

#[test]
fn two_readings_of_one_instant_change_nothing() {
    let mut world = World::new(TSC_HZ, 100);
    world.correct_each_second(1);
    let scale = world.discipline.scale();
    world.raw += 1_000;
    world.correct();
    assert_eq!(world.discipline.scale(), scale);
}

#[test]
fn extreme_readings_saturate() {
    for rate in [0, 1, u64::MAX] {
        let mut discipline = Discipline::new(Reading { raw: 0, system_ns: 0 }, rate);
        for (raw, system_ns) in [(u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX), (1, 0)] {
            let before = at(discipline.scale(), raw);
            let after = discipline.correct(Reading { raw, system_ns });
            assert!(at(after, raw) >= before);
        }
    }
}

proptest! {
    /// Readings of the two clocks are up to 200 ns apart, and corrections come when they like.
    #[test]
    fn it_never_goes_back_and_stays_true(
        hz in 10_000_000_u64..5_000_000_000,
        wrong_ppm in -800_i64..800,
        steps in vec((10_000_000_u64..5 * SECOND_NS, 0_u64..200), 10..60),
    ) {
        let mut world = World::new(hz, wrong_ppm);
        world.correct_each_second(4);
        for (gap, apart) in steps {
            world.pass(gap);
            world.discipline.correct(Reading { raw: world.raw, system_ns: world.system_ns + apart });
            prop_assert!(world.lead().abs() <= 3, "off by {}", world.lead());
        }
    }
}
