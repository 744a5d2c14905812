//! The seed's timeline: a window of 1 s, runs of 300 ms, calls at 0, 0.5, 0.9 and 3.0 s.

use super::stage::{Stage, check_stats, work};

#[test]
fn calls_that_do_not_wait() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for (call, at) in [(1, 0), (2, 500), (3, 900), (4, 3_000)] {
        stage.exec(&throttle, at, "k", work(call).takes(300));
    }
    for (at, figures) in [
        (299, (1, 0, 1, 0)),
        (300, (0, 0, 1, 1)),
        (500, (0, 1, 1, 1)),
        (1_299, (0, 1, 1, 1)),
        (1_300, (1, 0, 1, 0)),
        (1_600, (0, 0, 1, 1)),
        (2_599, (0, 0, 1, 1)),
        (2_600, (0, 0, 0, 0)),
    ] {
        stage.until(at);
        check_stats(&throttle, figures);
    }
    stage.until(20_000);
    stage.check(&[
        "0 run 1 leading",
        "300 end 1",
        "300 exec 1: now",
        "500 exec 2: later",
        "900 exec 3: later",
        "1300 run 3 trailing",
        "1600 end 3",
        "3000 run 4 leading",
        "3300 end 4",
        "3300 exec 4: now",
    ]);
}

#[test]
fn calls_that_wait() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for (call, at) in [(1, 0), (2, 500), (3, 900), (4, 3_000)] {
        stage.wait(&throttle, at, "k", work(call).takes(300));
    }
    stage.until(20_000);
    stage.check(&[
        "0 run 1 leading",
        "300 end 1",
        "300 wait 1: 1",
        "1300 run 3 trailing",
        "1600 end 3",
        "1600 wait 2: 3",
        "1600 wait 3: 3",
        "3000 run 4 leading",
        "3300 end 4",
        "3300 wait 4: 4",
    ]);
}

#[test]
fn calls_during_a_run_belong_to_the_next() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    for (call, at) in [(1, 0), (2, 100), (3, 500), (4, 1_400)] {
        stage.wait(&throttle, at, "k", work(call).takes(300));
    }
    stage.until(20_000);
    assert_eq!(stage.traced(&["run"]), ["0 run 1 leading", "1300 run 3 trailing", "2600 run 4 trailing"]);
    assert_eq!(
        stage.traced(&["wait"]),
        ["300 wait 1: 1", "1600 wait 2: 3", "1600 wait 3: 3", "2900 wait 4: 4"]
    );
}

#[test]
fn a_run_is_told_how_many_calls_it_covers() {
    let stage = Stage::new();
    let throttle = stage.private(1_000);
    let call = |at: u64| {
        let (told, throttle) = (stage.clone(), throttle.clone());
        stage.at(at, move || {
            let tell = told.clone();
            let job = throttle.job("k", move |run| {
                tell.say(format!("covers {}", run.covered));
                tell.clock.sleep(crate::support::ms(300));
                Ok(0)
            });
            drop(job.exec());
        });
    };
    for at in [0, 100, 500, 900, 1_400, 5_000] {
        call(at);
    }
    stage.until(20_000);
    stage.check(&["0 covers 1", "1300 covers 3", "2600 covers 1", "5000 covers 1"]);
}
