//! Tables of single leases and of a valve's table of them, by the tick.

mod walk;

use super::*;
use crate::event::Abort;

/// A lease of 300 ticks from an ask sent at `sent`.
fn lease(name: u128, sent: Tick) -> Arc<Lease> {
    Arc::new(Lease::new(Token(name), NonZeroU64::new(10 + sent), 300, sent))
}

/// Leases under the names 1, 2, ..., from asks sent at these ticks.
fn held(sent: &[Tick]) -> (Leases, Vec<Arc<Lease>>) {
    let mut leases = Leases::default();
    let list: Vec<_> = (1..).zip(sent).map(|(name, &sent)| lease(name, sent)).collect();
    list.iter().for_each(|lease| leases.take(lease));
    (leases, list)
}

/// What comes due at `now`: whether a renewal is, and how many callbacks of lost leases.
fn due(leases: &mut Leases, now: Tick) -> (bool, usize) {
    let mut lost = Vec::new();
    (leases.due(now, &mut lost), lost.len())
}

fn answer(leases: &mut Leases, asked: &[Arc<Lease>], held: &[bool], sent: Tick, now: Tick) -> (usize, usize) {
    let mut lost = Vec::new();
    let count = leases.answered(asked, held, sent, now, &mut lost);
    (count, lost.len())
}

fn unsent(leases: &mut Leases, most: usize, now: Tick) -> Vec<u128> {
    let mut out = vec![Token(99)];
    leases.unsent(most, now, &mut out);
    out.iter().map(|token| token.0).collect()
}

/// What happens to a lease of 300 ticks asked for at 0.
#[derive(Debug, Clone, Copy)]
enum Happens {
    /// A renewal sent at the first comes back good at the second.
    Renewed(Tick, Tick),
    /// A renewal comes back with the store's word that the lease is gone.
    Refused,
    /// Somebody looks.
    Looked(Tick),
    /// The timers run.
    Due(Tick),
}
use Happens::{Due, Looked, Refused, Renewed};

/// Whether the lease is trusted at each of these ticks, after all of that has happened.
#[track_caller]
fn check_trust(happens: &[Happens], expected: &[(Tick, bool)]) {
    let (mut leases, list) = held(&[0]);
    for &what in happens {
        match what {
            Renewed(sent, now) => _ = answer(&mut leases, &list, &[true], sent, now),
            Refused => _ = answer(&mut leases, &list, &[false], 0, 1),
            Looked(now) => _ = list[0].is_lost(now),
            Due(now) => _ = due(&mut leases, now),
        }
    }
    for &(now, trusted) in expected {
        assert_eq!(!list[0].is_lost(now), trusted, "at {now} after {happens:?}");
    }
}

#[test]
fn a_lease_is_trusted_for_its_length_from_when_it_was_asked_for() {
    check_trust(&[], &[(0, true), (299, true), (300, false), (Tick::MAX, false)]);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    check_trust(&[Renewed(100, 190)], &[(299, true), (399, true), (400, false)]);
    check_trust(&[Renewed(100, 190), Renewed(190, 195)], &[(489, true), (490, false)]);
}

#[test]
fn an_older_renewal_takes_nothing_back() {
    check_trust(&[Renewed(200, 210), Renewed(100, 220)], &[(499, true), (500, false)]);
}

#[test]
fn a_late_renewal_restores_nothing() {
    check_trust(&[Renewed(299, 300)], &[(300, false)]);
    check_trust(&[Renewed(299, 299)], &[(598, true), (599, false)]);
}

#[test]
fn what_the_store_has_given_away_is_lost_at_once() {
    check_trust(&[Refused], &[(1, false)]);
    check_trust(&[Refused, Renewed(0, 2)], &[(2, false)]);
}

#[test]
fn who_was_told_of_a_loss_is_never_told_otherwise() {
    // The renewal's thread read the clock at 290, stood still while others looked at 305, and went on.
    for told in [Looked(305), Due(305)] {
        check_trust(&[told, Renewed(200, 290)], &[(306, false)]);
    }
}

