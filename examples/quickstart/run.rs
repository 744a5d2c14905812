//! One run of the comparison: threads that fetch every page once, phase by phase, from a fresh service.

use std::io::{self, IsTerminal, Write};
use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ureq::Agent;

use crate::service::{Log, Quota, Service};
use crate::{Failure, PHASES, QUOTA, THREADS};

/// Pages that take the service equally long; the next phase starts when all are fetched.
pub(crate) struct Phase {
    pub(crate) first_page: u32,
    pub(crate) pages: u32,
    /// How long the service works on each.
    pub(crate) takes: Duration,
}

impl Phase {
    /// The shortest time the quota allows: whichever of rate and slots binds.
    pub(crate) fn ideal(&self, quota: &Quota) -> Duration {
        let by_rate = quota.interval * self.pages / quota.limit;
        let by_slots = self.takes * self.pages / quota.at_once;
        by_rate.max(by_slots)
    }
}

/// What came of a run.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) elapsed: Duration,
    /// What the service saw.
    pub(crate) log: Log,
}

/// What the service did with a request.
pub(crate) enum Answer {
    Page,
    Refused,
}

/// Starts a service and has `fetch` called once for each page, on `THREADS` threads.
pub(crate) fn fetch_all(
    name: &'static str,
    fetch: impl Fn(&Agent, &str) -> Result<Answer, Failure> + Sync,
) -> Result<Run, Failure> {
    let service = Service::start(QUOTA).map_err(|error| format!("the service on loopback: {error}"))?;
    let agents: Vec<Agent> = iter::repeat_with(new_agent).take(THREADS).collect();
    let began = Instant::now();
    let fetched = PHASES.iter().try_for_each(|phase| fetch_phase(name, phase, &service, &agents, &fetch));
    let elapsed = began.elapsed();
    drop(agents);
    // The service's own trouble comes first: it is why the clients failed.
    let log = service.stop().map_err(|error| format!("the service on loopback: {error}"))?;
    fetched?;
    Ok(Run { name, elapsed, log })
}

/// Fetches one page. Over quota is an answer here; all else that is not the page is an error.
pub(crate) fn get(agent: &Agent, url: &str) -> Result<Answer, Failure> {
    let mut response = agent.get(url).call()?;
    // Only a body that was read to its end gives the connection back for the next request.
    response.body_mut().read_to_string()?;
    match response.status().as_u16() {
        200 => Ok(Answer::Page),
        429 => Ok(Answer::Refused),
        status => Err(format!("{url}: the service answered {status}").into()),
    }
}

fn new_agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        // The service is on loopback, wherever the environment's proxy may be.
        .proxy(None)
        // Not a global timeout: the client would start a thread to look up each address.
        .timeout_recv_response(Some(Duration::from_secs(10)))
        .build()
        .into()
}

fn fetch_phase(
    name: &'static str,
    phase: &Phase,
    service: &Service,
    agents: &[Agent],
    fetch: &(impl Fn(&Agent, &str) -> Result<Answer, Failure> + Sync),
) -> Result<(), Failure> {
    let end = phase.first_page + phase.pages;
    let next_page = AtomicU32::new(phase.first_page);
    let (sender, answers) = mpsc::sync_channel(THREADS);
    let fetch_pages = |agent: &Agent, sender: mpsc::SyncSender<Result<Answer, Failure>>| {
        loop {
            let page = next_page.fetch_add(1, Ordering::Relaxed);
            if page >= end || sender.send(fetch(agent, &service.url(page, phase.takes))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let mut outcome = Ok(());
        for (number, agent) in agents.iter().enumerate() {
            let (fetch_pages, sender) = (&fetch_pages, sender.clone());
            let client = thread::Builder::new().name(format!("client-{number}"));
            if let Err(error) = client.spawn_scoped(scope, move || fetch_pages(agent, sender)) {
                next_page.store(end, Ordering::Relaxed);
                outcome = Err(format!("the thread of client {number}: {error}").into());
                break;
            }
        }
        // The answers end when the last client has dropped its sender.
        drop(sender);
        let mut progress = Progress::new(name, phase);
        for answer in answers {
            if let Err(failure) = answer.and_then(|answer| Ok(progress.advance(&answer)?)) {
                // The clients stop after the page at hand; the first failure is the one to report.
                next_page.store(end, Ordering::Relaxed);
                outcome = outcome.and(Err(failure));
            }
        }
        outcome.and_then(|()| Ok(progress.finish()?))
    })
}

/// The line that says how far a phase is: live on a terminal, else written once at the end.
struct Progress<'a> {
    name: &'static str,
    phase: &'a Phase,
    began: Instant,
    /// When the line was last written; `None` where it would not overwrite itself.
    written: Option<Instant>,
    done: u32,
    refused: u32,
}

impl<'a> Progress<'a> {
    /// Slow enough to read, quick enough to look alive.
    const REFRESH: Duration = Duration::from_millis(100);

    fn new(name: &'static str, phase: &'a Phase) -> Self {
        let began = Instant::now();
        let written = io::stdout().is_terminal().then_some(began);
        Progress { name, phase, began, written, done: 0, refused: 0 }
    }

    fn advance(&mut self, answer: &Answer) -> io::Result<()> {
        self.done += 1;
        self.refused += u32::from(matches!(answer, Answer::Refused));
        let now = Instant::now();
        if self.written.is_some_and(|written| now - written >= Self::REFRESH) {
            self.written = Some(now);
            let mut out = io::stdout();
            write!(out, "\r{}", self.line(now))?;
            // No line end yet, which is all that standard output would flush for.
            out.flush()?;
        }
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        let overwrite = if self.written.is_some() { "\r" } else { "" };
        writeln!(io::stdout(), "{overwrite}{}", self.line(Instant::now()))
    }

    fn line(&self, now: Instant) -> String {
        format!(
            "{:>7} a valve, pages of {:>3} ms: {:>3} of {} asked for, {:>3} refused, {:>5.2} s",
            self.name,
            self.phase.takes.as_millis(),
            self.done,
            self.phase.pages,
            self.refused,
            (now - self.began).as_secs_f64(),
        )
    }
}
