//! What may happen next, and what it changes: the protocol's steps, and the world's mischief.

use super::claims::{Breach, Claim, Seen, Sometimes};
use super::rules::{BEFORE, Broken, NAMES, PRESENT, TIMEOUT, TTL};
use super::state::{Call, Kind, Phase, Process, State, Stray, World, may_be_carried_out};
use super::store::{PROCESSES, Store};

/// How long a job waits for its slot, in ticks.
const PATIENCE: u8 = 2;

/// One thing that happens to one process, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Tick,
    LoseState,
    Ask,
    EndJob,
    SendRelease,
    /// The store carries a request out; its answer is on its way.
    CarryOut(Kind),
    CarryOutStray,
    /// The process reads an answer and acts on it.
    Receive(Kind),
    /// The time of a call is up: what was on the network for it is lost.
    GiveUp(Kind),
    /// A copy of a request goes its own way; it may be all that is left of it.
    Double(Kind),
    LoseStray,
    Freeze,
    /// It freezes between reading the clock for a renewal's answer and acting on that.
    FreezeWhileReading,
    Thaw,
    /// The process ends without a word; another takes its place.
    Crash,
}

use Deed::{Ask, CarryOut, CarryOutStray, Crash, Double, EndJob, Freeze, FreezeWhileReading, GiveUp, LoseStray, LoseState};
use Deed::{Receive, SendRelease, Thaw, Tick};

impl Deed {
    pub(super) const ALL: [Deed; 23] = [
        Tick,
        LoseState,
        Ask,
        EndJob,
        SendRelease,
        CarryOut(Kind::Ask),
        CarryOut(Kind::Renew),
        CarryOut(Kind::Release),
        CarryOutStray,
        Receive(Kind::Ask),
        Receive(Kind::Renew),
        Receive(Kind::Release),
        GiveUp(Kind::Ask),
        GiveUp(Kind::Renew),
        GiveUp(Kind::Release),
        Double(Kind::Ask),
        Double(Kind::Renew),
        Double(Kind::Release),
        LoseStray,
        Freeze,
        FreezeWhileReading,
        Thaw,
        Crash,
    ];

    /// Whether it happens to the whole world.
    pub(super) fn is_of_all(self) -> bool {
        matches!(self, Tick | LoseState)
    }
}

impl State {
    /// Whether this may happen now.
    pub(super) fn allows(&self, world: &World, at: usize, deed: Deed) -> bool {
        let process = &self.processes[at];
        let awake = !process.frozen;
        match deed {
            Tick => self.processes.iter().all(|process| process.frozen || !process.is_overdue() && !process.owes_release()),
            LoseState => self.losses < world.losses,
            Ask => {
                let free = process.ask.phase == Phase::None && !process.owner.held;
                awake && free && self.has_name(at, world.broken)
            }
            EndJob => awake && process.owner.held && process.job,
            SendRelease => awake && process.owner.to_release() != 0 && process.release.phase == Phase::None,
            CarryOut(kind) => process.call_of(kind).phase == Phase::Sent,
            Receive(kind) => awake && matches!(process.call_of(kind).phase, Phase::Good | Phase::Bad | Phase::Read),
            GiveUp(kind) => {
                let call = process.call_of(kind);
                awake && call.phase != Phase::None && call.age >= TIMEOUT
            }
            Double(kind) => process.call_of(kind).phase == Phase::Sent && self.strays() < world.strays && process.stray.is_none(),
            CarryOutStray | LoseStray => process.stray.is_some(),
            Freeze => awake && (process.owner.held || process.has_calls()) && self.frozen() < world.freezes,
            FreezeWhileReading => awake && process.renew.phase == Phase::Good && process.owner.held && self.frozen() < world.freezes,
            Thaw => process.frozen,
            Crash => process.is_busy() || process.floor > 0,
        }
    }

    fn strays(&self) -> usize {
        self.processes.iter().filter(|process| process.stray.is_some()).count()
    }

    fn frozen(&self) -> usize {
        self.processes.iter().filter(|process| process.frozen).count()
    }

