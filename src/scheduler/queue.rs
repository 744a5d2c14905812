//! A valve's queue as a pure machine: who waits, whose turn it is to ask the store, and what the last refusal said.
//!
//! It decides under the valve's lock and is told the time; it knows no store, no thread and no clock. `README.md` beside
//! this file tells the protocol.

use super::TimerKey;
use super::heap::{Heap, Place};
use crate::clock::Tick;
use crate::planted::fault;
use crate::store::Token;

/// One waiting call.
pub(crate) struct Waiter<W> {
    pub(crate) what: W,
    pub(crate) cost: u32,
    pub(crate) since: Tick,
    pub(crate) deadline: Option<Tick>,
    /// It takes the next answer, whatever that is.
    pub(crate) instant: bool,
    /// How many slots are held by jobs on the waiting thread's stack, if nothing but a start can end the wait.
    pub(crate) inside: u64,
    /// The leases of those that are slots of the fleet.
    pub(crate) leases: Vec<Token>,
    pub(crate) timer: Option<TimerKey>,
    /// Of a retry that backs off: the priority and the number under which it comes back.
    pub(crate) back_as: Option<(i32, u64)>,
}

/// Why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The rule of this number has no budget.
    Rate(usize),
    Paused,
    /// No fleet-wide slot is free.
    Slots,
    /// The store cannot be asked.
    Store,
    /// No slot of this valve is free.
    Local,
    /// Others come first.
    Queue,
}

/// What the last refusal said. Only its holder's kind of job may rely on it: see [`Queue::held_up`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) cost: u32,
    pub(crate) not_before: Tick,
    pub(crate) why: Why,
    /// When the rate rules alone would admit the job.
    pub(crate) rate: Option<(usize, Tick)>,
}

/// What the holder of the valve's lock should do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The turn is yours: ask for those given out.
    Ask,
    /// Nobody may ask before this tick.
    Sleep(Tick),
    /// Nothing: nobody waits, another has the turn, or no slot is free. Whoever changes that looks again.
    Rest,
}

/// An ask that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    generation: u64,
}

/// A waiter that is refused for good.
pub(crate) struct Refused<W> {
    pub(crate) waiter: Waiter<W>,
    pub(crate) why: Why,
    pub(crate) retry_at: Option<Tick>,
}

pub(crate) struct Queue<W> {
    heap: Heap<Waiter<W>>,
    next_sequence: u64,
    /// The turn: at most one ask is under way.
    asking: bool,
    hint: Option<Hint>,
    /// A pause that was called for here, and that the store may not know of.
    own_pause: Option<Hint>,
    generation: u64,
    instants: usize,
    stuck: u64,
    backing_off: usize,
}