#[test]
fn a_loss_is_said_once_to_everyone_who_wished_to_know() {
    let (mut leases, list) = held(&[0]);
    let callbacks = [(); 3].map(|()| Callback::new(|_: Abort| ()));
    for callback in &callbacks {
        assert!(list[0].on_loss(callback));
    }
    assert_eq!(due(&mut leases, 299), (true, 0));
    assert_eq!(due(&mut leases, 300), (false, 3));
    assert_eq!(due(&mut leases, 301), (false, 0));
    assert_eq!(answer(&mut leases, &list, &[false], 100, 302), (0, 0));
    assert!(leases.end(&list[0], 303).is_none());
    assert!(!list[0].on_loss(&callbacks[0]), "too late to wish");
}

#[test]
fn a_wish_taken_back_is_forgotten() {
    let (mut leases, list) = held(&[0]);
    let callbacks = [(); 2].map(|()| Callback::new(|_: Abort| ()));
    assert!(list[0].on_loss(&callbacks[0]));
    callbacks[0].forget();
    assert!(list[0].on_loss(&callbacks[1]));
    assert_eq!(answer(&mut leases, &list, &[false], 0, 1), (1, 1));
}

#[test]
fn a_job_that_ends_after_its_end_is_the_first_to_know() {
    let (mut leases, list) = held(&[0]);
    let callback = Callback::new(|_: Abort| ());
    assert!(list[0].on_loss(&callback));
    assert_eq!(leases.end(&list[0], 300).map(|lost| lost.len()), Some(1));
    assert_eq!(due(&mut leases, 300), (false, 0));
}