    /// Lets it happen, and checks what must hold ever after.
    pub(super) fn happen(&mut self, world: &World, at: usize, deed: Deed, seen: &mut Seen) -> Result<(), Breach> {
        let broken = world.broken;
        match deed {
            Tick => self.tick(world, seen)?,
            LoseState => self.lose_state(seen),
            Ask => self.ask(at, broken),
            EndJob => {
                self.processes[at].owner.ended(broken);
                self.processes[at].job = false;
            }
            SendRelease => {
                let names = self.processes[at].owner.to_release();
                self.processes[at].release = Call::sent(names, 0, 0);
            }
            CarryOut(kind) => {
                let call = *self.processes[at].call_of(kind);
                let done = self.carry_out(world, at, kind, call, seen)?;
                *self.processes[at].call(kind) = done;
            }
            CarryOutStray => {
                if let Some(stray) = self.processes[at].stray.take() {
                    let done = self.carry_out(world, at, stray.kind, stray.call, seen)?;
                    self.note_stray(at, stray, done, seen);
                }
            }
            Receive(kind) => self.receive(world, at, kind, seen)?,
            GiveUp(kind) => {
                let call = std::mem::take(self.processes[at].call(kind));
                if kind == Kind::Ask {
                    self.processes[at].owner.abandoned(call.age);
                }
            }
            Double(kind) => {
                let call = *self.processes[at].call_of(kind);
                self.processes[at].stray = Some(Stray { kind, call });
            }
            LoseStray => self.processes[at].stray = None,
            Freeze => self.processes[at].frozen = true,
            FreezeWhileReading => {
                self.processes[at].frozen = true;
                self.processes[at].renew.phase = Phase::Read;
            }
            Thaw => self.thaw(at),
            Crash => {
                let before = self.processes[at];
                seen.note_if(before.owner.held, Sometimes::OwnerCrashes);
                self.processes[at] = Process { stray: before.stray, gone: before.gone, ..Process::default() };
            }
        }
        self.processes[at].renew_if_due();
        self.check(world, seen)?;
        self.forget(world);
        Ok(())
    }

    /// A job arrives, or one that waits has its turn. `Core::prepare`: releases that were not sent ride along.
    fn ask(&mut self, at: usize, broken: Option<Broken>) {
        self.take_name(at, broken);
        let process = &mut self.processes[at];
        if !process.waiting {
            process.waiting = true;
            process.patience = PATIENCE;
        }
        process.ask = Call::sent(1 << PRESENT, process.owner.to_release(), process.floor);
        process.gone[PRESENT] = 0;
    }

    /// The store acts on a request; the call with its answer. Releases first, whatever becomes of the rest
    /// (`memory.rs`, `Opened::admit`); nothing else after the caller gave up (`Ask::deadline`).
    fn carry_out(&mut self, world: &World, at: usize, kind: Kind, call: Call, seen: &mut Seen) -> Result<Call, Breach> {
        let broken = world.broken;
        let released = if kind == Kind::Release { call.names } else { call.rides };
        for name in (0..NAMES).filter(|name| released & 1 << name != 0) {
            let renewed = self.processes[at].renew;
            let racing = renewed.phase == Phase::Sent && renewed.names & 1 << name != 0;
            seen.note_if(racing && self.store.holds(at, name), Sometimes::ReleaseOvertakesRenewal);
            seen.note_if(kind == Kind::Ask && self.store.holds(at, name), Sometimes::ReleaseRides);
            self.store.end(at, name, broken);
        }
        let name = if call.names & 1 << PRESENT != 0 { PRESENT } else { BEFORE };
        let mut done = Call { phase: Phase::Good, fence: 0, ..call };
        if kind != Kind::Release && !may_be_carried_out(&call, broken) {
            seen.note(Sometimes::StaleRequest);
            done.phase = Phase::Stale;
        } else if kind == Kind::Ask {
            seen.note_if(self.store.holds(at, name), Sometimes::AskCarriedOutTwice);
            match self.admit(world, at, name, call.fence, seen)? {
                Some(fence) => done.fence = fence,
                None => done.phase = Phase::Bad,
            }
        } else if kind == Kind::Renew && !self.store.renew(at, name, broken) {
            done.phase = Phase::Bad;
        }
        Ok(done)
    }

