//! What must always hold, and what must sometimes happen for that to mean anything.

/// What every schedule keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// By the store's own clock.
    NeverMoreLeasesThanSlots,
    /// Of those whose grants the store has not lost.
    NeverMoreOwnersThanSlots,
    /// An owner that trusts its lease has it at the store, unless the store lost its state since.
    TrustMeansALiveLease,
    LossIsNeverTakenBack,
    /// While the store keeps its state; and each process sees its own increase whatever the store loses.
    FencingTokensIncrease,
    /// By its length, and the time for which a message counts, after its owner is gone.
    AnOrphanEndsByItself,
    AWaiterEndsByItsDeadline,
    AFreeSlotIsNotRefused,
}

/// A claim that did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Breach(pub(super) Claim);

impl Claim {
    pub(super) fn holds(self, so: bool) -> Result<(), Breach> {
        if so { Ok(()) } else { Err(Breach(self)) }
    }
}

/// What the exploration must meet, else it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sometimes {
    AllSlotsAreOwned,
    RenewalExtends,
    LeaseEndsByOwnClock,
    StoreSaysLost,
    GoodAnswerAfterLoss,
    AnswerReadBeforeLoss,
    ReleaseRides,
    ReleaseOvertakesRenewal,
    OrphanEndsByItself,
    OrphanBeyondRelease,
    AskOutlivesItsSender,
    AskCarriedOutTwice,
    StaleRequest,
    GrantIsTakenBack,
    WaiterEndsWhileItsAskIsOut,
    FrozenOwnerIsOvertaken,
    OwnerCrashes,
    StateIsLostUnderAnOwner,
    LostStateLetsMoreIn,
    FloorDecides,
}

impl Sometimes {
    pub(super) const ALL: [Sometimes; 20] = [
        Sometimes::AllSlotsAreOwned,
        Sometimes::RenewalExtends,
        Sometimes::LeaseEndsByOwnClock,
        Sometimes::StoreSaysLost,
        Sometimes::GoodAnswerAfterLoss,
        Sometimes::AnswerReadBeforeLoss,
        Sometimes::ReleaseRides,
        Sometimes::ReleaseOvertakesRenewal,
        Sometimes::OrphanEndsByItself,
        Sometimes::OrphanBeyondRelease,
        Sometimes::AskOutlivesItsSender,
        Sometimes::AskCarriedOutTwice,
        Sometimes::StaleRequest,
        Sometimes::GrantIsTakenBack,
        Sometimes::WaiterEndsWhileItsAskIsOut,
        Sometimes::FrozenOwnerIsOvertaken,
        Sometimes::OwnerCrashes,
        Sometimes::StateIsLostUnderAnOwner,
        Sometimes::LostStateLetsMoreIn,
        Sometimes::FloorDecides,
    ];
}

/// What was met, as bits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen(u32);

impl Seen {
    pub(super) fn note(&mut self, what: Sometimes) {
        self.0 |= 1 << what as u32;
    }

    pub(super) fn note_if(&mut self, so: bool, what: Sometimes) {
        self.0 |= u32::from(so) << what as u32;
    }

    pub(super) fn add(&mut self, other: Seen) {
        self.0 |= other.0;
    }

    pub(super) fn lacks(self) -> Vec<Sometimes> {
        Sometimes::ALL.into_iter().filter(|&what| self.0 & 1 << what as u32 == 0).collect()
    }
}
