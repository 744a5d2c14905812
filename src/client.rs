//! HTTP inside the limits of a valve: [`HttpClient`], a blocking client on `ureq`.

mod attempt;
mod payload;

use self::attempt::attempt;
use crate::error::Error;
use crate::valve::{Job, Retry, Running, Valve};
use http::{Request, Response, Uri};

pub use payload::Payload;

/// A `ureq` agent whose requests start when a valve lets them, and which heeds what the provider answers.
///
/// Each request is a job of the valve. Its answer is [observed](Valve::observe): a `Retry-After` or a spent quota pauses
/// everybody who shares the valve's id and store, this client's other threads first.
///
/// # What is tried again
///
/// What can be sent twice without doing anything twice, so GET, HEAD, OPTIONS, TRACE, PUT and DELETE, if
/// - the provider refused it, with status 429 or 503: after the time it said, or else after the [`Retry`]'s back-off;
/// - the connection failed: could not be made in time, was cut, or ended before the answer. Failures of TLS, unknown hosts and
///   a provider that is too slow are no such.
///
/// Any other method is sent once. Every attempt waits for its start and pays its cost. Redirections that the agent
/// follows are part of the attempt; to pay for each, set the agent's `max_redirects` to 0 and follow them yourself.
///
/// # When the slot is free again
///
/// With [`call`](HttpClient::call) and [`get`](HttpClient::get) once the header fields have come: the body is still to
/// be read then, and the provider may still be at work on it. With [`run`](HttpClient::run) the slot is held while a closure
/// reads the body. Take `call` where the limit counts calls, `run` where it counts what the provider works on at once.
///
/// # Settings of the agent
///
/// Timeouts are the agent's, and it has none unless it is given some: a provider that never answers holds a slot for ever.
/// `http_status_as_error` is heeded for all statuses but 429 and 503, which always are [`HttpError::Refused`]. Since it hides
/// header fields, it is turned off for the requests themselves; agents built without it spare each request that.
///
/// # Examples
///
/// ```
/// # use std::io::{BufRead, BufReader, Write};
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?;
/// # std::thread::Builder::new().spawn(move || {
/// #     let answers = ["429 Wait", "200 OK", "200 OK", "404 No"].map(|status| {
/// #         format!("HTTP/1.1 {status}\r\nContent-Length: 6\r\nConnection: close\r\n\r\na page")
/// #     });
/// #     for answer in answers {
/// #         let (mut stream, _) = listener.accept().unwrap();
/// #         let head = BufReader::new(stream.try_clone().unwrap()).lines();
/// #         head.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
/// #         stream.write_all(answer.as_bytes()).unwrap();
/// #     }
/// # })?;
/// use std::io::Read;
/// use std::time::Duration;
/// use valve::{HttpClient, HttpError, Retry, Rule, Valve};
///
/// let agent = ureq::Agent::config_builder().proxy(None).timeout_global(Some(Duration::from_secs(30))).build();
/// let valve = Valve::builder("api").rule(Rule::gcra(100, Duration::from_secs(1))).build()?;
/// let client = HttpClient::new(agent.into(), valve).retry(Retry::times(5));
///
/// // Refused at first, and sent again after a back-off.
/// let page = client.get(format!("http://{address}/page"))?.into_body().read_to_string()?;
/// assert_eq!(page, "a page");
///
/// // An answer that is read while the slot is held, and a request with options.
/// let request = ureq::http::Request::get(format!("http://{address}/export")).body(())?;
/// let bytes = client
///     .job(|job| job.priority(9).max_wait(Duration::from_secs(60)))
///     .run(request, |_running, response| response.into_body().into_reader().bytes().count())?;
/// assert_eq!(bytes, 6);
///
/// let missing = client.get(format!("http://{address}/nothing"));
/// assert!(matches!(missing, Err(HttpError::Http(ureq::Error::StatusCode(404)))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct HttpClient {
    agent: ureq::Agent,
    valve: Valve,
    retry: Retry,
}

impl HttpClient {
    /// A client that sends with this agent when this valve lets it. Both may be used elsewhere too.
    #[must_use]
    pub fn new(agent: ureq::Agent, valve: Valve) -> HttpClient {
        HttpClient { agent, valve, retry: Retry::times(3) }
    }

    /// How often a request that can be sent twice is sent again, and when. Default: `Retry::times(3)`, which outlasts a
    /// restart behind a load balancer; `Retry::times(0)` sends once.
    #[must_use]
    pub fn retry(self, retry: Retry) -> HttpClient {
        HttpClient { retry, ..self }
    }

