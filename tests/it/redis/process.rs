//! Worker processes: the test binary once more, doing what a test tells it, so that they can be killed and stopped.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Stopwatch, signals, workers};

const JOB: &str = "VALVE_WORKER";
/// What a worker says begins so; the test runner has its own lines on the same output.
const MARK: &str = "worker: ";

/// A worker process, killed when this goes.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: Arc<Output>,
}

#[derive(Default)]
struct Output {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    over: bool,
}

impl Process {
    /// Starts the worker of this name (see `workers.rs`) with these settings.
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = concat!(module_path!(), "::a_worker");
        let test = test.split_once("::").unwrap().1;
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(JOB, name).envs(settings.iter().map(|(key, value)| (format!("{JOB}_{key}"), value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        signals::ends_with_its_parent(&mut command);
        let mut child = command.spawn().unwrap();
        let (input, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = Arc::new(Output::default());
        let theirs = Arc::clone(&output);
        let collect = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // It may follow what the runner left unfinished.
                if let Some((_, said)) = line.split_once(MARK) {
                    theirs.said.lock().lines.push(said.to_owned());
                    theirs.more.notify_all();
                }
            }
            theirs.said.lock().over = true;
            theirs.more.notify_all();
        };
        thread::Builder::new().name("worker-output".to_owned()).spawn(collect).unwrap();
        Process { child, input, output }
    }

    /// Waits until it says a line that begins so; the rest of that line.
    #[track_caller]
    pub(crate) fn says(&self, start: &str) -> String {
        let watch = Stopwatch::start();
        let mut said = self.output.said.lock();
        loop {
            if let Some(rest) = said.lines.iter().find_map(|line| line.strip_prefix(start)) {
                return rest.trim().to_owned();
            }
            assert!(!said.over, "it ended without saying {start:?}: {:?}", said.lines);
            assert!(watch.elapsed() < Duration::from_secs(60), "it never said {start:?}: {:?}", said.lines);
            self.output.more.wait_for(&mut said, Duration::from_secs(1));
        }
    }

    /// All that it has said so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.output.said.lock().lines.clone()
    }

    /// Sends it a line.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn freeze(&self) {
        signals::freeze(self.child.id());
    }

    pub(crate) fn thaw(&self) {
        signals::thaw(self.child.id());
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended well.
    #[track_caller]
    pub(crate) fn end(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.said());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker's own side.
pub(crate) struct Orders {
    settings: HashMap<String, String>,
}

impl Orders {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    #[track_caller]
    pub(crate) fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_else(|| panic!("no setting {key}")).to_owned()
    }

    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap()
    }

    /// Says a line to the test.
    pub(crate) fn say(&self, line: &str) {
        let mut out = io::stdout().lock();
        writeln!(out, "{MARK}{line}").unwrap();
        out.flush().unwrap();
    }

    /// Waits for the test's next line.
    pub(crate) fn hear(&self) -> String {
        io::stdin().lines().next().map_or_else(String::new, Result::unwrap)
    }
}

#[test]
#[ignore = "a worker process, which other tests start"]
fn a_worker() {
    let Ok(name) = std::env::var(JOB) else { return };
    let prefix = format!("{JOB}_");
    let settings =
        std::env::vars().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value)));
    workers::work(&name, &Orders { settings: settings.collect() });
}

#[test]
fn a_worker_hears_says_stands_still_and_dies() {
    let mut process = Process::start("echo", &[("greeting", "hello")]);
    assert_eq!(process.says("greeting"), "hello");
    process.freeze();
    process.tell("first");
    super::nap(100);
    assert_eq!(process.said().len(), 1, "it goes on although it is frozen: {:?}", process.said());
    process.thaw();
    assert_eq!(process.says("heard"), "first");
    process.kill();
    let mut other = Process::start("echo", &[("greeting", "again")]);
    other.tell("last");
    other.end();
}
