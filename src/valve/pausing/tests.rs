//! A resume against what is observed while it is at work.

use crate::feedback::Feedback;
use crate::store::{Counts, MemoryStore, Remote, Store, Unmade};
use crate::testing::ManualClock;
use crate::valve::Valve;
use crate::{Error, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// A memory store that counts as one that may block.
struct Far(MemoryStore, Remote);

impl Store for Far {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        self.0.open(id)
    }

    fn remote(&self) -> Option<Remote> {
        Some(self.1.clone())
    }

    #[cfg(feature = "testing")]
    fn clock(&self) -> Option<&ManualClock> {
        self.0.clock()
    }
}

/// A resume has taken a pause out of the line and has yet to say so: what is observed meanwhile is the newer.
#[test]
fn a_resume_ends_no_pause_that_was_observed_after_it() -> Result<(), Error> {
    let clock = ManualClock::new();
    let memory = MemoryStore::builder().clock(&clock).build();
    let valve = Valve::builder("id").clock(&clock).store(Far(memory, Remote::default())).build()?;
    let line = valve.core.remote.clone().unwrap();
    let pause = || valve.observe(&Feedback::pause(Duration::from_secs(60)));
    for again in [false, true] {
        pause();
        let taken = line.take_pauses(&valve.core.id);
        assert_eq!(taken.len(), 1);
        if again {
            pause();
        }
        for write in taken {
            write.unmade(Unmade::Resumed);
        }
        assert_eq!(valve.stats().paused_for.is_some(), again);
    }
    clock.settle();
    assert!(valve.stats().paused_for.is_some());
    assert_eq!(valve.core.state.lock().pauses_due, 0);
    Ok(())
}