    /// The valve that lets the requests start.
    #[must_use]
    pub fn valve(&self) -> &Valve {
        &self.valve
    }

    /// Begins a request with options: how urgent it is, what it costs, how long it may wait, what cancels it.
    pub fn job<'a>(&'a self, options: impl FnOnce(Job<'a>) -> Job<'a>) -> HttpJob<'a> {
        HttpJob { client: self, job: options(self.valve.job()) }
    }

    /// Gets what is at `uri`; the slot is free once the header fields have come.
    ///
    /// # Errors
    ///
    /// Those of [`call`](HttpClient::call).
    pub fn get<U>(&self, uri: U) -> Result<Response<ureq::Body>, HttpError>
    where
        U: TryInto<Uri, Error: Into<http::Error>>,
    {
        self.job(|job| job).get(uri)
    }

    /// Sends a request and gives the answer; the slot is free once the header fields have come.
    ///
    /// # Errors
    ///
    /// [`HttpError::Refused`] if the last attempt that there was time for got status 429 or 503; [`HttpError::Http`] if it
    /// failed, or, with an agent that makes an error of that, got a status from 400 on; [`HttpError::Valve`] if the valve let no
    /// attempt start, or no further one.
    pub fn call(&self, request: Request<impl Payload>) -> Result<Response<ureq::Body>, HttpError> {
        self.job(|job| job).call(request)
    }

    /// Sends a request and has `read` read the answer while the slot is held. `read` runs on this thread, and not again once it
    /// has begun: what fails in it is not tried again. It can ask its [`Running`] whether it should stop.
    ///
    /// # Errors
    ///
    /// Those of [`call`](HttpClient::call): `read` has not run then, unless the valve's is [`Error::LeaseLost`].
    pub fn run<T>(
        &self,
        request: Request<impl Payload>,
        read: impl FnMut(&Running<'_>, Response<ureq::Body>) -> T,
    ) -> Result<T, HttpError> {
        self.job(|job| job).run(request, read)
    }
}

/// One request with options. Made by [`HttpClient::job`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent by its last method"]
pub struct HttpJob<'a> {
    client: &'a HttpClient,
    job: Job<'a>,
}

impl HttpJob<'_> {
    /// Like [`HttpClient::get`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn get<U>(self, uri: U) -> Result<Response<ureq::Body>, HttpError>
    where
        U: TryInto<Uri, Error: Into<http::Error>>,
    {
        let uri = uri.try_into().map_err(|error| ureq::Error::Http(error.into()))?;
        let mut request = Request::new(());
        *request.uri_mut() = uri;
        self.call(request)
    }

    /// Like [`HttpClient::call`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn call(self, request: Request<impl Payload>) -> Result<Response<ureq::Body>, HttpError> {
        self.run(request, |_, response| response)
    }

    /// Like [`HttpClient::run`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn run<T>(
        self,
        request: Request<impl Payload>,
        mut read: impl FnMut(&Running<'_>, Response<ureq::Body>) -> T,
    ) -> Result<T, HttpError> {
        let HttpClient { agent, valve, retry } = self.client;
        self.job
            .retry(*retry)
            .run(|running, _| attempt(agent, valve, &request, |answer| read(running, answer)))
    }
}

/// Why a request has no answer.
///
/// # Examples
///
/// ```
/// use valve::{HttpClient, HttpError, Retry, Valve};
///
/// let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?; // and closed again
/// let agent = ureq::Agent::config_builder().proxy(None).build();
/// let client = HttpClient::new(agent.into(), Valve::builder("api").build()?).retry(Retry::times(0));
/// match client.get(format!("http://{nobody}/")) {
///     Ok(response) => panic!("{}", response.status()),
///     Err(HttpError::Refused(response)) => panic!("still {} at the last attempt", response.status()),
///     Err(HttpError::Http(ureq::Error::StatusCode(404))) => panic!("nothing there"),
///     Err(HttpError::Http(error)) => assert!(matches!(error, ureq::Error::Io(_))),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The valve did not let the request start, or start again, or its slot was lost meanwhile.
    #[error("no answer within the limits of the valve")]
    Valve(#[from] Error),
    /// The provider refused the last attempt, with status 429 or 503. This is its answer, with the first 64 KiB of its body.
    #[error("the provider refused, with status {}", .0.status())]
    Refused(Box<Response<Vec<u8>>>),
    /// The request failed. If it can be sent twice and the connection was to blame, this is how the last attempt did.
    #[error("the request failed")]
    Http(#[from] ureq::Error),
}
