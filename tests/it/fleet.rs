//! A fleet in one test: stores of many processes over one memory, each of which answers as the test says, and a ledger of
//! every lease.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use valve::testing::ManualClock;
use valve::{
    Answer, Ask, Counts, Deadline, Error, Executed, Lease, MemoryStore, Remote, Running, Store, StoreError,
    StoreErrorKind, Token, Valve, ValveBuilder, Wake,
};

use crate::support::ms;

/// Counts what callbacks and threads did.
pub(crate) fn add(to: &AtomicUsize, count: usize) {
    to.fetch_add(count, Ordering::Relaxed);
}

/// The memory that all processes share, its clock, and what is known of the leases in it.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) clock: ManualClock,
    memory: MemoryStore,
    ledger: Arc<Mutex<Ledger>>,
}

/// Who holds a slot by the store's clock, and the most that ever did at once.
#[derive(Default)]
struct Ledger {
    ends: HashMap<Token, Duration>,
    by_end: BTreeSet<(Duration, Token)>,
    most: usize,
}

impl Ledger {
    fn held(&mut self, now: Duration) -> usize {
        while let Some((end, token)) = self.by_end.first().copied().filter(|(end, _)| *end <= now) {
            self.by_end.remove(&(end, token));
            self.ends.remove(&token);
        }
        self.ends.len()
    }

    /// Puts the end of a lease down.
    fn hold(&mut self, token: Token, end: Duration, now: Duration) {
        self.strike(token);
        self.ends.insert(token, end);
        self.by_end.insert((end, token));
        self.most = self.most.max(self.held(now));
    }

    fn strike(&mut self, token: Token) {
        if let Some(end) = self.ends.remove(&token) {
            self.by_end.remove(&(end, token));
        }
    }
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        let clock = ManualClock::new();
        let memory = MemoryStore::builder().clock(&clock).build();
        Fleet { clock, memory, ledger: Arc::default() }
    }

    /// How many slots are held now.
    pub(crate) fn held(&self) -> usize {
        self.ledger.lock().held(self.clock.now())
    }

    /// The most slots that were ever held at once.
    pub(crate) fn most(&self) -> usize {
        self.ledger.lock().most
    }

    /// The store as a process sees it whose calls never block.
    pub(crate) fn local(&self) -> Member {
        Member { fleet: self.clone(), remote: None, tells: true, scripts: Arc::default() }
    }

    /// The store as a process sees it whose calls take time: one worker, and 500 ms for each call.
    pub(crate) fn remote(&self) -> Member {
        Member { remote: Some(Remote::new(1, ms(500)).unwrap()), ..self.local() }
    }

    pub(crate) fn valve(&self, store: &Member, limit: u32, ttl: Duration) -> Valve {
        self.builder(store).global_concurrency(limit, ttl).build().unwrap()
    }

    pub(crate) fn builder(&self, store: &Member) -> ValveBuilder {
        Valve::builder("id").store(store.clone())
    }

    /// Runs a job on a participant of its own.
    pub(crate) fn spawn<T: Clone + Send + Sync + 'static>(
        &self,
        valve: &Valve,
        work: impl FnOnce(&Running<'_>) -> T + Send + 'static,
    ) -> Spawned<T> {
        let spawned = Spawned { start: Arc::default(), end: Arc::default() };
        let (mine, valve, clock) = (spawned.clone(), valve.clone(), self.clock.clone());
        self.clock.spawn("job", move || {
            let result = valve.job().run(|running| {
                mine.start.set(clock.now()).unwrap();
                work(running)
            });
            let _ = mine.end.set((clock.now(), result));
        });
        spawned
    }

    /// Runs a job that lasts so long.
    pub(crate) fn spawn_lasting(&self, valve: &Valve, lasts: Duration) -> Spawned<()> {
        let clock = self.clock.clone();
        self.spawn(valve, move |_| clock.sleep(lasts))
    }
}

/// A job on a thread of its own.
#[derive(Clone)]
pub(crate) struct Spawned<T> {
    start: Arc<OnceLock<Duration>>,
    end: Arc<OnceLock<(Duration, Result<T, Error>)>>,
}

