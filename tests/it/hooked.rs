//! A store around a [`MemoryStore`] that tells a hook of each call first, and of a pause afterwards too: to count, fail,
//! stall or panic there.

use std::sync::Arc;
use std::time::Duration;

use valve::testing::ManualClock;
use valve::{Answer, Ask, Counts, Deadline, Lease, MemoryStore, Remote, Store, StoreError, Token, Wake};

/// Which call is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Called {
    Open,
    Remote,
    Watch,
    Admit,
    Pause,
    /// The pause is recorded, and the valve does not know yet.
    Paused,
    Resume,
}

type Hook = Arc<dyn Fn(Called) -> Result<(), StoreError> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Hooked {
    inner: MemoryStore,
    remote: Option<Remote>,
    hook: Hook,
}

impl Hooked {
    /// With a `remote` it counts as a store that may block.
    pub(crate) fn new(
        inner: MemoryStore,
        remote: Option<Remote>,
        hook: impl Fn(Called) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Hooked {
        Hooked { inner, remote, hook: Arc::new(hook) }
    }
}

impl Store for Hooked {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        (self.hook)(Called::Open)?;
        Ok(Arc::new(Opened { inner: self.inner.open(id)?, hook: Arc::clone(&self.hook) }))
    }

    fn remote(&self) -> Option<Remote> {
        let _ = (self.hook)(Called::Remote);
        self.remote.clone()
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        (self.hook)(Called::Watch)?;
        self.inner.watch(wake)
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.inner.clock()
    }
}

struct Opened {
    inner: Arc<dyn Counts>,
    hook: Hook,
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        (self.hook)(Called::Admit)?;
        self.inner.admit(ask, answer)
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        self.inner.renew(leases, deadline, held)
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        self.inner.release(tokens)
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        (self.hook)(Called::Pause)?;
        let left = self.inner.pause(length, deadline)?;
        (self.hook)(Called::Paused)?;
        Ok(left)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        (self.hook)(Called::Resume)?;
        self.inner.resume(deadline)
    }
}
