//! The leases that one valve holds on fleet-wide slots: until when each is trusted, what is to be renewed, what to release.
//!
//! Pure: it is told the time and does no I/O. Only the lease itself is shared with the job that holds it, so that the job
//! can ask without a lock whether it still does.

use crate::clock::Tick;
use crate::event::Callback;
use crate::planted::fault;
use crate::store::Token;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

/// One held slot.
pub(crate) struct Lease {
    pub(crate) token: Token,
    pub(crate) fence: Option<NonZeroU64>,
    /// Its full length.
    pub(crate) ttl: Tick,
    /// When our own clock ends it: its length after the last good renewal, or the ask, was *sent*.
    end: AtomicU64,
    /// Somebody was answered that it is lost: no later answer may differ.
    seen_lost: AtomicBool,
    /// Said once, never taken back.
    lost: AtomicBool,
    on_loss: Mutex<Vec<Arc<Callback>>>,
}

impl Lease {
    pub(crate) fn new(token: Token, fence: Option<NonZeroU64>, ttl: Tick, sent: Tick) -> Lease {
        Lease {
            token,
            fence,
            ttl,
            end: AtomicU64::new(sent.saturating_add(ttl)),
            seen_lost: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            on_loss: Mutex::new(Vec::new()),
        }
    }

    /// Whether it can be trusted no more: the store said so, or its end has come. Asked of the deadline itself, so the
    /// answer is right even if nobody has looked at it for a long time.
    pub(crate) fn is_lost(&self, now: Tick) -> bool {
        if self.lost.load(Ordering::Acquire) || self.seen_lost.load(Ordering::Acquire) {
            return true;
        }
        let over = now >= self.end() && !fault("V58");
        if over {
            // A renewal's answer may be on its way in at this very moment.
            self.seen_lost.store(true, Ordering::Release);
        }
        over
    }

    pub(crate) fn end(&self) -> Tick {
        self.end.load(Ordering::Acquire)
    }

    /// A renewal sent at `sent` came back good at `now`. It does nothing for a lease that was lost meanwhile.
    fn extend(&self, sent: Tick, now: Tick) {
        if fault("V57") {
            self.seen_lost.store(false, Ordering::Release);
            self.lost.store(false, Ordering::Release);
            return self.end.store(sent.saturating_add(self.ttl), Ordering::Release);
        }
        if !self.is_lost(now) {
            self.end.fetch_max(sent.saturating_add(self.ttl), Ordering::AcqRel);
        }
    }

    /// Marks it lost; whom to call, the first time.
    fn lose(&self) -> Option<Vec<Arc<Callback>>> {
        let mut on_loss = self.on_loss.lock();
        let first = !self.lost.swap(true, Ordering::AcqRel);
        first.then(|| std::mem::take(&mut *on_loss))
    }

