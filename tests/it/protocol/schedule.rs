//! Which deeds are possible in a state, and what each changes: the protocol's steps, and the world's mischief.

use super::claims::{Breach, Claim, Seen, Sometimes};
use super::deeds::{Deed, Fate};
use super::rules::{BEFORE, Broken, NAMES, PRESENT, TIMEOUT, TTL};
use super::state::{Call, Kind, Phase, Process, State, Stray, World, may_be_carried_out};
use super::store::{PROCESSES, Store};

/// How long a job waits for its slot, in ticks; one whose deadline is near, a tick less. One that was refused, or whose ask
/// came to nothing, is to the protocol as if it had not come yet: its next ask is as good as another's first.
const PATIENCE: u8 = 2;

impl State {
    /// All that may happen to a process now.
    pub(super) fn deeds(&self, world: &World, at: usize, out: &mut Vec<Deed>) {
        let process = &self.processes[at];
        let room = self.has_room(world);
        out.clear();
        for kind in Kind::ALL {
            self.deeds_of_call(world, at, kind, room, out);
        }
        if process.stray.is_some() {
            out.extend([Deed::StrayArrives, Deed::StrayIsLost]);
        }
        if process.waiting && process.patience == PATIENCE {
            out.push(Deed::Hurry);
        }
        if process.is_busy() || process.floor > 0 {
            out.push(Deed::Crash);
        }
        if process.frozen {
            out.push(Deed::Thaw);
            return;
        }
        if process.owner.held && process.job {
            out.push(Deed::EndJob);
        }
        if room && (process.owner.held || process.has_calls()) {
            out.push(Deed::Freeze);
        }
        if room && process.owner.held && process.renew.phase == Phase::Good {
            out.push(Deed::FreezeWhileReading);
        }
    }

    fn deeds_of_call(&self, world: &World, at: usize, kind: Kind, room: bool, out: &mut Vec<Deed>) {
        use Fate::{AnswerLate, AnswerLost, Done, Late, Lost};
        let process = &self.processes[at];
        let call = process.call_of(kind);
        let awake = !process.frozen;
        match call.phase {
            Phase::None if awake && self.is_wanted(world, at, kind) => {
                out.push(Deed::Call(kind, Done));
                if room {
                    out.extend([AnswerLate, AnswerLost, Late, Lost].map(|fate| Deed::Call(kind, fate)));
                }
            }
            Phase::Sent => {
                out.extend([AnswerLate, AnswerLost].map(|fate| Deed::Arrive(kind, fate)));
                if awake {
                    out.push(Deed::Arrive(kind, Done));
                }
                if room && process.stray.is_none() {
                    out.push(Deed::Double(kind));
                }
            }
            Phase::Good | Phase::Bad | Phase::Read if awake => out.push(Deed::Answer(kind)),
            _ => {}
        }
        if awake && call.phase != Phase::None && call.age >= TIMEOUT {
            out.push(Deed::GiveUp(kind));
        }
    }

    /// Whether a process has reason to make this call, and may.
    fn is_wanted(&self, world: &World, at: usize, kind: Kind) -> bool {
        let owner = &self.processes[at].owner;
        match kind {
            Kind::Ask => !owner.held && self.has_name(at, world),
            Kind::Renew => owner.is_due(),
            Kind::Release => owner.unreleased() != 0,
        }
    }

    /// All that may happen to the whole world now.
    pub(super) fn deeds_of_all(&self, world: &World, out: &mut Vec<Deed>) {
        out.clear();
        if self.processes.iter().all(Process::may_let_time_pass) {
            out.push(Deed::Tick);
        }
        if self.losses < world.losses {
            out.push(Deed::LoseState);
        }
    }

    fn has_room(&self, world: &World) -> bool {
        let [one, two, three] = &self.processes;
        one.troubles() + two.troubles() + three.troubles() < world.troubles
    }

    /// Lets it happen, and checks what must hold ever after.
    pub(super) fn happen(
        &mut self,
        world: &World,
        at: usize,
        deed: Deed,
        seen: &mut Seen,
    ) -> Result<(), Breach> {
        let broken = world.broken;
        match deed {
            Deed::Tick => self.tick(world, seen)?,
            Deed::LoseState => self.lose_state(seen),
            Deed::EndJob => {
                self.processes[at].owner.ended(broken);
                self.processes[at].job = false;
            }
            Deed::Hurry => self.processes[at].patience -= 1,
            Deed::Call(kind, fate) => {
                match kind {
                    Kind::Ask => self.ask(at, broken),
                    Kind::Renew => self.processes[at].renew = Call::sent(1 << PRESENT, 0, 0),
                    Kind::Release => {
                        let names = self.processes[at].owner.unreleased();
                        self.processes[at].release = Call::sent(names, 0, 0);
                    }
                }
                self.go(world, at, kind, fate, seen)?;
            }
            Deed::Arrive(kind, fate) => self.go(world, at, kind, fate, seen)?,
            Deed::Answer(kind) => self.receive(world, at, kind, seen)?,
            Deed::GiveUp(kind) => {
                let call = std::mem::take(self.processes[at].call(kind));
                if kind == Kind::Ask {
                    self.processes[at].waiting = false;
                    self.processes[at].owner.abandoned(call.age);
                }
            }
            Deed::Double(kind) => {
                let call = *self.processes[at].call_of(kind);
                self.processes[at].stray = Some(Stray { kind, call });
            }
            Deed::StrayArrives => {
                if let Some(stray) = self.processes[at].stray.take() {
                    let done = self.carry_out(world, at, stray.kind, stray.call, seen)?;
                    self.note_stray(at, stray, done, seen);
                }
            }
            Deed::StrayIsLost => self.processes[at].stray = None,
            Deed::Freeze => self.processes[at].frozen = true,
            Deed::FreezeWhileReading => {
                self.processes[at].frozen = true;
                self.processes[at].renew.phase = Phase::Read;
            }
            Deed::Thaw => self.thaw(at),
            Deed::Crash => {
                let before = self.processes[at];
                seen.note_if(before.owner.held, Sometimes::OwnerCrashes);
                self.processes[at] = Process { stray: before.stray, gone: before.gone, ..Process::default() };
            }
        }
        self.check(world, seen)?;
        let touched = if deed.is_of_all() || broken.is_some() { 0..world.processes } else { at..at + 1 };
        for at in touched {
            self.forget(world, at);
        }
        Ok(())
    }

