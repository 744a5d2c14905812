//! Breadth first through every state of a world, so that the first breach has the shortest story.

use super::claims::{Breach, Seen};
use super::deeds::Deed;
use super::state::{State, World};
use super::store::PROCESSES;

/// What came of an exploration.
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// The greatest number of steps that a state is away from the beginning.
    pub(super) depth: usize,
    pub(super) seen: Seen,
    pub(super) breach: Option<(Breach, Vec<String>)>,
}

type Key = [u64; 4];

/// How a state was reached: from which, by whom, by what.
#[derive(Clone, Copy)]
struct Step {
    from: u32,
    at: u8,
    deed: Deed,
}

/// A new state, and its place.
type Found = (State, u32);
/// What did not hold, and after which step.
type Broke = (Breach, Step);

struct Explorer {
    world: World,
    /// Memory for those possible in one state.
    deeds: Vec<Deed>,
    keys: Vec<Key>,
    steps: Vec<Step>,
    /// Places in `keys`, plus one, by hash.
    table: Vec<u32>,
}

/// Goes through all of a world, or until something breaks.
pub(super) fn explore(world: World) -> Explored {
    let mut explorer =
        Explorer { world, deeds: Vec::new(), keys: Vec::new(), steps: Vec::new(), table: vec![0; 1 << 12] };
    let mut explored = Explored { states: 0, transitions: 0, depth: 0, seen: Seen::default(), breach: None };
    let mut root = State::default();
    explorer.insert(root.settle().0, Step { from: 0, at: 0, deed: Deed::Tick });
    let mut level = vec![(root, 0)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (state, place) in level {
            if let Err((breach, step)) = explorer.expand(&state, place, &mut next, &mut explored) {
                explored.breach = Some((breach, explorer.story(step)));
                explored.states = explorer.keys.len();
                return explored;
            }
        }
        explored.depth += usize::from(!next.is_empty());
        level = next;
    }
    explored.states = explorer.keys.len();
    explored
}

impl Explorer {
    fn expand(
        &mut self,
        state: &State,
        place: u32,
        next: &mut Vec<Found>,
        explored: &mut Explored,
    ) -> Result<(), Broke> {
        let mut deeds = std::mem::take(&mut self.deeds);
        state.deeds_of_all(&self.world, &mut deeds);
        for &deed in &deeds {
            self.take_step(state, Step { from: place, at: 0, deed }, next, explored)?;
        }
        for at in 0..self.world.processes {
            // What happens to the second of two equal processes leads to the same states.
            if at > 0 && state.words[at] == state.words[at - 1] {
                continue;
            }
            state.deeds(&self.world, at, &mut deeds);
            for &deed in &deeds {
                self.take_step(state, Step { from: place, at: at as u8, deed }, next, explored)?;
            }
        }
        self.deeds = deeds;
        Ok(())
    }

    fn take_step(
        &mut self,
        state: &State,
        step: Step,
        next: &mut Vec<Found>,
        explored: &mut Explored,
    ) -> Result<(), Broke> {
        let mut after = *state;
        let happened = after.happen(&self.world, usize::from(step.at), step.deed, &mut explored.seen);
        if let Err(breach) = happened {
            return Err((breach, step));
        }
        explored.transitions += 1;
        if after.store.fence > u64::from(self.world.fences) {
            return Ok(());
        }
        let (key, _) = after.settle();
        if let Some(place) = self.insert(key, step) {
            next.push((after, place));
        }
        Ok(())
    }

    /// The place of a state that is new.
    fn insert(&mut self, key: Key, step: Step) -> Option<u32> {
        let mask = self.table.len() - 1;
        let mut slot = hash(key) & mask;
        while self.table[slot] != 0 {
            if equal(&self.keys[self.table[slot] as usize - 1], &key) {
                return None;
            }
            slot = (slot + 1) & mask;
        }
        self.keys.push(key);
        self.steps.push(step);
        let count = self.keys.len() as u32;
        self.table[slot] = count;
        if self.keys.len() * 2 > self.table.len() {
            self.grow();
        }
        Some(count - 1)
    }

    fn grow(&mut self) {
        let mask = self.table.len() * 4 - 1;
        self.table = vec![0; mask + 1];
        for (place, &key) in self.keys.iter().enumerate() {
            let mut slot = hash(key) & mask;
            while self.table[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.table[slot] = place as u32 + 1;
        }
    }

    /// Every step from the beginning to `last`, told with names that stay with their processes.
    fn story(&self, last: Step) -> Vec<String> {
        let mut steps = vec![last];
        let mut place = last.from;
        while place != 0 {
            steps.push(self.steps[place as usize]);
            place = self.steps[place as usize].from;
        }
        let mut state = State::default();
        let mut names: [usize; PROCESSES] = [0, 1, 2];
        let mut told = Vec::new();
        for step in steps.iter().rev() {
            let at = usize::from(step.at);
            let who = if step.deed.is_of_all() { String::new() } else { format!("process {}: ", names[at]) };
            told.push(format!("{who}{}", step.deed));
            if state.happen(&self.world, at, step.deed, &mut Seen::default()).is_err() {
                break;
            }
            let (_, order) = state.settle();
            names = order.map(|from| names[from]);
        }
        told
    }
}

/// Without a call into the C library, which costs more than the comparison.
fn equal(one: &Key, other: &Key) -> bool {
    one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3]
}

fn hash(key: Key) -> usize {
    let mut hash = 0_u64;
    for word in key {
        hash = (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    (hash >> 32) as usize
}