    /// Has `callback` called when the lease is lost; `false` if it is lost already.
    pub(crate) fn on_loss(&self, callback: &Arc<Callback>) -> bool {
        let mut on_loss = self.on_loss.lock();
        if self.lost.load(Ordering::Acquire) {
            return false;
        }
        on_loss.retain(|other| other.is_wanted());
        on_loss.push(Arc::clone(callback));
        true
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lease")
            .field("token", &self.token)
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

/// The most leases in one renewal: what a store may be held up by one call.
pub(crate) const RENEWALS: usize = 500;
/// The most releases that ride on one ask.
pub(crate) const RIDES: usize = 256;

/// All leases of a valve.
#[derive(Default)]
pub(crate) struct Leases {
    held: HashMap<Token, Arc<Lease>>,
    /// Ended by their jobs, not known to be ended by the store; each until its own end.
    unsent: VecDeque<Release>,
    /// A renewal is under way, or waits for its thread.
    renewing: bool,
    /// When the next renewal is due.
    renew_at: Option<Tick>,
    /// None that is held ends before this: as of the last look at all of them, for one that is taken must not cost a look.
    first_end: Option<Tick>,
    /// The greatest fencing token this valve has seen.
    floor: u64,
}

/// A lease that the store is to end.
struct Release {
    token: Token,
    end: Tick,
    /// An ask that is under way has it along: to send it alone as well would double the calls of a store that takes long.
    riding: bool,
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// A slot was granted.
    pub(crate) fn take(&mut self, lease: &Arc<Lease>) {
        let due = lease.end() - lease.ttl + lease.ttl / 3;
        self.renew_at = Some(self.renew_at.map_or(due, |earlier| earlier.min(due)));
        self.first_end = Some(self.first_end.map_or(lease.end(), |earlier| earlier.min(lease.end())));
        self.floor = self.floor.max(lease.fence.map_or(0, NonZeroU64::get));
        self.held.insert(lease.token, Arc::clone(lease));
    }

    /// A job ended: its slot is to be released, unless it was lost. If nobody had noticed that yet: whom to call.
    pub(crate) fn end(&mut self, lease: &Lease, now: Tick) -> Option<Vec<Arc<Callback>>> {
        self.held.remove(&lease.token);
        if lease.is_lost(now) {
            return lease.lose();
        }
        self.unsent.push_back(Release { token: lease.token, end: lease.end(), riding: false });
        None
    }

    /// Whether this one is still held.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.held.contains_key(&token)
    }

    /// A slot may be held that no job has: its ask's outcome is unknown, or its job gave up.
    pub(crate) fn abandon(&mut self, token: Token, end: Tick) {
        self.unsent.push_back(Release { token, end, riding: false });
    }

    /// The releases to send next, the oldest first; they stay until [`released`](Leases::released).
    pub(crate) fn unsent(&mut self, most: usize, now: Tick, out: &mut Vec<Token>) {
        self.unsent.retain(|release| now < release.end);
        out.clear();
        let alone = self.unsent.iter().filter(|release| !release.riding);
        out.extend(alone.take(most).map(|release| release.token));
    }

    /// The same, for an ask to take along: they are not sent otherwise until it is known to have failed, which
    /// [`stranded`](Leases::stranded) says.
    pub(crate) fn ride(&mut self, most: usize, now: Tick, out: &mut Vec<Token>) {
        self.unsent.retain(|release| now < release.end);
        out.clear();
        for release in self.unsent.iter_mut().filter(|release| !release.riding).take(most) {
            release.riding = true;
            out.push(release.token);
        }
    }

    /// The ask that took releases along is over: those that are still there may not have been carried out.
    pub(crate) fn stranded(&mut self) {
        for release in &mut self.unsent {
            release.riding = false;
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.iter().any(|release| !release.riding)
    }

    /// The store has carried out these releases.
    pub(crate) fn released(&mut self, tokens: &[Token]) {
        // They are mostly the oldest, in order.
        for token in tokens {
            if self.unsent.front().is_some_and(|first| first.token == *token) {
                self.unsent.pop_front();
            } else {
                self.unsent.retain(|other| other.token != *token);
            }
        }
    }

    /// Ends what has come to its end, and says whether a renewal is due: that is said once, until
    /// [`renewed`](Leases::renewed).
    pub(crate) fn due(&mut self, now: Tick, lost: &mut Vec<Arc<Callback>>) -> bool {
        self.held.retain(|_, lease| {
            let over = lease.is_lost(now);
            if over {
                lost.extend(lease.lose().unwrap_or_default());
            }
            !over
        });
        if self.held.is_empty() {
            self.renew_at = None;
        }
        self.look_at_ends();
        let renew = !self.renewing && self.renew_at.is_some_and(|at| at <= now);
        if renew {
            self.renewing = true;
            self.renew_at = None;
        }
        renew
    }

    /// When [`due`](Leases::due) should be asked next.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        let first_end = self.first_end.filter(|_| !self.held.is_empty());
        self.renew_at.filter(|_| !self.renewing).into_iter().chain(first_end).min()
    }

    fn look_at_ends(&mut self) {
        self.first_end = self.held.values().map(|lease| lease.end()).min();
    }

    /// All that is held, to be renewed: the early ones too, so that all fall due together from then on.
    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        self.held.values().cloned().collect()
    }

    /// One renewal's answer: what held is extended, what did not is lost at once.
    pub(crate) fn answered(
        &mut self,
        asked: &[Arc<Lease>],
        held: &[bool],
        sent: Tick,
        now: Tick,
        lost: &mut Vec<Arc<Callback>>,
    ) -> usize {
        let mut count = 0;
        for (lease, &held) in asked.iter().zip(held) {
            if held || fault("V55") {
                lease.extend(sent, now);
            } else if self.held.remove(&lease.token).is_some() {
                count += 1;
                lost.extend(lease.lose().unwrap_or_default());
            }
        }
        count
    }

    /// The renewal is over; the next is due at `next`, or when a new lease asks for it.
    pub(crate) fn renewed(&mut self, next: Tick) {
        self.renewing = false;
        self.look_at_ends();
        if !self.held.is_empty() {
            self.renew_at = Some(self.renew_at.map_or(next, |earlier| earlier.min(next)));
        }
    }
}

#[cfg(test)]
mod tests;