impl<T: Clone> Spawned<T> {
    /// When it started, if it did.
    pub(crate) fn start(&self) -> Option<Duration> {
        self.start.get().copied()
    }

    /// When its call ended, and how, if it did.
    pub(crate) fn end(&self) -> Option<(Duration, Result<T, Error>)> {
        self.end.get().cloned()
    }

    /// What its call gave.
    #[track_caller]
    pub(crate) fn result(&self) -> Result<T, Error> {
        self.end().expect("the call has not ended").1
    }
}

/// The calls of a store that a test scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Admit,
    Renew,
    Release,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The memory decides.
    Decided,
    /// It does not get there.
    Unreachable,
    /// The memory decides, but nobody hears what.
    Lost,
    /// "Not yours", without asking the memory.
    NotHeld,
    /// The memory decides, and the last answer is left out.
    Short,
    Panics,
}

/// How long until a call gets there, what becomes of it, and how long until the answer is back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) before: Duration,
    pub(crate) reply: Reply,
    pub(crate) after: Duration,
}

impl Step {
    pub(crate) const AT_ONCE: Step =
        Step { before: Duration::ZERO, reply: Reply::Decided, after: Duration::ZERO };

    pub(crate) fn reply(reply: Reply) -> Step {
        Step { reply, ..Step::AT_ONCE }
    }
}

/// A call that was made.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) sent: Duration,
    /// The leases that it names: those granted, renewed or released.
    pub(crate) tokens: Vec<Token>,
    /// With an ask: the releases that rode on it.
    pub(crate) rides: usize,
}

/// The store as one process sees it. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Member {
    fleet: Fleet,
    remote: Option<Remote>,
    tells: bool,
    scripts: Arc<Mutex<HashMap<Kind, Script>>>,
}

struct Script {
    next: VecDeque<Step>,
    then: Step,
    calls: Vec<Call>,
    /// Told when a call is sent.
    hook: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for Script {
    fn default() -> Script {
        Script { next: VecDeque::new(), then: Step::AT_ONCE, calls: Vec::new(), hook: None }
    }
}

impl Member {
    /// Tells nobody of releases, so that waiters have to look.
    pub(crate) fn silent(self) -> Member {
        Member { tells: false, ..self }
    }

    /// Says that it tells of releases, and does not: every notice is lost.
    pub(crate) fn losing_notices(&self) -> impl Store {
        Deaf(self.clone())
    }

    /// What becomes of the next calls of this kind.
    pub(crate) fn next(&self, kind: Kind, steps: impl IntoIterator<Item = Step>) {
        self.scripts.lock().entry(kind).or_default().next.extend(steps);
    }

    /// What becomes of every call of this kind after those.
    pub(crate) fn then(&self, kind: Kind, step: Step) {
        self.scripts.lock().entry(kind).or_default().then = step;
    }

    /// Has `hook` called whenever a call of this kind is sent.
    pub(crate) fn hook(&self, kind: Kind, hook: impl Fn() + Send + Sync + 'static) {
        self.scripts.lock().entry(kind).or_default().hook = Some(Arc::new(hook));
    }

    /// The calls of this kind so far.
    pub(crate) fn calls(&self, kind: Kind) -> Vec<Call> {
        self.scripts.lock().get(&kind).map_or_else(Vec::new, |script| script.calls.clone())
    }

    /// When they were sent.
    pub(crate) fn sent(&self, kind: Kind) -> Vec<Duration> {
        self.calls(kind).iter().map(|call| call.sent).collect()
    }