impl<W> Queue<W> {
    pub(crate) fn new() -> Queue<W> {
        Queue {
            heap: Heap::new(),
            next_sequence: 0,
            asking: false,
            hint: None,
            own_pause: None,
            generation: 0,
            instants: 0,
            stuck: 0,
            backing_off: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Nobody waits and nobody asks.
    pub(crate) fn is_idle(&self) -> bool {
        self.heap.is_empty() && !self.asking
    }

    /// Whether a job of this priority would be the first to be served if it joined now.
    pub(crate) fn would_be_head(&self, priority: i32) -> bool {
        self.heap.peek().is_none_or(|(head, _)| self.heap.key(head).is_none_or(|(first, _)| priority > first))
    }

    /// The place in line of a call that comes now.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    pub(crate) fn join(&mut self, priority: i32, sequence: u64, waiter: Waiter<W>) -> Place {
        self.instants += usize::from(waiter.instant);
        self.stuck += waiter.inside;
        self.heap.push(priority, sequence, waiter)
    }

    /// Takes in a retry that backs off: it has a place, but is not queued and holds up nobody until it
    /// [comes back](Queue::come_back).
    pub(crate) fn back_off(&mut self, waiter: Waiter<W>) -> Place {
        self.backing_off += 1;
        self.heap.set_aside(waiter)
    }

    /// Queues the retry at this place, as the call that it was.
    pub(crate) fn come_back(&mut self, place: Place) {
        let Some(waiter) = self.heap.get_mut(place) else { return };
        let Some((priority, sequence)) = waiter.back_as.take() else { return };
        waiter.timer = None;
        self.stuck += waiter.inside;
        self.backing_off -= 1;
        let sequence = if fault("V45") { self.number() } else { sequence };
        self.heap.rank(place, priority, sequence);
    }

    pub(crate) fn is_backing_off(&self, place: Place) -> bool {
        self.heap.is_aside(place)
    }

    /// How many retries back off.
    pub(crate) fn backing_off(&self) -> usize {
        self.backing_off
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Waiter<W>> {
        self.heap.get_mut(place)
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Waiter<W>> {
        let waiter = self.heap.remove(place)?;
        if waiter.back_as.is_some() {
            self.backing_off -= 1;
        } else {
            self.instants -= usize::from(waiter.instant);
            self.stuck -= waiter.inside;
        }
        Some(waiter)
    }

    /// Takes out a retry that backs off, whichever.
    pub(crate) fn pop_backing_off(&mut self) -> Option<Waiter<W>> {
        let (place, _) = self.heap.aside().next()?;
        self.remove(place)
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter<W>> {
        let (head, _) = self.heap.peek()?;
        self.remove(head)
    }

    /// How many slots are held by threads that wait here and that nothing but a start can free.
    pub(crate) fn stuck(&self) -> u64 {
        self.stuck
    }

    /// The leases of those.
    pub(crate) fn stuck_leases(&self) -> impl Iterator<Item = &Token> {
        self.heap.iter().flat_map(|(_, waiter)| &waiter.leases)
    }

    /// The places of all that wait or back off, and their costs, in no order.
    pub(crate) fn costs(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        self.heap.iter().chain(self.heap.aside()).map(|(place, waiter)| (place, waiter.cost))
    }

    /// The latest to join of those that hold slots themselves.
    pub(crate) fn last_stuck(&self) -> Option<Place> {
        let stuck = self.heap.iter().filter(|(_, waiter)| waiter.inside > 0);
        stuck
            .max_by_key(|(place, _)| self.heap.key(*place).map(|(_, sequence)| sequence))
            .map(|(place, _)| place)
    }

    /// The hint, or our own pause, if it holds up a job of this cost now: of both the one that does so longer. A refusal by a
    /// rate says nothing of cheaper jobs.
    pub(crate) fn held_up(&self, cost: u32, now: Tick) -> Option<&Hint> {
        let hint = self.hint.as_ref().filter(|hint| {
            let same_kind = !matches!(hint.why, Why::Rate(_)) || cost >= hint.cost;
            now < hint.not_before && same_kind
        });
        let Some(own) = self.own_pause.as_ref().filter(|own| now < own.not_before) else { return hint };
        Some(hint.filter(|hint| hint.not_before > own.not_before).unwrap_or(own))
    }

    /// Whether the rates alone put a job of this cost after its deadline: then it need not wait to hear so.
    pub(crate) fn too_late(&self, cost: u32, deadline: Option<Tick>) -> Option<(usize, Tick)> {
        let hint = self.hint.as_ref()?;
        let (rule, at) = hint.rate?;
        (cost >= hint.cost && deadline.is_some_and(|deadline| at > deadline)).then_some((rule, at))
    }

    /// What holds up the head.
    pub(crate) fn head_blocked(&self, now: Tick, free: usize) -> Option<(Why, Option<Tick>)> {
        let (_, head) = self.heap.peek()?;
        match self.held_up(head.cost, now) {
            Some(hint) => Some((hint.why, Some(hint.not_before))),
            None if free == 0 => Some((Why::Local, None)),
            None => None,
        }
    }

    /// Gives the turn to the caller, for at most `most` of those in front and no more than `free` slots, if the head may
    /// ask. Whoever takes only the next answer and is not among them goes to `refused`.
    pub(crate) fn next(
        &mut self,
        now: Tick,
        free: usize,
        most: usize,
        asked: &mut Vec<Place>,
        refused: &mut Vec<Refused<W>>,
    ) -> (Next, Asked) {
        asked.clear();
        let ask = Asked { generation: self.generation };
        if self.asking {
            return (Next::Rest, ask);
        }
        loop {
            let Some((head, waiter)) = self.heap.peek() else { return (Next::Rest, ask) };
            let next = match self.held_up(waiter.cost, now) {
                Some(hint) => Next::Sleep(hint.not_before),
                None if free == 0 => Next::Rest,
                None => Next::Ask,
            };
            if next == Next::Ask {
                self.heap.first(free.min(most), asked);
                self.asking = true;
            }
            let head = (next != Next::Ask).then_some(head);
            if self.instants == 0 || !self.refuse_instants(head, now, free, asked, refused) {
                return (next, ask);
            }
        }
    }

    /// Takes out the instant waiters that no ask is made for; whether one of them was the head.
    fn refuse_instants(
        &mut self,
        idle_head: Option<Place>,
        now: Tick,
        free: usize,
        asked: &[Place],
        refused: &mut Vec<Refused<W>>,
    ) -> bool {
        let blocked = self.head_blocked(now, free);
        let out: Vec<Place> = self
            .heap
            .iter()
            .filter(|(place, waiter)| waiter.instant && !asked.contains(place))
            .map(|(place, _)| place)
            .collect();
        let mut head_gone = false;
        for place in out {
            let was_head = idle_head == Some(place);
            head_gone |= was_head;
            let (why, retry_at) =
                if was_head { blocked.unwrap_or((Why::Queue, None)) } else { (Why::Queue, None) };
            if let Some(waiter) = self.remove(place) {
                refused.push(Refused { waiter, why, retry_at });
            }
        }
        head_gone
    }

    /// Gives the turn back unused.
    pub(crate) fn give_back(&mut self) {
        self.asking = false;
    }

    /// Gives the turn to a call that never joined: nobody waits, nobody asks. `None` if it has to join or be refused.
    pub(crate) fn next_direct(&mut self, cost: u32, now: Tick) -> Option<Asked> {
        if !self.is_idle() || self.held_up(cost, now).is_some() {
            return None;
        }
        self.asking = true;
        Some(Asked { generation: self.generation })
    }

    /// The answer to an ask is in: the turn ends, and the hint is kept unless something happened meanwhile that makes it
    /// old. Those whom it puts beyond their deadline go to `refused`.
    pub(crate) fn answered(&mut self, asked: Asked, hint: Option<Hint>, refused: &mut Vec<Refused<W>>) {
        if !fault("turn-not-passed-on") {
            self.asking = false;
        }
        let fresh = asked.generation == self.generation || fault("old-hint-kept");
        let Some(hint) = hint.filter(|_| fresh) else { return };
        self.hint = Some(hint);
        let Some((rule, at)) = hint.rate else { return };
        let out: Vec<Place> = self
            .heap
            .iter()
            .filter(|(_, waiter)| self.too_late(waiter.cost, waiter.deadline).is_some())
            .map(|(place, _)| place)
            .collect();
        for place in out {
            if let Some(waiter) = self.remove(place) {
                refused.push(Refused { waiter, why: Why::Rate(rule), retry_at: Some(at) });
            }
        }
    }

    /// Counts what [`forget`](Queue::forget) and [`hold`](Queue::hold) did: equal before and after means neither came between.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Something changed that the last refusal did not know of: it counts no more, nor does an answer under way.
    pub(crate) fn forget(&mut self) {
        self.generation += 1;
        self.hint = None;
    }

    /// Nobody may ask before `until`, whatever the cost.
    pub(crate) fn hold(&mut self, why: Why, until: Tick) {
        self.generation += 1;
        self.hint = Some(Hint { cost: 0, not_before: until, why, rate: None });
    }

    /// A fleet-wide slot came free: whoever waited for one may ask now.
    pub(crate) fn slot_freed(&mut self) {
        if self.hint.is_some_and(|hint| hint.why == Why::Slots) {
            self.hint = None;
        }
        self.generation += 1;
    }

    /// The store answers again: whoever waited for that may ask now. What else is known still holds.
    pub(crate) fn store_back(&mut self) {
        if self.hint.is_some_and(|hint| hint.why == Why::Store) {
            self.forget();
        }
    }

    /// Nobody may ask before `until`, or longer if we hold them longer already: whatever else is heard, until
    /// [`pause_recorded`](Queue::pause_recorded) or [`lift_own_pause`](Queue::lift_own_pause).
    pub(crate) fn pause_ourselves(&mut self, until: Tick) {
        let until = self.own_pause.map_or(until, |own| own.not_before.max(until));
        self.own_pause = Some(Hint { cost: 0, not_before: until, why: Why::Paused, rate: None });
    }

    /// The store knows of a pause until then: up to there ours is needed no more.
    pub(crate) fn pause_recorded(&mut self, until: Tick) {
        self.own_pause = self.own_pause.filter(|own| own.not_before > until);
    }

    /// Somebody ended all pauses; whether there was one of our own.
    pub(crate) fn lift_own_pause(&mut self) -> bool {
        self.own_pause.take().is_some()
    }

    /// The pause that is known, if it holds now.
    pub(crate) fn paused_until(&self, now: Tick) -> Option<Tick> {
        let pauses = self.hint.iter().chain(&self.own_pause).filter(|hint| hint.why == Why::Paused);
        pauses.map(|pause| pause.not_before).max().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests;