    fn admit(&mut self, world: &World, at: usize, name: usize, floor: u64, seen: &mut Seen) -> Result<Option<u64>, Breach> {
        let live = self.store.live();
        let mut store = self.store;
        let Some(mut fence) = store.take(at, name, world.slots, floor, 0, world.broken) else {
            Claim::AFreeSlotIsNotRefused.holds(live >= world.slots)?;
            return Ok(None);
        };
        if world.fences == 0 {
            fence = 0;
            store.fence = 0;
        } else {
            Claim::FencingTokensIncrease.holds(fence > self.top && fence > floor)?;
            seen.note_if(floor > self.store.fence, Sometimes::FloorDecides);
            self.top = fence;
        }
        self.store = store;
        self.processes[at].early &= name != PRESENT;
        let overtaken = |process: &Process| process.frozen && process.job && process.owner.left == 0;
        seen.note_if(self.processes.iter().any(overtaken), Sometimes::FrozenOwnerIsOvertaken);
        Ok(Some(fence))
    }

    fn note_stray(&self, at: usize, stray: Stray, done: Call, seen: &mut Seen) {
        let process = &self.processes[at];
        if stray.kind == Kind::Ask && done.phase == Phase::Good && process.ask.phase == Phase::None && !process.owner.held {
            seen.note(Sometimes::AskOutlivesItsSender);
            seen.note_if(process.owner.to_release() & stray.call.names == 0, Sometimes::OrphanBeyondRelease);
        }
    }

    fn receive(&mut self, world: &World, at: usize, kind: Kind, seen: &mut Seen) -> Result<(), Breach> {
        let process = &mut self.processes[at];
        let call = std::mem::take(process.call(kind));
        match kind {
            Kind::Ask => {
                for name in (0..NAMES).filter(|name| call.rides & 1 << name != 0) {
                    process.owner.released(name);
                }
                if call.phase == Phase::Good {
                    Claim::FencingTokensIncrease.holds(world.fences == 0 || call.fence > process.floor)?;
                    process.floor = process.floor.max(call.fence);
                    process.start(call.age, world.broken, seen);
                }
            }
            Kind::Renew => process.hear_of_renewal(call, world.broken, seen),
            Kind::Release => {
                for name in (0..NAMES).filter(|name| call.names & 1 << name != 0) {
                    process.owner.released(name);
                }
            }
        }
        Ok(())
    }

    /// Time passes. What has a time limit ends, in every process that runs.
    fn tick(&mut self, world: &World, seen: &mut Seen) -> Result<(), Breach> {
        let before = self.store;
        self.store.pass(world.broken);
        for at in 0..world.processes {
            for name in 0..NAMES {
                self.age_orphan(world, at, name, &before, seen)?;
            }
            let process = &mut self.processes[at];
            let trusted = process.owner.held && !process.owner.lost;
            process.owner.pass(!process.frozen);
            seen.note_if(trusted && process.owner.lost, Sometimes::LeaseEndsByOwnClock);
            for kind in [Kind::Ask, Kind::Renew, Kind::Release] {
                process.call(kind).pass();
            }
            if let Some(stray) = &mut process.stray {
                stray.call.pass();
            }
            process.patience = process.patience.saturating_sub(1);
            process.end_wait(world.broken, seen);
            process.renew_if_due();
        }
        let overdue = |process: &Process| process.waiting && process.patience == 0 && !process.frozen;
        Claim::AWaiterEndsByItsDeadline.holds(!self.processes.iter().any(overdue))
    }

    fn age_orphan(&mut self, world: &World, at: usize, name: usize, before: &Store, seen: &mut Seen) -> Result<(), Breach> {
        if self.processes[at].owns(name, world.broken) || !self.may_hold(at, name, world.broken) && !before.holds(at, name) {
            return Ok(());
        }
        self.processes[at].gone[name] = (self.processes[at].gone[name] + 1).min(TTL + TIMEOUT);
        let holds = self.store.holds(at, name);
        let released = self.processes[at].owner.to_release() & 1 << name == 0;
        seen.note_if(released && before.holds(at, name) && !holds, Sometimes::OrphanEndsByItself);
        Claim::AnOrphanEndsByItself.holds(!holds || self.processes[at].gone[name] < TTL + TIMEOUT)
    }