    /// Makes a call as its script says; what its answer is to be believed as.
    fn make(
        &self,
        kind: Kind,
        rides: usize,
        mut tokens: Vec<Token>,
        work: impl FnOnce(&mut Vec<Token>) -> Result<(), StoreError>,
    ) -> Result<Reply, StoreError> {
        let clock = &self.fleet.clock;
        let (number, step, hook) = {
            let mut scripts = self.scripts.lock();
            let script = scripts.entry(kind).or_default();
            script.calls.push(Call { sent: clock.now(), tokens: tokens.clone(), rides });
            (script.calls.len() - 1, script.next.pop_front().unwrap_or(script.then), script.hook.clone())
        };
        if let Some(hook) = hook {
            hook();
        }
        clock.sleep(step.before);
        let result = match step.reply {
            Reply::Unreachable => {
                Err(StoreError::new(StoreErrorKind::Unreachable, Executed::No, "nobody listens"))
            }
            Reply::NotHeld => Ok(Reply::NotHeld),
            Reply::Panics => panic!("the store's author is to blame"),
            Reply::Decided | Reply::Short => work(&mut tokens).map(|()| step.reply),
            Reply::Lost => work(&mut tokens).and_then(|()| {
                Err(StoreError::new(StoreErrorKind::Timeout, Executed::Unknown, "no answer came"))
            }),
        };
        self.scripts.lock().entry(kind).or_default().calls[number].tokens = tokens;
        clock.sleep(step.after);
        result
    }
}

impl Store for Member {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        Ok(Arc::new(Opened { member: self.clone(), inner: self.fleet.memory.open(id)? }))
    }

    fn remote(&self) -> Option<Remote> {
        self.remote.clone()
    }

    fn watch(&self, wake: Wake) -> Result<(), StoreError> {
        if self.tells { self.fleet.memory.watch(wake) } else { Ok(()) }
    }

    fn notifies(&self) -> bool {
        self.tells
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.fleet.clock)
    }
}

struct Deaf(Member);

impl Store for Deaf {
    fn open(&self, id: &str) -> Result<Arc<dyn Counts>, StoreError> {
        self.0.open(id)
    }

    fn remote(&self) -> Option<Remote> {
        self.0.remote()
    }

    fn notifies(&self) -> bool {
        true
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.0.clock()
    }
}

struct Opened {
    member: Member,
    inner: Arc<dyn Counts>,
}

impl Opened {
    fn hold(&self, lease: Lease) {
        let now = self.member.fleet.clock.now();
        self.member.fleet.ledger.lock().hold(lease.token, now + lease.ttl, now);
    }

    fn strike(&self, tokens: &[Token]) {
        let mut ledger = self.member.fleet.ledger.lock();
        tokens.iter().for_each(|token| ledger.strike(*token));
    }
}

impl Counts for Opened {
    fn admit(&self, ask: &Ask<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        let made = self.member.make(Kind::Admit, ask.releases.len(), Vec::new(), |tokens| {
            // Those told of the releases ask at once, so these are struck out first.
            self.strike(ask.releases);
            self.inner.admit(ask, answer)?;
            if let Some(slots) = ask.slots {
                tokens.extend(&slots.tokens[..answer.granted]);
                tokens.iter().for_each(|&token| self.hold(Lease { token, ttl: slots.ttl }));
            }
            Ok(())
        });
        made.map(|_| ())
    }

    fn renew(&self, leases: &[Lease], deadline: Deadline, held: &mut Vec<bool>) -> Result<(), StoreError> {
        let tokens = leases.iter().map(|lease| lease.token).collect();
        let reply = self.member.make(Kind::Renew, 0, tokens, |_| {
            self.inner.renew(leases, deadline, held)?;
            leases.iter().zip(&*held).filter(|(_, held)| **held).for_each(|(lease, _)| self.hold(*lease));
            Ok(())
        })?;
        match reply {
            Reply::NotHeld => *held = vec![false; leases.len()],
            Reply::Short => drop(held.pop()),
            _ => {}
        }
        Ok(())
    }

    fn release(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let made = self.member.make(Kind::Release, 0, tokens.to_vec(), |_| {
            self.strike(tokens);
            self.inner.release(tokens)
        });
        made.map(|_| ())
    }

    fn pause(&self, length: Duration, deadline: Deadline) -> Result<Duration, StoreError> {
        self.inner.pause(length, deadline)
    }

    fn resume(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.inner.resume(deadline)
    }
}
