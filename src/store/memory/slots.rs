//! Which fleet-wide slots of an id are held, until when, and the last fencing token.

use crate::planted::fault;
use crate::store::Token;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;

#[derive(Default)]
pub(super) struct Held {
    ends: HashMap<Token, u64>,
    by_end: BTreeSet<(u64, Token)>,
    fence: u64,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether forgetting all this could give a fencing token twice.
    pub(super) fn must_remember(&self, now: u64) -> bool {
        self.fence > now
    }

    /// How many are held now. A lease ends at its last microsecond, not after it.
    pub(super) fn count(&mut self, now: u64) -> usize {
        while let Some(&(end, token)) = self.by_end.first() {
            if end > now {
                break;
            }
            self.by_end.pop_first();
            self.ends.remove(&token);
        }
        self.ends.len()
    }

    /// Takes slots under these names; the fencing token of the first.
    pub(super) fn take(&mut self, tokens: &[Token], now: u64, end: u64, floor: u64) -> Option<NonZeroU64> {
        let count = tokens.len() as u64;
        if count == 0 {
            return None;
        }
        for &token in tokens {
            // An ask may come twice: its name has one end only.
            if let Some(old) = self.ends.insert(token, end) {
                self.by_end.remove(&(old, token));
            }
            self.by_end.insert((end, token));
        }
        let first = self.fence.max(floor).max(now) + 1;
        self.fence = if fault("V60") { 0 } else { first + count - 1 };
        NonZeroU64::new(first)
    }

    /// Makes a lease that still holds last until `end`.
    pub(super) fn renew(&mut self, token: Token, now: u64, end: u64) -> bool {
        match self.ends.get_mut(&token) {
            Some(old) if *old > now || fault("V40") => {
                self.by_end.remove(&(*old, token));
                self.by_end.insert((end, token));
                *old = end;
                true
            }
            _ => false,
        }
    }

    /// Ends these; whether any was held.
    pub(super) fn end(&mut self, tokens: &[Token]) -> bool {
        let before = self.ends.len();
        if fault("V41") && !tokens.is_empty() {
            self.ends.clear();
            self.by_end.clear();
        }
        for token in tokens {
            if let Some(end) = self.ends.remove(token) {
                self.by_end.remove(&(end, *token));
            }
        }
        self.ends.len() < before
    }
}
