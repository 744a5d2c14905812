//! Room for exactly so many units, or one fraction of a microsecond less: where the products are far beyond what doubles hold.

use valve::{Rule, RuleSet};

use crate::redis::scripts::{STATE, on_manual_time, turn_to};
use crate::redis::server::Server;
use crate::redis::world::Counter;
use crate::support::{Random, SECOND, us};

const START: u64 = 1_800_000_000 * SECOND;
const TEN_YEARS: u64 = 3_650 * 24 * 3_600 * SECOND;

/// A rule of a large denominator, with its interval / limit as n / d and its burst.
fn draw(random: &mut Random) -> (Rule, u128, u128, u128) {
    loop {
        let limit = random.below(u64::from(u32::MAX)) as u32 | 1;
        let interval = TEN_YEARS - random.below(TEN_YEARS / 2);
        let most = (1_u64 << 53) / u64::from(limit) - 1;
        let burst = (most - random.below(most / 2 + 1)).min(u32::MAX.into()) as u32;
        let rule = Rule::from(Rule::gcra(limit, us(interval)).burst(burst).named("rule"));
        if RuleSet::new(vec![rule.clone()]).is_ok() {
            let common = gcd(interval, limit.into());
            return (rule, (interval / common).into(), (u64::from(limit) / common).into(), burst.into());
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn room_for_a_job_is_found_to_the_fraction() {
    let server = Server::start();
    let store = on_manual_time(&server);
    turn_to(&server, START);
    let random = &mut Random::new(11);
    let mut beyond = 0;
    for _ in 0..1_000 {
        let (rule, n, d, burst) = draw(random);
        let counter = Counter::new(&store, [rule]);
        assert!(counter.admits());
        let units = u128::from(random.below(burst as u64 - 1)) + 1;
        beyond += u32::from(units * n > 1 << 54);
        for (fractions, fits) in [(units * n - 1, false), (units * n, true), (units * n + 1, true)] {
            // A TAT that leaves room for so many fractions of 1/d.
            let tat = u128::from(START) * d + burst * n - fractions;
            let numbers = [(tat / d) as f64, (tat % d) as f64, d as f64].map(f64::to_be_bytes).concat();
            let spend =
                || server.ask(&[b"HSET", STATE.as_bytes(), b"gcra:rule", &[&[1], &numbers[..]].concat()]);
            let cost = units as u32;
            for costs in [&[cost][..], &[cost, 1]] {
                spend();
                let granted = counter.admit(costs).unwrap().granted;
                assert_eq!(
                    granted,
                    usize::from(fits),
                    "{costs:?} of {burst}, {n}/{d} each, with room for {fractions}"
                );
            }
        }
        server.cli(&["DEL", STATE]);
    }
    assert!(beyond > 500, "only {beyond} products were too large for doubles");
}
