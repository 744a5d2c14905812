//! Eight threads fetch 600 pages from a provider that changes its mind: it lowers its limit twice, is out of service for
//! a while, and restarts.
//!
//! `cargo run --release --features ureq --example crawl` takes about 15 seconds. The provider runs in this program, on
//! loopback, and knows nothing of the valve. Exit code 0 says that every page came and that no change of mind cost more
//! refusals than requests were in flight when it was heard of; 1 that this was not so, 2 that the crawl could not be made.

#![expect(clippy::disallowed_methods, reason = "a program, not the library: it reads the clock and sleeps")]
#![expect(clippy::print_stderr, reason = "a program says on stderr what went wrong")]

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use ureq::Agent;
use valve::{HttpClient, Retry, Rule, Valve};

mod hearing;
mod picture;
mod provider;
mod verdict;

use hearing::{Hearing, Middleware};
use provider::Provider;

const PAGES: u32 = 600;
const THREADS: usize = 8;

type Failure = Box<dyn Error + Send + Sync>;

fn crawl() -> Result<ExitCode, Failure> {
    let provider = Provider::start().map_err(|error| format!("the provider on loopback: {error}"))?;

    // What the provider's documentation said when this was written.
    let valve = Valve::builder("pages").rule(rule_for(provider::FIRST_LIMIT)).build()?;
    // What it says by now, in each answer: a middleware of `ureq` reads it and changes the rule.
    let hearing = Arc::new(Hearing::new(valve.clone()));
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        // The provider is on loopback, wherever the environment's proxy may be.
        .proxy(None)
        .timeout_recv_response(Some(Duration::from_secs(10)))
        .middleware(Middleware(Arc::clone(&hearing)))
        .build()
        .into();
    // All else is the client's: it waits for its turn, pauses everybody when told to, and sends again.
    let client = HttpClient::new(agent, valve).retry(Retry::times(5));

    let fetched = fetch_all(&client, &provider);
    drop(client);
    // The provider's own trouble comes first: it is why the client failed.
    let log = provider.stop().map_err(|error| format!("the provider on loopback: {error}"))?;
    let pages = fetched?;

    let costs = verdict::costs(&log.changes, &hearing.failures());
    let mut out = io::stdout();
    writeln!(out, "{}", picture::draw(&log, &costs))?;
    let broken = verdict::broken_promises(&pages, &costs);
    for promise in &broken {
        eprintln!("crawl: {promise}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    crawl().unwrap_or_else(|failure| {
        eprintln!("crawl: {failure}");
        ExitCode::from(2)
    })
}

/// A tenth under what is allowed, because requests may travel faster than those before them.
fn rule_for(limit: u32) -> Rule {
    Rule::gcra(limit * 9 / 10, Duration::from_secs(1)).into()
}

/// The numbers of the pages that came.
fn fetch_all(client: &HttpClient, provider: &Provider) -> Result<BTreeSet<u32>, Failure> {
    let next = AtomicU32::new(0);
    let fetch_some = || -> Result<Vec<u32>, Failure> {
        let mut came = Vec::new();
        loop {
            let page = next.fetch_add(1, Ordering::Relaxed);
            if page >= PAGES {
                return Ok(came);
            }
            let text = client.get(provider.url(page))?.into_body().read_to_string()?;
            came.push(text.trim_end().strip_prefix("page ").ok_or("not a page")?.parse()?);
        }
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..THREADS {
            threads.push(
                thread::Builder::new().name(format!("crawl-{number}")).spawn_scoped(scope, fetch_some)?,
            );
        }
        let mut pages = BTreeSet::new();
        for thread in threads {
            pages.extend(thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok(pages)
    })
}
