//! One attempt of a request: sent, its answer observed, and what is to become of it.

use super::HttpError;
use super::payload::sealed::Bytes;
use crate::feedback::Feedback;
use crate::valve::{Step, Valve};
use http::{Method, Request, Response};
use std::io::Read;
use ureq::{Agent, Body, Timeout};

/// How much of a refusal's body is kept. A refusal is a few lines; read to its end, its connection can be used again.
const REFUSAL_BYTES_MAX: u64 = 64 * 1024;

pub(super) fn attempt<T>(
    agent: &Agent,
    valve: &Valve,
    request: &Request<impl Bytes>,
    read: impl FnOnce(Response<Body>) -> T,
) -> Step<T, HttpError> {
    let may_repeat = request.method().is_idempotent();
    let response = match send(agent, request) {
        Ok(response) => response,
        Err(error) if may_repeat && is_of_the_connection(&error) => return Step::Again(error.into()),
        Err(error) => return Step::Fail(error.into()),
    };
    let told = Feedback::from(&response);
    // Before anything that takes time: others may be about to start.
    valve.observe(&told);
    if told.is_refusal() {
        let refused = HttpError::Refused(Box::new(keep(response)));
        return match told.pause_for() {
            _ if !may_repeat => Step::Fail(refused),
            Some(pause) => Step::After(pause, refused),
            None => Step::Again(refused),
        };
    }
    let status = response.status();
    if agent.config().http_status_as_error() && (status.is_client_error() || status.is_server_error()) {
        return Step::Fail(ureq::Error::StatusCode(status.as_u16()).into());
    }
    Step::Done(read(response))
}

fn send(agent: &Agent, request: &Request<impl Bytes>) -> Result<Response<Body>, ureq::Error> {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    // A configuration of the request's own, which would hide the fields too, is among its extensions.
    if agent.config().http_status_as_error() || !copy.extensions().is_empty() {
        copy = agent.configure_request(copy).http_status_as_error(false).build();
    }
    match request.body().bytes() {
        // These have a body always, and `ureq` would send an empty one in chunks, as if it did not know its length.
        None if [Method::POST, Method::PUT, Method::PATCH].contains(request.method()) => {
            agent.run(copy.map(|()| [].as_slice()))
        }
        None => agent.run(copy),
        Some(bytes) => agent.run(copy.map(|()| bytes)),
    }
}

/// Whether nothing is known against the next connection.
fn is_of_the_connection(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, Io};
    matches!(error, Io(_) | ConnectionFailed | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect))
}

fn keep(response: Response<Body>) -> Response<Vec<u8>> {
    response.map(|mut body| {
        let mut kept = Vec::new();
        // What came before a failure is all there is; that the provider refused is known.
        let _ = body.as_reader().take(REFUSAL_BYTES_MAX).read_to_end(&mut kept);
        kept
    })
}
