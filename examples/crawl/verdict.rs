//! Holds the crawl against what it should be.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::PAGES;
use crate::hearing::Failed;

/// What one change of mind cost.
pub(crate) struct Cost {
    pub(crate) refused: usize,
    /// Requests in flight when the first of these was heard of.
    pub(crate) in_flight: u64,
}

/// One for each change, and the first for what came before any.
pub(crate) fn costs(changes: &[(Instant, &str)], failures: &[Failed]) -> Vec<Cost> {
    let mut costs: Vec<_> = (0..=changes.len()).map(|_| Cost { refused: 0, in_flight: 0 }).collect();
    for failed in failures {
        let cost = &mut costs[changes.partition_point(|(at, _)| *at <= failed.at)];
        if cost.refused == 0 {
            cost.in_flight = failed.in_flight;
        }
        cost.refused += 1;
    }
    costs
}

pub(crate) fn broken_promises(pages: &BTreeSet<u32>, costs: &[Cost]) -> Vec<String> {
    let mut broken = Vec::new();
    if !pages.iter().copied().eq(0..PAGES) {
        broken.push(format!("{} of {PAGES} pages came", pages.len()));
    }
    for (number, Cost { refused, in_flight }) in costs.iter().enumerate() {
        if number == 0 && *refused > 0 {
            broken.push(format!("{refused} were refused before the first change, expected none"));
        } else if number > 0 && *refused == 0 {
            // Then there was nothing to be heard.
            broken.push(format!("change {number} refused nobody, expected at least one"));
        } else if u64::try_from(*refused).is_ok_and(|refused| refused > *in_flight) {
            broken.push(format!(
                "change {number} cost {refused} refusals, expected at most the {in_flight} in flight"
            ));
        }
    }
    broken
}
