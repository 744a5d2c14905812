//! Who asks a remote store, and how often while it waits for news of a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{
    Answer, Ask, Blocked, Counts, Deadline, Error, Event, Executed, Lease, MemoryStore, Notice, OnStoreError,
    Remote, Store, StoreError, StoreErrorKind, Token, Valve, Wake,
};

use crate::hooked::{Called, Hooked};
use crate::support::ms;

/// A memory store that counts as remote, and says of itself what the test wants.
#[derive(Clone)]
struct Told {
    memory: MemoryStore,
    remote: Remote,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    busy: AtomicBool,
    down: AtomicBool,
    asks: AtomicUsize,
    last_thread: Mutex<String>,
    wake: Mutex<Option<Wake>>,
}

impl Told {
    fn new(memory: MemoryStore) -> Told {
        Told { memory, remote: Remote::new(1, ms(500)).unwrap(), seen: Arc::default() }
    }

    fn tell(&self, notice: Notice) {
        let wake = self.seen.wake.lock().clone().unwrap();
        assert!(wake.notify(notice));
    }
}

impl Store for Told {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { inner: self.memory.open(id)?, seen: Arc::clone(&self.seen) }))
    }

    fn remote(&self) -> Option<Remote> {
        Some(self.remote.clone())
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        *self.seen.wake.lock() = Some(wake);
        Ok(())
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.memory.clock()
    }
}

struct Opened {
    inner: Arc<dyn Counts>,
    seen: Arc<Seen>,
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        self.seen.asks.fetch_add(1, Ordering::Relaxed);
        *self.seen.last_thread.lock() = std::thread::current().name().unwrap_or_default().to_owned();
        if self.seen.down.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Unreachable, Executed::No, "refused"));
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

    fn ready(&self) -> bool {
        !self.seen.busy.load(Ordering::Relaxed)
    }
}

#[test]
fn a_call_asks_for_itself_unless_it_would_have_to_wait_for_that() {
    let store = Told::new(MemoryStore::new());
    let valve = Valve::builder("id").concurrency(1).store(store.clone()).build().unwrap();
    let own = std::thread::current().name().unwrap_or_default().to_owned();
    valve.run(|| ()).unwrap();
    assert_eq!(*store.seen.last_thread.lock(), own);
    store.seen.busy.store(true, Ordering::Relaxed);
    valve.run(|| ()).unwrap();
    assert_eq!(*store.seen.last_thread.lock(), "valve-store-0");
    drop(valve.try_acquire().unwrap());
    assert_eq!(*store.seen.last_thread.lock(), "valve-store-0");
    store.seen.busy.store(false, Ordering::Relaxed);
    drop(valve.try_acquire().unwrap());
    assert_eq!(*store.seen.last_thread.lock(), own);
}

#[test]
fn a_waiter_for_a_slot_polls_while_nobody_would_tell_it() {
    let clock = ManualClock::new();
    let store = Told::new(MemoryStore::builder().clock(&clock).build());
    let valve = Valve::builder("id")
        .global_concurrency(1, Duration::from_secs(60))
        .store(store.clone())
        .build()
        .unwrap();
    let holder = valve.clone();
    clock.spawn("holder", {
        let clock = clock.clone();
        move || holder.run(|| clock.sleep(Duration::from_secs(30))).unwrap()
    });
    clock.settle();
    let waiter = valve.clone();
    clock.spawn("waiter", move || waiter.run(|| ()).unwrap());
    clock.settle();
    let asks_within = |length: Duration| {
        let before = store.seen.asks.load(Ordering::Relaxed);
        clock.advance(length);
        store.seen.asks.load(Ordering::Relaxed) - before
    };
    let polled = asks_within(Duration::from_secs(1));
    assert!((16..=20).contains(&polled), "{polled} asks in a second");

    let before = store.seen.asks.load(Ordering::Relaxed);
    store.tell(Notice::Listening);
    clock.advance(ms(2));
    assert_eq!(store.seen.asks.load(Ordering::Relaxed) - before, 1, "what was missed before is asked for");
    let told = asks_within(Duration::from_secs(5));
    assert!((5..=6).contains(&told), "{told} asks in five seconds");

    store.tell(Notice::Silent);
    clock.advance(ms(2));
    let polled = asks_within(Duration::from_secs(1));
    assert!((16..=20).contains(&polled), "{polled} asks in a second");
    clock.advance(Duration::from_secs(30));
    assert_eq!(valve.stats().running, 0);
}

