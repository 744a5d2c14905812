//! What becomes of one call: drawn from the seed and the call's number, told the faults in force.

use crate::clock::Tick;
use crate::store::Remote;

/// The settings in force. Probabilities are per mille.
#[derive(Debug, Clone)]
pub(super) struct Faults {
    pub(super) remote: Remote,
    pub(super) errors: u32,
    pub(super) lost_replies: u32,
    pub(super) late: u32,
    pub(super) not_after: bool,
    pub(super) delay: Tick,
    pub(super) doubled_releases: u32,
    pub(super) lost_notices: u32,
    pub(super) down: bool,
    pub(super) frozen_until: Tick,
}

impl Faults {
    pub(super) fn none(remote: Remote) -> Faults {
        Faults {
            remote,
            errors: 0,
            lost_replies: 0,
            late: 0,
            not_after: true,
            delay: 0,
            doubled_releases: 0,
            lost_notices: 0,
            down: false,
            frozen_until: 0,
        }
    }
}

/// The course of one call. Times are from when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// It is not sent; the caller hears so at `at`.
    Refused { at: Tick },
    /// The caller gives up at `until`; it arrives at `at`, no earlier.
    Late { until: Tick, at: Tick },
    /// It is executed at `at`, but no reply comes until the caller gives up.
    Lost { at: Tick, until: Tick },
    /// It is executed at `at`, and the reply is there at `back`.
    Answered { at: Tick, back: Tick },
}

/// The course, and how long after its execution a release in it is executed again, if it is.
pub(super) fn course(draw: &mut Draw, faults: &Faults, left: Tick, timeout: Tick) -> (Course, Option<Tick>) {
    // Each call draws the same numbers in the same order, whatever the settings: changing one leaves the others' luck alone.
    let (refused, late, lost) =
        (draw.hits(faults.errors), draw.hits(faults.late), draw.hits(faults.lost_replies));
    let (there, back) = (draw.up_to(faults.delay), draw.up_to(faults.delay));
    let lag = draw.up_to(left.max(1));
    let doubled = draw.hits(faults.doubled_releases).then_some(draw.up_to(timeout));
    let course = if faults.down {
        Course::Refused { at: 0 }
    } else if refused {
        Course::Refused { at: there.min(left) }
    } else if late {
        Course::Late { until: left, at: left + lag }
    } else if there >= left {
        Course::Late { until: left, at: there }
    } else if lost || there + back >= left {
        Course::Lost { at: there, until: left }
    } else {
        Course::Answered { at: there, back: there + back }
    };
    (course, doubled)
}

/// Numbers from a seed and a call's number: splitmix64 (Steele, Lea, Flood 2014).
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64, number: u64) -> Draw {
        let mut draw = Draw(seed);
        draw.0 = draw.next() ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn hits(&mut self, per_mille: u32) -> bool {
        self.next() % 1_000 < u64::from(per_mille)
    }

    pub(super) fn up_to(&mut self, longest: Tick) -> Tick {
        self.next() % (longest + 1)
    }
}