    fn lose_state(&mut self, seen: &mut Seen) {
        self.losses += 1;
        self.store = Store::default();
        self.top = 0;
        for process in &mut self.processes {
            process.early = process.owner.held || process.ask.phase == Phase::Good;
            seen.note_if(process.owner.held, Sometimes::StateIsLostUnderAnOwner);
        }
    }

    /// A process goes on where it stood: its timers come due at once, and its job looks.
    fn thaw(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.frozen = false;
        process.waiting &= process.patience > 0;
    }

    /// What must hold at every instant.
    fn check(&mut self, world: &World, seen: &mut Seen) -> Result<(), Breach> {
        let (mut owners, mut strangers) = (0, 0);
        for at in 0..PROCESSES {
            let process = &mut self.processes[at];
            if !process.owner.held || !process.job {
                continue;
            }
            if !process.frozen {
                process.told |= process.owner.looked_at(world.broken);
            }
            let lost = process.owner.is_lost(world.broken);
            Claim::LossIsNeverTakenBack.holds(lost || !process.told)?;
            Claim::TrustMeansALiveLease.holds(lost || process.early || self.store.holds(at, PRESENT))?;
            owners += usize::from(!lost && !process.early);
            strangers += usize::from(!lost && process.early);
        }
        let live = self.store.live();
        seen.note_if(live == world.slots && owners == live, Sometimes::AllSlotsAreOwned);
        seen.note_if(strangers > 0 && strangers + owners > world.slots, Sometimes::LostStateLetsMoreIn);
        Claim::NeverMoreLeasesThanSlots.holds(live <= world.slots)?;
        Claim::NeverMoreOwnersThanSlots.holds(owners <= world.slots)
    }
}

impl Process {
    /// A grant came, `age` ticks after its ask was sent. `Core::hand_over`, or `Core::take_back` if nobody waits any more.
    fn start(&mut self, age: u8, broken: Option<Broken>, seen: &mut Seen) {
        self.owner.granted(age, broken);
        if self.waiting {
            self.waiting = false;
            self.patience = 0;
            self.job = true;
        } else {
            seen.note(Sometimes::GrantIsTakenBack);
            if broken != Some(Broken::GrantNotTakenBack) {
                self.owner.ended(broken);
            }
        }
    }

    fn hear_of_renewal(&mut self, call: Call, broken: Option<Broken>, seen: &mut Seen) {
        if !self.owner.held || call.names & 1 << PRESENT == 0 {
            return;
        }
        let lost = self.owner.is_lost(broken);
        if call.phase == Phase::Bad {
            seen.note_if(!lost, Sometimes::StoreSaysLost);
            self.told = true;
            self.owner.refused(broken);
        } else {
            seen.note_if(lost, Sometimes::GoodAnswerAfterLoss);
            seen.note_if(lost && call.phase == Phase::Read, Sometimes::AnswerReadBeforeLoss);
            seen.note_if(!lost && self.owner.left < TTL - call.age, Sometimes::RenewalExtends);
            self.owner.extended(call.age, lost && call.phase != Phase::Read, broken);
        }
    }

    /// `Leases::due`, and `Core::renew`: one renewal at a time, sent again at once if it came to nothing.
    fn renew_if_due(&mut self) {
        if !self.frozen && self.owner.is_due() && self.renew.phase == Phase::None {
            self.renew = Call::sent(1 << PRESENT, 0, 0);
        }
    }

    /// A waiter's deadline acts at once, whatever is on its way for it. `Ticket::settle`.
    fn end_wait(&mut self, broken: Option<Broken>, seen: &mut Seen) {
        let over = self.waiting && self.patience == 0 && !self.frozen;
        let asked = self.ask.phase != Phase::None;
        seen.note_if(over && asked, Sometimes::WaiterEndsWhileItsAskIsOut);
        self.waiting &= !over || asked && broken == Some(Broken::DeadlineIgnored);
    }
}

impl Call {
    fn pass(&mut self) {
        if self.phase != Phase::None {
            self.age = (self.age + 1).min(TTL);
        }
    }
}
