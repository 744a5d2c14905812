//! The lease protocol as a model.

mod claims;
mod explorer;
mod owner;
mod rules;
mod schedule;
mod state;
mod store;

use explorer::explore;
use state::World;

#[test]
fn simulation_probe() {
    let get = |name: &str, default: usize| std::env::var(name).ok().map_or(default, |v| v.parse().unwrap());
    let world = World {
        processes: get("P", 3),
        slots: get("S", 1),
        losses: get("L", 0) as u8,
        strays: get("X", 1),
        freezes: get("F", 1),
        fences: get("N", 0) as u64,
        broken: None,
    };
    let start = std::time::Instant::now();
    let explored = explore(world);
    println!("{world:?}: {} states {} transitions depth {} lacks {:?} {:?}", explored.states, explored.transitions, explored.depth, explored.seen.lacks(), start.elapsed());
    if let Some((breach, story)) = explored.breach {
        panic!("{breach:?}\n{}", story.join("\n"));
    }
}
