//! Scenes with a store that may block: its workers ask in the callers' place, and answers come late.

use super::stage::{FAR, Left, SOON, Stage};
use crate::error::{Error, Executed, StoreError, StoreErrorKind};
use crate::feedback::Feedback;
use crate::store::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Remote, Store, Token, Wake};
use crate::valve::CancelToken;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A memory store that counts as remote and fails at first.
struct Elsewhere {
    inner: MemoryStore,
    remote: Remote,
    failures: Arc<AtomicU64>,
}

impl Elsewhere {
    fn failing(failures: u64) -> Elsewhere {
        Elsewhere::taking(SOON, failures)
    }

    /// Whose calls may take so long.
    fn taking(timeout: Duration, failures: u64) -> Elsewhere {
        let remote = Remote::new(1, timeout).unwrap();
        Elsewhere { inner: MemoryStore::new(), remote, failures: Arc::new(AtomicU64::new(failures)) }
    }
}

impl Store for Elsewhere {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { inner: self.inner.open(id)?, failures: Arc::clone(&self.failures) }))
    }

    fn remote(&self) -> Option<Remote> {
        Some(self.remote.clone())
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        self.inner.watch(wake)
    }
}

struct Opened {
    inner: Arc<dyn Counts>,
    failures: Arc<AtomicU64>,
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        if self.failures.load(Relaxed) > 0 {
            self.failures.fetch_sub(1, Relaxed);
            return Err(StoreError::new(StoreErrorKind::Unreachable, Executed::No, "nobody there yet"));
        }
        self.inner.admit(ask, answer)
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.inner.renew(leases, deadline, held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.inner.release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.inner.pause(length, deadline)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.resume(deadline)
    }
}

/// The first is cancelled before, while or after a worker asks for it; the slot it may have got goes to the second.
pub(super) fn cancel_meets_answer() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.store(Elsewhere::failing(0)));
    let token = CancelToken::new();
    let its_token = token.clone();
    stage.plays(&player, move |player| match player.run(player.valve.job().cancel(&its_token).acquire()) {
        Ok(()) | Err(Error::Cancelled) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.job().max_wait(FAR).acquire()).unwrap());
    stage.go(move || token.cancel());
    stage.end(Left::Open);
}

pub(super) fn deadline_meets_answer() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.store(Elsewhere::failing(0)));
    stage.plays(&player, |player| match player.run(player.valve.job().max_wait(SOON / 2).acquire()) {
        Ok(()) | Err(Error::Timeout { .. }) => {}
        Err(other) => panic!("{other:?}"),
    });
    stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    stage.end(Left::Open);
}

/// The first two asks fail; everybody waits until the store is tried again, and starts.
pub(super) fn store_recovers() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.store(Elsewhere::failing(2)));
    for _ in 0..2 {
        stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    }
    stage.end(Left::Open);
}

/// Each pause of a thread is ended by the resume after it, whatever of it was sent by then; nobody waits for ever.
pub(super) fn resume_meets_observed_pause() {
    let mut stage = Stage::new();
    let player = stage.valve(2, |valve| valve.store(Elsewhere::taking(FAR, 0)));
    stage.plays(&player, |player| {
        for _ in 0..2 {
            assert!(player.valve.observe(&Feedback::pause(FAR)).is_some());
            player.valve.resume().unwrap();
        }
        assert_eq!(player.valve.stats().paused_for, None);
    });
    for _ in 0..2 {
        stage.plays(&player, |player| player.run(player.valve.acquire()).unwrap());
    }
    stage.end(Left::Open);
}

/// The time of a call is over as its answer comes, or before it was sent: its caller is told once.
pub(super) fn deadline_meets_pause() {
    let mut stage = Stage::new();
    let player = stage.valve(1, |valve| valve.store(Elsewhere::taking(SOON, 0)));
    for _ in 0..2 {
        stage.plays(&player, |player| match player.valve.pause(FAR) {
            Ok(()) => assert!(player.valve.stats().paused_for.is_some()),
            Err(Error::StoreUnavailable(_)) => {}
            Err(other) => panic!("{other:?}"),
        });
    }
    stage.end(Left::Open);
}
