//! Holds the log against what the throttles promised, room by room.

use std::time::Duration;

use crate::log::{Entry, What};
use crate::{ROOMS, WINDOW};

#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) events: usize,
    pub(crate) runs: usize,
    /// Rooms that ran after their last event.
    pub(crate) covered: usize,
    /// Runs that began while another of the same room was not over.
    pub(crate) overlaps: usize,
    /// Runs that began within the window of another one.
    pub(crate) doubled: usize,
    events_of: Vec<usize>,
}

/// The end of a window on a server is a whole millisecond.
const CUT: Duration = Duration::from_millis(1);

impl Findings {
    pub(crate) fn of(entries: &[Entry]) -> Findings {
        let mut findings =
            Findings { events: 0, runs: 0, covered: 0, overlaps: 0, doubled: 0, events_of: vec![0; ROOMS] };
        for room in 0..ROOMS {
            findings.look_at(room, entries.iter().filter(|entry| entry.room == room));
        }
        findings
    }

    /// The rooms with the most events.
    pub(crate) fn busiest(&self, count: usize) -> Vec<usize> {
        let mut rooms: Vec<_> = (0..ROOMS).collect();
        rooms.sort_by_key(|&room| (usize::MAX - self.events_of[room], room));
        rooms.truncate(count);
        rooms
    }

    fn look_at<'a>(&mut self, room: usize, entries: impl Iterator<Item = &'a Entry>) {
        let (mut running, mut window_ends, mut owed) = (0_usize, None, false);
        for entry in entries {
            match entry.what {
                What::Event => {
                    self.events += 1;
                    self.events_of[room] += 1;
                    owed = true;
                }
                What::Start => {
                    self.runs += 1;
                    self.overlaps += usize::from(running > 0);
                    self.doubled += usize::from(window_ends.is_some_and(|end| entry.at + CUT < end));
                    running += 1;
                    owed = false;
                }
                What::End => {
                    running = running.saturating_sub(1);
                    window_ends = Some(entry.at + WINDOW);
                }
            }
        }
        self.covered += usize::from(!owed && running == 0);
    }
}