/// V26: a store that goes down takes its notices along, and that is no news of a pause.
#[test]
fn a_known_pause_holds_although_the_store_falls_silent() {
    let clock = ManualClock::new();
    let memory = MemoryStore::builder().clock(&clock).build();
    let store = Told::new(memory.clone());
    let build = Valve::builder("id").store(store.clone()).on_store_error(OnStoreError::Open);
    let valve = build.build().unwrap();
    let other = Valve::builder("id").store(memory).build().unwrap();
    store.tell(Notice::Listening);
    other.pause(Duration::from_secs(60)).unwrap();
    let is_paused =
        || matches!(valve.try_acquire(), Err(Error::WouldWait { blocked_by: Blocked::Paused, .. }));
    assert!(is_paused());
    store.seen.down.store(true, Ordering::Relaxed);
    store.tell(Notice::Silent);
    clock.advance(Duration::from_secs(60) - Duration::from_micros(1));
    assert!(is_paused(), "it is forgotten");
    clock.advance(Duration::from_micros(1));
    drop(valve.try_acquire().unwrap());
}

#[test]
fn an_id_that_the_store_cannot_read_concerns_no_other() {
    let clock = ManualClock::new();
    let (remote, memory) = (Remote::new(1, ms(500)).unwrap(), MemoryStore::builder().clock(&clock).build());
    let asks = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&asks);
    let healed = Arc::new(AtomicBool::new(false));
    let reading = Arc::clone(&healed);
    let unreadable = Hooked::new(memory.clone(), Some(remote.clone()), move |called| {
        if called != Called::Admit || reading.load(Ordering::Relaxed) {
            return Ok(());
        }
        counting.fetch_add(1, Ordering::Relaxed);
        Err(StoreError::new(StoreErrorKind::Corrupt, Executed::No, "key valve:{bad} is a list"))
    });
    let said = Arc::new(Mutex::new(Vec::new()));
    let saying = Arc::clone(&said);
    let bad = Valve::builder("bad")
        .store(unreadable)
        .on_event(move |event| saying.lock().push(event.clone()))
        .build()
        .unwrap();
    let good = Valve::builder("good").store(Hooked::new(memory, Some(remote), |_| Ok(()))).build().unwrap();
    let waiter = bad.clone();
    clock.spawn("waiter", move || waiter.run(|| ()).unwrap());
    clock.advance(Duration::from_secs(2));
    // At 0, 50, 150, 350, 750, 1,150, 1,550 and 1,950 ms.
    assert_eq!(asks.load(Ordering::Relaxed), 8);
    assert!(bad.stats().blocked_by.is_some());

    good.run(|| ()).unwrap();
    assert!(good.stats().store_down.is_none(), "one unreadable id closes the store to all");

    healed.store(true, Ordering::Relaxed);
    clock.advance(ms(400));
    assert_eq!(bad.stats().finished, 1);
    let said = said.lock();
    assert!(matches!(said.as_slice(), [Event::StoreError { .. }, Event::StoreBack]), "{said:?}");
}

#[test]
fn a_valve_that_is_built_while_the_store_is_down_is_told_of_it() {
    let remote = Remote::new(1, ms(500)).unwrap();
    let down = |called| match called {
        Called::Admit => Err(StoreError::new(StoreErrorKind::Unreachable, Executed::No, "refused")),
        _ => Ok(()),
    };
    let store = Hooked::new(MemoryStore::new(), Some(remote), down);
    let build = || Valve::builder("id").store(store.clone()).on_store_error(OnStoreError::Fail);
    build().build().unwrap().run(|| ()).unwrap_err();
    let (saying, said) = std::sync::mpsc::channel();
    let late = build().on_event(move |event| saying.send(event.clone()).unwrap()).build().unwrap();
    let event = said.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(event, Event::StoreError { .. }), "{event:?}");
    assert!(late.stats().store_down.is_some());
}
