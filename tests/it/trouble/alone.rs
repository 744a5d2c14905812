//! Runs a test in a process of its own, whichever runner started it: for what concerns the whole process.

use std::process::{Command, Output};
use std::{env, iter};

use crate::watchdog::watchdog;

const MARK: &str = "VALVE_TEST_ALONE";

/// Runs `body` as the only test of a new process. `test` is the calling test: its module's path and its name.
#[track_caller]
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if is_alone() {
        let _watchdog = watchdog(60);
        return body();
    }
    let output = again(test, "yes");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{test} is not a test");
}

pub(crate) fn is_alone() -> bool {
    env::var_os(MARK).is_some()
}

/// Runs the test in a new process to its end.
pub(crate) fn again(test: &str, mark: &str) -> Output {
    command(test, mark).output().unwrap()
}

pub(crate) fn command(test: &str, mark: &str) -> Command {
    let path: Vec<_> = test.split("::").skip(1).collect();
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg(path.join("::")).args(["--exact", "--nocapture", "--test-threads=1"]);
    command.envs(iter::once((MARK, mark)));
    command
}
