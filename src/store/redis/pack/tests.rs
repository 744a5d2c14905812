//! Layouts: what the scripts are given, byte by byte, and that only what they can say is believed.

use super::{Address, Notified};
use crate::error::{Executed, StoreErrorKind};
use crate::rule::{Rule, RuleSet};
use crate::store::{Answer, Ask, Lease, Refusal, Slots, Token};
use std::num::NonZeroU64;
use std::time::Duration;

const ADDRESS: Address<'static> = Address { channel: b"channel", id: "id" };
const SECOND: Duration = Duration::from_secs(1);

fn rules(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
    RuleSet::new(rules.into_iter().collect()).unwrap()
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

#[track_caller]
fn check_ask(ask: &Ask<'_>, numbers: &[f64], rest: &[&[u8]]) {
    let arguments = super::admit(ask, ADDRESS).unwrap();
    let parts = arguments.parts();
    assert_eq!(parts[0], doubles(numbers), "the numbers");
    assert_eq!(&parts[1..], rest, "what follows");
}

#[test]
fn an_ask_is_its_numbers_then_names_then_tokens() {
    let none = rules([]);
    check_ask(&Ask::new(&none, &[1]), &[0., 1., 1., -1., 0., 0., 0., 0.], &[]);
    check_ask(&Ask::new(&none, &[]), &[0., 0., 0., -1., 0., 0., 0., 0.], &[]);

    // A third of a second is 333,333 1/3 us; five of them are 1,666,666 2/3.
    let both = rules([Rule::gcra(3, SECOND).burst(5).into(), Rule::fixed_window(9, SECOND).into()]);
    let gcra = [333_333., 1., 3., 1_666_666., 2., 5.];
    let window = [9., 1e6, 0., 0., 0., 0.];
    let mut ask = Ask::new(&both, &[2, 2, 2]);
    ask.waits = true;
    let numbers = [&[2., 3., 2., -1., 0., 0., 0., 1.][..], &gcra, &window].concat();
    check_ask(&ask, &numbers, &[b"gcra/1s", b"window/1s"]);

    // Other costs follow; so do the channel, the releases and the tokens.
    let tokens = [Token(1), Token(u128::MAX)];
    let mut ask = Ask::new(&both, &[2, 7]);
    let mut slots = Slots::new(4, Duration::from_nanos(1_500), &tokens);
    slots.floor = (1 << 53) - 1;
    (ask.slots, ask.releases) = (Some(slots), &[Token(0x0102)]);
    let head = [2., 2., 0., 4., 2., 9_007_199_254_740_991., 1., 0.];
    let numbers = [&head[..], &gcra, &window, &[2., 7.]].concat();
    let release = [&[0; 14][..], &[1, 2]].concat();
    let one = [&[0; 15][..], &[1]].concat();
    let rest: [&[u8]; 7] = [b"gcra/1s", b"window/1s", b"channel", b"id", &release, &one, &[255; 16]];
    check_ask(&ask, &numbers, &rest);
}

#[track_caller]
fn check_refused(ask: &Ask<'_>, names: &str) {
    let error = super::admit(ask, ADDRESS).unwrap_err();
    assert_eq!(error.executed(), Executed::No);
    assert!(error.to_string().contains(names), "{error}");
}

#[test]
fn asks_that_no_script_could_answer_are_not_sent() {
    let none = rules([]);
    check_refused(&Ask::new(&none, &[1; 1_025]), "1025 jobs");
    let tokens = [Token(0); 1_025];
    let mut ask = Ask::new(&none, &[1]);
    ask.releases = &tokens;
    check_refused(&ask, "1025 releases");
    let mut ask = Ask::new(&none, &[1, 1]);
    ask.slots = Some(Slots::new(1, SECOND, &tokens[..1]));
    check_refused(&ask, "1 tokens for 2 jobs");
    let mut slots = Slots::new(1, SECOND, &tokens[..2]);
    slots.floor = 1 << 53;
    ask.slots = Some(slots);
    check_refused(&ask, "fencing token above 9007199254740992");
    assert!(super::release(&tokens, ADDRESS).is_err());
    let leases = tokens.map(|token| Lease { token, ttl: SECOND });
    assert!(super::renew(&leases).is_err());
    assert!(super::renew(&leases[..1_024]).is_ok());
}

#[test]
fn renewals_tell_the_length_once_if_it_is_the_same() {
    let lease = |token, secs| Lease { token: Token(token), ttl: SECOND * secs };
    let same = super::renew(&[lease(1, 2), lease(2, 2)]).unwrap();
    assert_eq!(same.parts()[0], doubles(&[2., 2e6]));
    let apart = super::renew(&[lease(1, 2), lease(2, 3)]).unwrap();
    assert_eq!(apart.parts()[0], doubles(&[2., 0., 2e6, 3e6]));
    assert_eq!(apart.parts()[1..], [1_u128.to_be_bytes(), 2_u128.to_be_bytes()]);
}

#[test]
fn the_other_scripts_are_told_the_channel_and_the_id() {
    let address: [&[u8]; 2] = [b"channel", b"id"];
    assert_eq!(super::resume(ADDRESS).parts(), [&[][..], address[0], address[1]]);
    // Ten years are the longest there is.
    let longest = doubles(&[315_360_000e6]);
    assert_eq!(super::pause(Duration::MAX, ADDRESS).parts(), [&longest[..], address[0], address[1]]);
    let token = 5_u128.to_be_bytes();
    assert_eq!(super::release(&[Token(5)], ADDRESS).unwrap().parts(), [&[], address[0], address[1], &token]);
}

fn reply(numbers: [f64; 6], flags: u8) -> Vec<u8> {
    [doubles(&numbers), vec![flags]].concat()
}

/// What a reply says of an ask for two jobs under two rules: with slots, or without.
fn read(payload: &[u8], with_slots: Option<u64>) -> Result<(Answer, Notified), StoreErrorKind> {
    let two = rules([Rule::gcra(3, SECOND).into(), Rule::fixed_window(9, SECOND).into()]);
    let tokens = [Token(1), Token(2)];
    let mut ask = Ask::new(&two, &[1, 1]);
    ask.slots = with_slots.map(|floor| {
        let mut slots = Slots::new(1, SECOND, &tokens);
        slots.floor = floor;
        slots
    });
    let mut answer = Answer { granted: 77, ..Answer::default() };
    match super::admitted(payload, &ask, &mut answer) {
        Ok(notified) => Ok((answer, notified)),
        Err(error) => {
            assert_eq!((error.executed(), answer.granted), (Executed::Unknown, 77), "{error}");
            Err(error.kind())
        }
    }
}

#[track_caller]
fn check_reply(payload: &[u8], with_slots: Option<u64>, expected: Answer, notified: Notified) {
    assert_eq!(read(payload, with_slots), Ok((expected, notified)));
    for size in 0..payload.len() {
        assert_eq!(read(&payload[..size], with_slots), Err(StoreErrorKind::Protocol), "cut to {size} bytes");
    }
    let longer = [payload, &[0]].concat();
    assert_eq!(read(&longer, with_slots), Err(StoreErrorKind::Protocol), "a byte too many");
}

#[test]
fn replies_are_read_as_the_script_means_them() {
    let answer = |granted, refusal| Answer { granted, at: 5, fence: None, refusal };
    let refusal = Refusal::default();
    let us = Duration::from_micros;

    let short = doubles(&[2., 5.]);
    assert_eq!(read(&short, None), Ok((answer(2, None), Notified::Fine)));
    check_reply(
        &reply([1., 5., 0., 1., 30., 0.], 0),
        None,
        answer(1, Some(Refusal { rate: Some((1, us(30))), ..refusal })),
        Notified::Fine,
    );
    check_reply(
        &reply([0., 5., 0., -1., 0., 8.], 2),
        None,
        answer(0, Some(Refusal { pause: Some(us(8)), ..refusal })),
        Notified::Forbidden,
    );
    check_reply(
        &reply([0., 5., 0., 0., f64::INFINITY, 0.], 0),
        None,
        answer(0, Some(Refusal { rate: Some((0, us(u64::MAX - 5))), ..refusal })),
        Notified::Fine,
    );
    check_reply(
        &reply([1., 5., 9., -1., 0., 0.], 1),
        Some(8),
        Answer { fence: NonZeroU64::new(9), ..answer(1, Some(Refusal { slots: true, ..refusal })) },
        Notified::Fine,
    );
}

#[test]
fn replies_that_cannot_be_are_not_believed() {
    let good = [1., 5., 9., -1., 0., 0.];
    assert!(read(&reply(good, 1), Some(8)).is_ok());
    let spoilt: [(usize, f64); 17] = [
        (0, 3.),
        (0, 2.),
        (0, 0.5),
        (0, -1.),
        (0, f64::NAN),
        (0, 0.),
        (1, -5.),
        (1, 1e300),
        (1, f64::INFINITY),
        (2, 0.),
        (2, 8.),
        (2, 9.5),
        (3, 2.),
        (3, 0.5),
        (3, f64::NAN),
        (5, -1.),
        (5, f64::INFINITY),
    ];
    for (place, value) in spoilt {
        let mut numbers = good;
        numbers[place] = value;
        assert_eq!(read(&reply(numbers, 1), Some(8)), Err(StoreErrorKind::Protocol), "{value} at {place}");
    }
    // No reason, an unknown flag, a fencing token for a job without a slot, all granted of which not all may be.
    assert_eq!(read(&reply(good, 0), Some(8)), Err(StoreErrorKind::Protocol));
    assert_eq!(read(&reply(good, 5), Some(8)), Err(StoreErrorKind::Protocol));
    assert_eq!(read(&reply(good, 1), None), Err(StoreErrorKind::Protocol));
    assert_eq!(read(&doubles(&[1., 5.]), None), Err(StoreErrorKind::Protocol));
    assert_eq!(read(&doubles(&[2., 5.]), Some(8)), Err(StoreErrorKind::Protocol));
    let rate = [1., 5., 0., 0., -3., 0.];
    assert_eq!(read(&reply(rate, 0), None), Err(StoreErrorKind::Protocol));
}

#[test]
fn replies_of_the_other_scripts_are_checked_too() {
    let mut held = vec![true; 9];
    super::renewed(&[1, 0], 2, &mut held).unwrap();
    assert_eq!(held, [true, false]);
    for wrong in [&[1][..], &[1, 0, 1], &[1, 2]] {
        assert_eq!(super::renewed(wrong, 2, &mut held).unwrap_err().kind(), StoreErrorKind::Protocol);
    }
    assert_eq!(super::done(&[0]).unwrap(), Notified::Fine);
    assert_eq!(super::done(&[2]).unwrap(), Notified::Forbidden);
    for wrong in [&[][..], &[1], &[0, 0]] {
        assert_eq!(super::done(wrong).unwrap_err().kind(), StoreErrorKind::Protocol);
    }
    let payload = [&doubles(&[7.])[..], &[2]].concat();
    assert_eq!(super::paused(&payload).unwrap(), (Duration::from_micros(7), Notified::Forbidden));
    for wrong in [&payload[..8], &payload[1..], &[&doubles(&[-7.])[..], &[0]].concat()] {
        assert_eq!(super::paused(wrong).unwrap_err().kind(), StoreErrorKind::Protocol);
    }
}
