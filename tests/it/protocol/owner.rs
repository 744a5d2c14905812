//! The owner's side of the protocol: what `src/lease.rs` does for one process's slot, in ticks of the model.
//!
//! `src/lease/tests.rs` puts this and the real table through the same calls.

use super::rules::{BEFORE, Broken, NAMES, PRESENT, THIRD, TIMEOUT, TTL};

/// What a process knows of its leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// It has a lease under its present name.
    pub(crate) held: bool,
    /// Ticks until that ends by its own clock.
    pub(crate) left: u8,
    /// It was noticed that it is lost.
    pub(crate) lost: bool,
    /// Ticks until it is given up to release what it had under each name; 0 if there is nothing to release.
    pub(crate) unsent: [u8; NAMES],
}

impl Owner {
    /// A slot was granted by an ask sent `age` ticks ago. `Lease::new`: the lease is counted from then.
    pub(crate) fn granted(&mut self, age: u8, broken: Option<Broken>) {
        self.held = true;
        self.lost = false;
        self.left = if broken == Some(Broken::TrustFromGrant) { TTL } else { TTL.saturating_sub(age) };
        self.left += u8::from(broken == Some(Broken::EndIncluded));
    }

    /// Whether the lease can be trusted no more. `Lease::is_lost`: it looks at the end itself.
    pub(crate) fn is_lost(&self, broken: Option<Broken>) -> bool {
        self.lost || self.left == 0 && broken != Some(Broken::FlagInsteadOfEnd)
    }

    /// The job, or anybody, asks whether the lease is lost. `Lease::seen_lost`: what was said once stays so.
    pub(crate) fn looked_at(&mut self, broken: Option<Broken>) -> bool {
        let lost = self.is_lost(broken);
        if lost && broken != Some(Broken::LossNotKept) {
            self.lost = true;
        }
        lost
    }

    /// Whether a renewal is due: a third after the last good one, or the ask, was sent. `Leases::due`.
    pub(crate) fn is_due(&self) -> bool {
        self.held && !self.lost && self.left > 0 && self.left <= TTL - THIRD
    }

    /// A renewal sent `age` ticks ago came back good. `Lease::extend`: nothing for what was lost when the answer was read,
    /// or since.
    pub(crate) fn extended(&mut self, age: u8, lost_when_read: bool, broken: Option<Broken>) {
        if broken == Some(Broken::LateRenewalRestores) {
            self.lost = false;
        } else if lost_when_read || self.lost {
            return;
        }
        let left = if broken == Some(Broken::TrustFromAnswer) { TTL } else { TTL.saturating_sub(age) };
        self.left = self.left.max(left + u8::from(broken == Some(Broken::EndIncluded)));
    }

    /// A renewal came back with the store's word that the lease is gone. `Leases::answered`: lost at once.
    pub(crate) fn refused(&mut self, broken: Option<Broken>) {
        if broken != Some(Broken::StoreNotBelieved) {
            self.lost = true;
        }
    }

    /// The job ended. `Leases::end`: there is something to release, unless it was lost.
    pub(crate) fn ended(&mut self, broken: Option<Broken>) {
        if !self.is_lost(broken) {
            self.unsent[PRESENT] = self.left;
        }
        self.held = false;
        self.lost = false;
        self.left = 0;
    }

    /// What came of an ask sent `age` ticks ago will not be known. `Core::abandon`: it may have taken a slot, which is
    /// released for as long as the ask may be carried out and a lease lasts.
    pub(crate) fn abandoned(&mut self, age: u8) {
        self.unsent[PRESENT] = (TTL + TIMEOUT).saturating_sub(age);
    }

    /// The store has carried out the release of this name. `Leases::released`.
    pub(crate) fn released(&mut self, name: usize) {
        self.unsent[name] = 0;
    }

    /// The names to be released next, as bits. `Leases::unsent`.
    pub(crate) fn unreleased(&self) -> u8 {
        u8::from(self.unsent[PRESENT] > 0) | u8::from(self.unsent[BEFORE] > 0) << BEFORE
    }

    /// A tick passes; its timers run only while the process does. `Leases::due` notes what has come to its end.
    pub(crate) fn pass(&mut self, runs: bool) {
        self.left = self.left.saturating_sub(1);
        for left in &mut self.unsent {
            *left = left.saturating_sub(1);
        }
        self.lost |= runs && self.held && self.left == 0;
    }

    /// It uses a new name; what was its present one is the one before.
    pub(crate) fn rename(&mut self) {
        self.unsent.swap(PRESENT, BEFORE);
    }
}
