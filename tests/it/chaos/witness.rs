//! The store that the processes share, and its witness: each call is told to the [`World`] as it is executed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Remote, Store, StoreError, Token, Wake};

use super::world::World;

pub(super) const ID: &str = "fleet";

/// The shared state, which may be lost, and the world that is told.
pub(super) struct Backing {
    pub(super) clock: ManualClock,
    world: Mutex<World>,
    state: Mutex<(MemoryStore, Arc<dyn Counts>)>,
    watchers: Mutex<Vec<Wake>>,
}

impl Backing {
    pub(super) fn new(world: World) -> Arc<Backing> {
        let clock = ManualClock::new();
        let (world, state) = (Mutex::new(world), Mutex::new(fresh(&clock)));
        Arc::new(Backing { clock, world, state, watchers: Mutex::new(Vec::new()) })
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    /// Tells the world something, as of now.
    pub(super) fn tell<T>(&self, what: impl FnOnce(&mut World, u64) -> T) -> T {
        what(&mut self.world.lock(), self.now())
    }

    /// Loses all state. Those who watch still do: the connections are whole.
    pub(super) fn flush(&self) {
        let (store, counts) = fresh(&self.clock);
        for wake in &*self.watchers.lock() {
            store.watch(wake.clone()).unwrap();
        }
        *self.state.lock() = (store, counts);
        self.tell(World::flushed);
    }

    pub(super) fn counts(&self) -> Arc<dyn Counts> {
        Arc::clone(&self.state.lock().1)
    }
}

fn fresh(clock: &ManualClock) -> (MemoryStore, Arc<dyn Counts>) {
    let store = MemoryStore::builder().clock(clock).build();
    let counts = store.open(ID).unwrap();
    (store, counts)
}

/// The store as one process sees it at the far end of its network.
#[derive(Clone)]
pub(super) struct Witness {
    pub(super) backing: Arc<Backing>,
    pub(super) process: usize,
}

impl Store for Witness {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        assert_eq!(id, ID);
        Ok(Arc::new(self.clone()))
    }

    fn remote(&self) -> Option<Remote> {
        None
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.backing.watchers.lock().push(wake.clone());
        self.backing.state.lock().0.watch(wake)
    }

    fn notifies(&self) -> bool {
        true
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.backing.clock)
    }
}

impl Counts for Witness {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        // Whoever is told of a freed slot may act before this call returns: the release is accounted for first.
        self.backing.tell(|world, now| world.released(now, self.process, ask.releases));
        self.backing.counts().admit(ask, answer)?;
        self.backing.tell(|world, now| world.asked(now, self.process, ask, answer));
        Ok(())
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.backing.counts().renew(leases, deadline.clone(), held)?;
        self.backing.tell(|world, now| world.renewed(now, self.process, leases, &deadline, held));
        Ok(())
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.backing.tell(|world, now| world.released(now, self.process, tokens));
        self.backing.counts().release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.backing.counts().pause(length, deadline)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.backing.counts().resume(deadline)
    }
}