#[test]
fn only_those_that_did_not_hold_are_lost() {
    let (mut leases, list) = held(&[0, 0, 0]);
    assert_eq!(answer(&mut leases, &list, &[true, false, true], 100, 110), (1, 0));
    assert_eq!((leases.len(), leases.holds(Token(2))), (2, false));
    assert_eq!(list.iter().map(|lease| lease.is_lost(399)).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn the_store_may_not_know_a_lease_that_its_job_has_ended() {
    let (mut leases, list) = held(&[0]);
    assert!(leases.end(&list[0], 50).is_none());
    assert_eq!(
        answer(&mut leases, &list, &[false], 40, 60),
        (0, 0),
        "released before it was renewed: no loss"
    );
}

/// Looks at these ticks; each is (tick, whether a renewal is due, when to look next). A renewal that is due is sent then
/// and comes back good ten ticks later.
#[track_caller]
fn check_renewals(sent: &[Tick], looks: &[(Tick, bool, Tick)]) {
    let (mut leases, _list) = held(sent);
    for &(now, expected, next) in looks {
        assert_eq!(due(&mut leases, now).0, expected, "at {now}");
        if expected {
            let all = leases.all();
            answer(&mut leases, &all, &vec![true; all.len()], now, now + 10);
            leases.renewed(now + 100);
        }
        assert_eq!(leases.next_due(), Some(next), "next after {now}");
    }
}

#[test]
fn a_renewal_is_due_each_third() {
    check_renewals(
        &[0],
        &[(0, false, 100), (99, false, 100), (100, true, 200), (200, true, 300), (300, true, 400)],
    );
}

#[test]
fn all_fall_due_with_the_first() {
    check_renewals(&[0, 30, 90], &[(50, false, 100), (100, true, 200), (130, false, 200), (200, true, 300)]);
}

#[test]
fn a_new_lease_is_renewed_in_its_own_time_though_a_renewal_is_under_way() {
    let (mut leases, _list) = held(&[0]);
    assert!(due(&mut leases, 100).0);
    leases.take(&lease(2, 110));
    assert!(!due(&mut leases, 210).0, "one at a time");
    assert_eq!(leases.next_due(), Some(300), "only ends matter meanwhile");
    leases.renewed(290);
    assert_eq!(leases.next_due(), Some(210), "it is late already");
    assert!(due(&mut leases, 215).0);
}

#[test]
fn a_renewal_that_failed_is_tried_again_until_the_end() {
    let (mut leases, list) = held(&[0]);
    assert!(due(&mut leases, 100).0);
    leases.renewed(150);
    assert_eq!(leases.next_due(), Some(150));
    assert!(due(&mut leases, 150).0);
    leases.renewed(350);
    assert_eq!(leases.next_due(), Some(300), "the end comes first");
    assert!(!due(&mut leases, 300).0);
    assert!(list[0].is_lost(300) && leases.len() == 0);
    assert_eq!(leases.next_due(), None);
}

#[test]
fn nothing_is_due_without_leases() {
    let (mut leases, list) = held(&[0]);
    assert!(leases.end(&list[0], 10).is_none());
    assert!(!due(&mut leases, 100).0);
    assert_eq!(leases.next_due(), None);
    leases.renewed(200);
    assert_eq!(leases.next_due(), None);
}

#[test]
fn releases_go_oldest_first_and_stay_until_they_are_carried_out() {
    let (mut leases, list) = held(&[0, 0, 0, 0]);
    for at in [2, 0, 3, 1] {
        assert!(leases.end(&list[at], 10).is_none());
    }
    assert_eq!(unsent(&mut leases, 3, 20), [3, 1, 4]);
    assert_eq!(unsent(&mut leases, 9, 20), [3, 1, 4, 2], "asked again, told again");
    leases.released(&[Token(3), Token(1)]);
    assert_eq!(unsent(&mut leases, 9, 20), [4, 2]);
    leases.released(&[Token(2), Token(7)]);
    assert_eq!(unsent(&mut leases, 9, 20), [4], "out of order, and what is not there");
    leases.released(&[Token(4)]);
    assert!(!leases.has_unsent());
    assert!(unsent(&mut leases, 9, 20).is_empty());
}

#[test]
fn a_release_that_an_ask_takes_along_is_not_sent_otherwise_until_the_ask_fails() {
    let (mut leases, list) = held(&[0, 0, 0, 0]);
    for lease in &list[..3] {
        assert!(leases.end(lease, 10).is_none());
    }
    let mut taken = Vec::new();
    leases.ride(2, 20, &mut taken);
    assert_eq!(taken, [Token(1), Token(2)]);
    assert_eq!(unsent(&mut leases, 9, 20), [3], "no seat was left for it");
    leases.ride(9, 20, &mut taken);
    assert_eq!(taken, [Token(3)]);
    assert!(!leases.has_unsent());
    leases.stranded();
    assert_eq!(unsent(&mut leases, 9, 20), [1, 2, 3]);
    leases.ride(9, 20, &mut taken);
    assert!(leases.end(&list[3], 20).is_none());
    assert_eq!(unsent(&mut leases, 9, 20), [4], "it ended while the ask was under way");
    leases.released(&taken);
    leases.stranded();
    assert_eq!(unsent(&mut leases, 9, 20), [4]);
}

#[test]
fn a_release_is_given_up_when_its_lease_would_end() {
    let (mut leases, list) = held(&[0, 100]);
    for lease in &list {
        assert!(leases.end(lease, 120).is_none());
    }
    leases.abandon(Token(5), 250);
    assert_eq!(unsent(&mut leases, 9, 249), [1, 2, 5]);
    assert_eq!(unsent(&mut leases, 9, 250), [1, 2], "an ask of unknown outcome has an end of its own");
    assert_eq!(unsent(&mut leases, 9, 300), [2]);
    assert!(unsent(&mut leases, 9, 400).is_empty());
    assert!(!leases.has_unsent());
}

#[test]
fn what_was_lost_is_not_released() {
    let (mut leases, list) = held(&[0, 0]);
    answer(&mut leases, &list, &[false, true], 0, 10);
    for lease in &list {
        leases.end(lease, 300);
    }
    assert!(!leases.has_unsent());
}

#[test]
fn the_floor_is_the_greatest_fencing_token_seen() {
    let (mut leases, list) = held(&[0, 50, 20]);
    assert_eq!(leases.floor(), 60);
    for lease in &list {
        leases.end(lease, 60);
    }
    leases.take(&Arc::new(Lease::new(Token(9), None, 300, 70)));
    assert_eq!(leases.floor(), 60);
}