    /// A request that was sent meets its fate.
    fn go(
        &mut self,
        world: &World,
        at: usize,
        kind: Kind,
        fate: Fate,
        seen: &mut Seen,
    ) -> Result<(), Breach> {
        let call = *self.processes[at].call_of(kind);
        let after = match fate {
            Fate::Late => call,
            Fate::Lost => Call { phase: Phase::Silent, ..call },
            Fate::Done | Fate::AnswerLate | Fate::AnswerLost => {
                self.carry_out(world, at, kind, call, seen)?
            }
        };
        *self.processes[at].call(kind) = after;
        if fate == Fate::AnswerLost {
            *self.processes[at].call(kind) = Call { phase: Phase::Silent, fence: 0, ..after };
        } else if fate == Fate::Done && after.phase != Phase::Silent {
            self.receive(world, at, kind, seen)?;
        }
        Ok(())
    }

    /// A job arrives, or one that waits has its turn. `Core::prepare`: releases that were not sent ride along.
    fn ask(&mut self, at: usize, broken: Option<Broken>) {
        self.take_name(at, broken);
        let process = &mut self.processes[at];
        process.waiting = true;
        process.patience = PATIENCE;
        process.ask = Call::sent(1 << PRESENT, process.owner.unreleased(), process.floor);
        process.gone[PRESENT] = 0;
    }

    /// The store acts on a request; the call with its answer. Releases first, whatever becomes of the rest
    /// (`memory.rs`, `Opened::admit`); nothing else after the caller gave up (`Ask::deadline`).
    fn carry_out(
        &mut self,
        world: &World,
        at: usize,
        kind: Kind,
        call: Call,
        seen: &mut Seen,
    ) -> Result<Call, Breach> {
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
            done.phase = Phase::Silent;
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

    fn admit(
        &mut self,
        world: &World,
        at: usize,
        name: usize,
        floor: u8,
        seen: &mut Seen,
    ) -> Result<Option<u8>, Breach> {
        let live = self.store.live();
        let mut store = self.store;
        let Some(fence) = store.take(at, name, world.slots, floor.into(), 0, world.broken) else {
            Claim::AFreeSlotIsNotRefused.holds(live >= world.slots)?;
            return Ok(None);
        };
        let fence = if world.fences == 0 { 0 } else { fence as u8 };
        if world.fences == 0 {
            store.fence = 0;
        } else {
            Claim::FencingTokensIncrease.holds(fence > self.top && fence > floor)?;
            seen.note_if(u64::from(floor) > self.store.fence, Sometimes::FloorDecides);
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
        if stray.kind == Kind::Ask
            && done.phase == Phase::Good
            && process.ask.phase == Phase::None
            && !process.owner.held
        {
            seen.note(Sometimes::AskOutlivesItsSender);
            seen.note_if(process.owner.unreleased() & stray.call.names == 0, Sometimes::OrphanBeyondRelease);
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
                process.waiting = false;
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
            for kind in Kind::ALL {
                process.call(kind).pass();
            }
            if let Some(stray) = &mut process.stray {
                stray.call.pass();
            }
            process.patience = process.patience.saturating_sub(1);
            process.end_wait(world.broken, seen);
        }
        let overdue = |process: &Process| process.waiting && process.patience == 0 && !process.frozen;
        Claim::AWaiterEndsByItsDeadline.holds(!self.processes.iter().any(overdue))
    }

    fn age_orphan(
        &mut self,
        world: &World,
        at: usize,
        name: usize,
        before: &Store,
        seen: &mut Seen,
    ) -> Result<(), Breach> {
        if self.processes[at].owns(name, world.broken)
            || !self.may_hold(at, name, world.broken) && !before.holds(at, name)
        {
            return Ok(());
        }
        self.processes[at].gone[name] = (self.processes[at].gone[name] + 1).min(TTL + TIMEOUT);
        let holds = self.store.holds(at, name);
        let released = self.processes[at].owner.unreleased() & 1 << name == 0;
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

    /// Calls whose time is up are given up, renewals that are due are sent, and so are releases that nothing carries.
    /// `Leases::due`, and `Core::renew`: one renewal at a time, sent again at once if it came to nothing.
    fn may_let_time_pass(&self) -> bool {
        let renewal_due = self.owner.is_due() && self.renew.phase == Phase::None;
        self.frozen || !renewal_due && !self.is_overdue() && !self.owes_release()
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
