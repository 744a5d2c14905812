//! Holds what the scripts wrote against what a fleet is promised, in whole microseconds of the server's clock.
//!
//! It counts everything anew from the log alone, and shares no code with the valve.

use std::collections::HashMap;

use crate::log::{Entry, What};
use crate::{BURST, Course, INTERVAL, LIMIT, PAUSE, POLL, SLOTS, TTL, Us, micros};

/// What the log shows.
pub(crate) struct Findings {
    pub(crate) starts: usize,
    /// The most starts in any half-open interval of the rule's length.
    pub(crate) most_starts: usize,
    /// Starts sooner than the rule allows after those before.
    pub(crate) too_soon: usize,
    /// The most slots held at one time.
    pub(crate) most_held: usize,
    /// Renewals of slots that were not held any more.
    pub(crate) revived: usize,
    /// The slots that the killed worker held when it was killed.
    pub(crate) orphans: usize,
    /// How long after the kill others had all of them.
    pub(crate) recovery: Option<Us>,
    /// Starts within the pause.
    pub(crate) during_pause: usize,
    /// Starts in the second before it.
    pub(crate) before_pause: usize,
    /// From the last start before the pause's end to the first after it.
    pub(crate) quiet: Us,
    /// Fencing tokens that are not greater than the one before.
    pub(crate) unordered: usize,
}

/// The most that the rule allows in any half-open interval of its length.
pub(crate) const STARTS_MAX: usize = (LIMIT + BURST - 1) as usize;

impl Findings {
    pub(crate) fn new(log: &[Entry], course: &Course) -> Findings {
        let grants: Vec<&Entry> = log.iter().filter(|entry| entry.fence().is_some()).collect();
        let starts: Vec<Us> = grants.iter().map(|grant| grant.at).collect();
        let fences: Vec<u64> = grants.iter().filter_map(|grant| grant.fence()).collect();
        let pause = course.paused.after..course.paused.before + micros(PAUSE);
        let slots = Slots::new(log, course);
        let last_before = starts.iter().copied().filter(|at| *at < pause.end).max().unwrap_or(pause.start);
        let first_after = starts.iter().copied().filter(|at| *at >= pause.end).min().unwrap_or(course.ended);
        Findings {
            starts: starts.len(),
            most_starts: most_in_any_interval(&starts),
            too_soon: too_soon(&starts),
            most_held: slots.most_held,
            revived: slots.revived,
            orphans: slots.orphans,
            recovery: slots.retaken.map(|at| at.saturating_sub(course.killed.before)),
            during_pause: starts.iter().filter(|at| pause.contains(at)).count(),
            before_pause: count_in(&starts, pause.start - micros(INTERVAL), pause.start),
            quiet: first_after - last_before,
            unordered: fences.windows(2).filter(|pair| pair[0] >= pair[1]).count(),
        }
    }

    /// What was promised and is not so, a line each.
    pub(crate) fn broken_promises(&self, course: &Course) -> Vec<String> {
        let recovery_max = course.killed.after - course.killed.before + micros(TTL) + micros(POLL);
        let mut broken = Vec::new();
        let mut must = |holds: bool, otherwise: String| {
            if !holds {
                broken.push(otherwise);
            }
        };
        // Else there would be nothing to see the rest by.
        must(self.starts * 2 > STARTS_MAX * 8, format!("only {} jobs were started", self.starts));
        must(
            self.most_starts <= STARTS_MAX,
            format!("{} starts in one second, more than {STARTS_MAX}", self.most_starts),
        );
        must(self.too_soon == 0, format!("{} starts were too soon after those before", self.too_soon));
        must(self.most_held <= SLOTS as usize, format!("{} slots were held, of {SLOTS}", self.most_held));
        must(self.revived == 0, format!("{} leases were renewed after their end", self.revived));
        must(self.orphans > 0, "the killed worker held no slot".into());
        must(
            self.recovery.is_some_and(|recovery| recovery <= recovery_max),
            match self.recovery {
                Some(recovery) => {
                    format!(
                        "the killed worker's slots were back after {recovery} us, promised: {recovery_max}"
                    )
                }
                None => "the killed worker's slots never came back".into(),
            },
        );
        must(self.during_pause == 0, format!("{} starts during the pause", self.during_pause));
        must(
            self.before_pause >= STARTS_MAX / 4,
            format!("only {} starts in the second before the pause", self.before_pause),
        );
        must(self.unordered == 0, format!("{} fencing tokens did not increase", self.unordered));
        broken
    }
}

fn most_in_any_interval(starts: &[Us]) -> usize {
    // An interval with the most begins with a start.
    starts.iter().map(|&begin| count_in(starts, begin, begin + micros(INTERVAL))).max().unwrap_or(0)
}

fn count_in(starts: &[Us], begin: Us, end: Us) -> usize {
    starts.partition_point(|at| *at < end) - starts.partition_point(|at| *at < begin)
}

/// The rule anew, by its definition: each start moves the theoretical arrival time on by one emission interval, and may
/// not move it further ahead than the burst allows.
fn too_soon(starts: &[Us]) -> usize {
    let emission_interval = micros(INTERVAL) / Us::from(LIMIT);
    let mut arrival = 0;
    let mut too_soon = 0;
    for &at in starts {
        arrival = arrival.max(at) + emission_interval;
        too_soon += usize::from(arrival > at + Us::from(BURST) * emission_interval);
    }
    too_soon
}

/// The leases, followed from one entry to the next.
#[derive(Default)]
struct Slots {
    most_held: usize,
    revived: usize,
    orphans: usize,
    /// When others first held so many slots that these must have been all.
    retaken: Option<Us>,
}

impl Slots {
    fn new(log: &[Entry], course: &Course) -> Slots {
        let mut found = Slots::default();
        let mut killed = false;
        // By token: who holds it, until when.
        let mut held: HashMap<&[u8], (&str, Us)> = HashMap::new();
        let others = |held: &HashMap<&[u8], (&str, Us)>| {
            held.values().filter(|(worker, _)| *worker != course.victim).count()
        };
        for entry in log {
            if entry.at > course.killed.after && !killed {
                killed = true;
                held.retain(|_, (_, end)| *end > course.killed.after);
                found.orphans = held.len() - others(&held);
            }
            held.retain(|_, (_, end)| *end > entry.at);
            let until = (entry.worker.as_str(), entry.at + micros(TTL));
            match entry.what {
                What::Grant { .. } => drop(held.insert(&entry.token, until)),
                What::Renewal if held.contains_key(&*entry.token) => drop(held.insert(&entry.token, until)),
                What::Renewal => found.revived += 1,
                What::Release => drop(held.remove(&*entry.token)),
            }
            found.most_held = found.most_held.max(held.len());
            if killed && others(&held) >= SLOTS as usize {
                found.retaken = found.retaken.or(Some(entry.at));
            }
        }
        found
    }
}
