//! Signals to processes of a test's own, and one to them when the test ends without a word.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::nap;

/// SIGSTOP; returns once every thread of the process stands still.
#[track_caller]
pub(crate) fn freeze(pid: u32) {
    signal(pid, libc::SIGSTOP);
    for _ in 0..5_000 {
        if stands_still(pid) {
            return;
        }
        nap(1);
    }
    panic!("process {pid} goes on after SIGSTOP");
}

/// SIGCONT.
#[track_caller]
pub(crate) fn thaw(pid: u32) {
    signal(pid, libc::SIGCONT);
}

fn stands_still(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map_while(Result::ok).all(|task| {
        let status = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may hold anything but is in brackets.
        status.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

#[track_caller]
#[expect(unsafe_code, reason = "the standard library sends no signal but SIGKILL")]
fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: a signal to our own child, which nobody has waited for.
    let sent = unsafe { libc::kill(pid as libc::pid_t, signal) };
    assert_eq!(sent, 0, "{}", io::Error::last_os_error());
}

/// Has the system kill the process when the thread that starts it ends, however it does: an aborted test leaves nothing.
#[expect(unsafe_code, reason = "what runs between fork and exec is unsafe to give")]
pub(crate) fn ends_with_its_parent(command: &mut Command) {
    let own = std::process::id();
    let hook = move || {
        // SAFETY: both are plain system calls, which a child may make before it executes.
        let orphaned = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::getppid() as u32 != own
        };
        if orphaned { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    };
    // SAFETY: the hook allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(hook);
    }
}
