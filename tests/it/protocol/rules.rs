//! The rules of the lease protocol, each as the way to break it.

/// One rule broken. Where a rule stands in the code is said at the rule, in `owner.rs`, `store.rs` and `schedule.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The store renews a lease that has ended, as if it still held.
    RenewalRevives,
    /// The store ends whichever lease has the slot, not the one that is named.
    ReleaseBySlot,
    /// The store keeps a lease until it is released, however long that takes.
    LeaseWithoutEnd,
    /// The store counts leases that have ended.
    PurgeForgotten,
    /// The store forgets its last fencing token when no lease is left.
    FenceForgotten,
    /// The store gives fencing tokens of its own only, whatever the asker has seen.
    FloorIgnored,
    /// The store carries out asks and renewals that their senders have given up on.
    NotAfterIgnored,
    /// The owner counts a lease from when the grant came, not from when the ask was sent.
    TrustFromGrant,
    /// The owner counts a lease from when the renewal's answer came, not from when it was sent.
    TrustFromAnswer,
    /// The owner trusts a lease at its last instant too.
    EndIncluded,
    /// The owner goes by what its timers have noted, not by the end itself.
    FlagInsteadOfEnd,
    /// A renewal that comes back good too late restores the lease.
    LateRenewalRestores,
    /// An owner that saw the end pass does not remember that it did.
    LossNotKept,
    /// The owner goes on after the store said that the lease is gone.
    StoreNotBelieved,
    /// A grant that nobody waits for any more is kept, and renewed.
    GrantNotTakenBack,
    /// A waiter whose ask is on its way waits for the answer beyond its deadline.
    DeadlineIgnored,
    /// A name is used again although a message about its last use may be on its way.
    NameReused,
}

impl Broken {
    pub(crate) const ALL: [Broken; 17] = [
        Broken::RenewalRevives,
        Broken::ReleaseBySlot,
        Broken::LeaseWithoutEnd,
        Broken::PurgeForgotten,
        Broken::FenceForgotten,
        Broken::FloorIgnored,
        Broken::NotAfterIgnored,
        Broken::TrustFromGrant,
        Broken::TrustFromAnswer,
        Broken::EndIncluded,
        Broken::FlagInsteadOfEnd,
        Broken::LateRenewalRestores,
        Broken::LossNotKept,
        Broken::StoreNotBelieved,
        Broken::GrantNotTakenBack,
        Broken::DeadlineIgnored,
        Broken::NameReused,
    ];
}

/// How long a lease lasts, in the model's ticks.
pub(crate) const TTL: u8 = 3;
/// How often it is renewed.
pub(crate) const THIRD: u8 = TTL / 3;
/// How long the sender of a call waits for its answer.
pub(crate) const TIMEOUT: u8 = 1;

/// The names that one process may use at once: its present one, and the one before that others may still speak of.
pub(crate) const NAMES: usize = 2;
pub(crate) const PRESENT: usize = 0;
pub(crate) const BEFORE: usize = 1;
