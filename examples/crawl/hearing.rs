//! What the crawler hears: the limit that each answer names, and how many requests were in flight when one failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ureq::http::{Request, Response};
use ureq::middleware::MiddlewareNext;
use ureq::{Body, SendBody};
use valve::{Feedback, Valve};

use crate::{provider, rule_for};

/// One request that got no page.
pub(crate) struct Failed {
    pub(crate) at: Instant,
    /// Requests in flight when it was heard of, itself included.
    pub(crate) in_flight: u64,
}

pub(crate) struct Hearing {
    valve: Valve,
    heard: Mutex<Heard>,
}

struct Heard {
    limit: u32,
    limit_since: Instant,
    failures: Vec<Failed>,
}

impl Hearing {
    pub(crate) fn new(valve: Valve) -> Hearing {
        let heard = Heard { limit: provider::FIRST_LIMIT, limit_since: Instant::now(), failures: Vec::new() };
        Hearing { valve, heard: Mutex::new(heard) }
    }

    pub(crate) fn failures(&self) -> Vec<Failed> {
        std::mem::take(&mut self.heard.lock().failures)
    }

    /// Under the lock to its end, so that every request that fails is still in flight until its own turn here.
    fn hear(&self, sent: Instant, answer: &Result<Response<Body>, ureq::Error>) {
        let mut heard = self.heard.lock();
        if let Ok(answer) = answer {
            // The client will do the same, which then changes nothing: but now nobody starts before we have counted.
            self.valve.observe(&Feedback::from(answer));
            let limit = announced_limit(answer).filter(|limit| *limit != heard.limit);
            // An older request may have an older limit to tell.
            if let Some(limit) = limit.filter(|_| sent >= heard.limit_since) {
                if self.valve.set_rules([rule_for(limit)]).is_ok() {
                    (heard.limit, heard.limit_since) = (limit, Instant::now());
                }
            }
        }
        if !answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
            let in_flight = self.valve.stats().running;
            heard.failures.push(Failed { at: Instant::now(), in_flight });
        }
    }
}

/// Listens to everything that the agent gets, refusals that are tried again included.
pub(crate) struct Middleware(pub(crate) Arc<Hearing>);

impl ureq::middleware::Middleware for Middleware {
    fn handle(
        &self,
        request: Request<SendBody<'_>>,
        next: MiddlewareNext<'_>,
    ) -> Result<Response<Body>, ureq::Error> {
        let sent = Instant::now();
        let answer = next.handle(request);
        self.0.hear(sent, &answer);
        answer
    }
}

/// The quota per second in `RateLimit-Policy: "pages";q=120;w=1`.
fn announced_limit(answer: &Response<Body>) -> Option<u32> {
    let policy = answer.headers().get("ratelimit-policy")?.to_str().ok()?;
    let parameter = |name| policy.split(';').find_map(|parameter| parameter.trim().strip_prefix(name));
    let window = Duration::from_secs(parameter("w=")?.parse().ok()?);
    (window == Duration::from_secs(1)).then(|| parameter("q=")?.parse().ok()).flatten()
}
