//! The worker processes, as seen by whoever started them.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::worker::{HOLD, HOLDING, READY, START};
use crate::{Failure, Site};

/// How long a worker may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Workers {
    all: Vec<Worker>,
    /// Which worker said what; nothing, once its output has ended.
    heard: Receiver<(usize, Option<String>)>,
}

/// Ends with its owner.
struct Worker {
    name: &'static str,
    process: Child,
    orders: Option<ChildStdin>,
    killed: bool,
}

impl Workers {
    /// Starts them all; they begin with their jobs only when all are ready.
    pub(crate) fn start(site: &Site, names: [&'static str; 4]) -> Result<Workers, Failure> {
        let (said, heard) = mpsc::channel();
        let mut all = Vec::new();
        for name in names {
            all.push(Worker::start(site, name, all.len(), said.clone())?);
        }
        let mut workers = Workers { all, heard };
        workers.hear(READY, workers.all.len())?;
        for worker in &mut workers.all {
            worker.tell(START)?;
        }
        Ok(workers)
    }

    /// Has one worker take so many slots for good, and returns when it has them.
    pub(crate) fn hold(&mut self, worker: usize, slots: usize) -> Result<(), Failure> {
        self.all[worker].tell(HOLD)?;
        self.hear(HOLDING, slots)
    }

    /// Kills one worker: it gets no chance to give anything back.
    pub(crate) fn kill(&mut self, worker: usize) -> Result<(), Failure> {
        let worker = &mut self.all[worker];
        worker.killed = true;
        worker.process.kill()?;
        worker.process.wait()?;
        Ok(())
    }

    /// Waits while they work. None may end.
    pub(crate) fn watch(&mut self, until: Instant) -> Result<(), Failure> {
        match self.next(until)? {
            None => Ok(()),
            Some((worker, line)) => {
                Err(format!("{} said {line:?}, which nobody asked for", self.all[worker].name).into())
            }
        }
    }

    /// Has all of them end.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        for worker in &mut self.all {
            worker.orders = None;
        }
        for worker in self.all.iter_mut().filter(|worker| !worker.killed) {
            worker.end()?;
        }
        Ok(())
    }

    fn hear(&mut self, expected: &str, times: usize) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        for _ in 0..times {
            match self.next(until)? {
                Some((_, line)) if line == expected => {}
                Some((worker, line)) => {
                    return Err(format!("{} said {line:?}, not {expected:?}", self.all[worker].name).into());
                }
                None => return Err(format!("nobody said {expected:?} within {PATIENCE:?}").into()),
            }
        }
        Ok(())
    }

    /// What is said next, if anything is in time.
    fn next(&mut self, until: Instant) -> Result<Option<(usize, String)>, Failure> {
        loop {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((worker, Some(line))) => return Ok(Some((worker, line))),
                Ok((worker, None)) if self.all[worker].killed => {}
                Ok((worker, None)) => {
                    let worker = &mut self.all[worker];
                    return Err(format!("{} ended too early: {}", worker.name, worker.process.wait()?).into());
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err("no worker is left".into()),
            }
        }
    }
}

impl Worker {
    fn start(
        site: &Site,
        name: &'static str,
        number: usize,
        said: Sender<(usize, Option<String>)>,
    ) -> Result<Worker, Failure> {
        let mut process = Command::new(env::current_exe()?)
            .envs(site.environment(name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = process.stdin.take();
        let output = process.stdout.take().ok_or("a worker without output")?;
        let worker = Worker { name, process, orders, killed: false };
        thread::Builder::new().name(format!("hears-{number}")).spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok).map(Some);
            for line in lines.chain([None]) {
                // Nobody listens once all is over.
                let _ = said.send((number, line));
            }
        })?;
        Ok(worker)
    }

    fn tell(&mut self, order: &str) -> Result<(), Failure> {
        let orders = self.orders.as_mut().ok_or("a worker without input")?;
        writeln!(orders, "{order}")?;
        Ok(orders.flush()?)
    }

    fn end(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} ended with {status}", self.name).into()),
                None if begun.elapsed() > PATIENCE => {
                    return Err(format!("{} did not end within {PATIENCE:?}", self.name).into());
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
