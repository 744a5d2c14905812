//! Tables of retries that back off, and of pauses that the store may not know of.

use super::{Bench, MANY, Next, Waiter, Why, of_cost, other, rate, waiter};

/// A retry that comes back with this priority and number.
fn retry(what: &'static str, priority: i32, sequence: u64) -> Waiter<&'static str> {
    Waiter { back_as: Some((priority, sequence)), ..waiter(what) }
}

#[test]
fn a_retry_that_backs_off_is_not_queued() {
    let mut bench = Bench::new();
    let sequence = bench.queue.number();
    let place = bench.queue.back_off(Waiter { inside: 2, ..retry("retry", 9, sequence) });
    assert_eq!((bench.queue.len(), bench.queue.backing_off(), bench.queue.stuck()), (0, 1, 0));
    assert!(bench.queue.is_empty() && bench.queue.is_idle() && bench.queue.would_be_head(i32::MIN));
    assert_eq!(bench.next(0, MANY, MANY).0, Next::Rest);
    assert!(bench.queue.pop().is_none());
    assert!(bench.queue.last_stuck().is_none());
    assert_eq!(bench.queue.costs().collect::<Vec<_>>(), [(place, 1)]);

    // A refusal that puts it after its deadline is heard when it comes back.
    bench.queue.get_mut(place).unwrap().deadline = Some(10);
    bench.join(0, waiter("another"));
    bench.refuse(0, rate(1, 50));
    assert_eq!(bench.refused(), []);
    assert!(bench.queue.is_backing_off(place));

    assert_eq!(bench.queue.remove(place).unwrap().what, "retry");
    assert_eq!((bench.queue.backing_off(), bench.queue.stuck(), bench.queue.len()), (0, 0, 1));
}

#[test]
fn a_retry_comes_back_as_the_call_that_it_was() {
    let mut bench = Bench::new();
    let (first, high) = (bench.queue.number(), bench.queue.number());
    let old = bench.queue.back_off(Waiter { inside: 1, ..retry("old", 0, first) });
    let older_but_high = bench.queue.back_off(retry("high", 5, high));
    for name in ["b", "c"] {
        bench.join(0, waiter(name));
    }
    bench.join(5, waiter("higher, later"));
    bench.queue.come_back(old);
    bench.queue.come_back(older_but_high);
    assert_eq!((bench.queue.backing_off(), bench.queue.len(), bench.queue.stuck()), (0, 5, 1));
    assert!(!bench.queue.is_backing_off(old));
    // A second time it changes nothing.
    bench.queue.come_back(old);
    assert_eq!((bench.queue.backing_off(), bench.queue.stuck()), (0, 1));
    assert_eq!(bench.asks(0), ["high", "higher, later", "old", "b", "c"]);
    assert_eq!(bench.queue.last_stuck(), Some(old));
    assert_eq!(bench.queue.remove(old).unwrap().what, "old");
    assert_eq!(bench.queue.stuck(), 0);
}

#[test]
fn all_that_back_off_can_be_taken_out() {
    let mut bench = Bench::with([waiter("waits")]);
    for name in ["a", "b"] {
        bench.queue.back_off(retry(name, 0, 1));
    }
    let mut taken: Vec<_> =
        std::iter::from_fn(|| bench.queue.pop_backing_off()).map(|waiter| waiter.what).collect();
    taken.sort_unstable();
    assert_eq!((taken, bench.queue.backing_off(), bench.queue.len()), (vec!["a", "b"], 0, 1));
}

#[test]
fn a_pause_of_our_own_holds_whatever_else_is_heard() {
    let mut bench = Bench::with([waiter("a")]);
    bench.queue.pause_ourselves(100);
    bench.queue.pause_ourselves(50);
    assert_eq!(bench.queue.paused_until(0), Some(100));
    for hear in [super::Queue::forget, super::Queue::slot_freed, super::Queue::store_back] {
        hear(&mut bench.queue);
        assert_eq!(bench.next(0, MANY, MANY).0, Next::Sleep(100));
        assert_eq!(bench.queue.head_blocked(0, MANY), Some((Why::Paused, Some(100))));
    }
    assert_eq!(bench.next(99, MANY, MANY).0, Next::Sleep(100));
    assert_eq!((bench.queue.paused_until(100), bench.asks(100)), (None, vec!["a"]));
}

/// Of a hint and a pause of our own, the one that holds up longer, where the hint holds up at all.
#[test]
fn the_longer_of_two_holds_counts() {
    let mut bench = Bench::with([of_cost("dear", 3)]);
    bench.refuse(0, rate(3, 40));
    bench.queue.pause_ourselves(20);
    assert_eq!(bench.queue.held_up(3, 0).map(|hint| hint.not_before), Some(40));
    assert_eq!(bench.queue.held_up(1, 0).map(|hint| (hint.why, hint.not_before)), Some((Why::Paused, 20)));
    assert_eq!((bench.queue.held_up(1, 20), bench.queue.paused_until(0)), (None, Some(20)));
    bench.queue.pause_ourselves(60);
    assert_eq!(bench.queue.held_up(3, 0).map(|hint| (hint.why, hint.not_before)), Some((Why::Paused, 60)));

    let mut bench = Bench::with([waiter("a")]);
    bench.refuse(0, other(Why::Paused, 80));
    bench.queue.pause_ourselves(60);
    assert_eq!(bench.queue.paused_until(0), Some(80));
}

#[test]
fn a_pause_of_our_own_ends_when_it_is_recorded_or_lifted() {
    let mut bench = Bench::with([waiter("a")]);
    bench.queue.pause_ourselves(100);
    bench.queue.pause_recorded(99);
    assert_eq!(bench.queue.paused_until(0), Some(100), "what is recorded is shorter");
    bench.queue.pause_recorded(100);
    assert_eq!(bench.queue.paused_until(0), None);
    bench.queue.pause_ourselves(100);
    assert!(bench.queue.lift_own_pause() && !bench.queue.lift_own_pause());
    assert_eq!(bench.asks(0), ["a"]);
}
