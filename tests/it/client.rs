//! The HTTP client: what is sent and sent again, what becomes of the slot, and what of the provider's answer.
#![expect(clippy::disallowed_methods, reason = "sockets know no time but the machine's")]

mod provider;

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use provider::{Provider, Reply};
use ureq::http::{Request, Response};
use valve::{Blocked, CancelToken, Error, HttpClient, HttpError, Retry, Valve, ValveBuilder};

const LONG: Duration = Duration::from_secs(60);

fn agent(status_as_error: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> ureq::Agent {
    // Not a global timeout: the client would start a thread to look up each address.
    status_as_error.proxy(None).timeout_recv_response(Some(LONG)).build().into()
}

fn client_of(valve: ValveBuilder) -> HttpClient {
    let agent = agent(ureq::Agent::config_builder().http_status_as_error(false));
    HttpClient::new(agent, valve.build().unwrap()).retry(Retry::times(3).backoff(Duration::ZERO))
}

fn client() -> HttpClient {
    client_of(Valve::builder("api"))
}

fn status(status: u16) -> Reply {
    Reply::Answer(status, &[], String::new())
}

/// The status of the answer, of the refusal, or 0 if there is none.
fn outcome(result: Result<u16, HttpError>) -> u16 {
    match result {
        Ok(status) => status,
        Err(HttpError::Refused(response)) => response.status().as_u16(),
        Err(HttpError::Http(_)) => 0,
        Err(other) => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_attempts(method: &str, replies: impl IntoIterator<Item = Reply>, attempts: usize, expected: u16) {
    let provider = Provider::new(replies);
    let client = client();
    let request = Request::builder().method(method).uri(provider.url()).body(()).unwrap();
    let result = client.call(request).map(|response| response.status().as_u16());
    assert_eq!((provider.seen().len(), outcome(result)), (attempts, expected), "{method}");
    let stats = client.valve().stats();
    assert_eq!((stats.started, stats.running), (attempts as u64, 0), "each attempt pays, and none holds on");
}

#[test]
fn what_can_be_sent_twice_is_tried_again_when_refused_or_cut() {
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
        check_attempts(method, [], 1, 200);
        check_attempts(method, [status(429)], 2, 200);
        check_attempts(method, [status(503)], 2, 200);
        check_attempts(method, [Reply::Cut], 2, 200);
        check_attempts(method, [status(429), status(503), Reply::Cut], 4, 200);
    }
}

#[test]
fn after_the_last_retry_the_refusal_or_failure_is_the_outcome() {
    check_attempts("GET", [status(503), status(503), status(503), status(429)], 4, 429);
    check_attempts("GET", [status(429), Reply::Cut, Reply::Cut, Reply::Cut], 4, 0);
}

#[test]
fn what_cannot_be_sent_twice_is_sent_once() {
    for method in ["POST", "PATCH"] {
        check_attempts(method, [status(429)], 1, 429);
        check_attempts(method, [status(503)], 1, 503);
        check_attempts(method, [Reply::Cut], 1, 0);
    }
}

#[test]
fn other_answers_are_not_tried_again() {
    for code in [204, 304, 400, 403, 404, 500, 502, 504] {
        check_attempts("GET", [status(code)], 1, code);
    }
    check_attempts("GET", [Reply::Garbage], 1, 0);
}

#[test]
fn a_provider_that_is_too_slow_is_not_asked_again() {
    let provider = Provider::new([Reply::Silence]);
    let hasty =
        ureq::Agent::config_builder().proxy(None).timeout_recv_response(Some(Duration::from_millis(50)));
    let client = HttpClient::new(hasty.build().into(), Valve::builder("api").build().unwrap());
    let slow = client.get(provider.url());
    assert!(matches!(slow, Err(HttpError::Http(ureq::Error::Timeout(_)))), "{slow:?}");
    assert_eq!(provider.seen().len(), 1);
}

#[test]
fn a_provider_that_is_not_there_is_tried_again() {
    let provider = Provider::new([]);
    let url = provider.url();
    drop(provider);
    let client = client();
    assert!(matches!(client.get(url), Err(HttpError::Http(ureq::Error::Io(_)))));
    assert_eq!(client.valve().stats().started, 4);
}

#[test]
fn a_request_is_sent_again_as_it_was() {
    let provider = Provider::new([status(503), Reply::Cut, status(429)]);
    let request = Request::put(provider.url()).header("x-tag", "7").body("a letter".to_owned()).unwrap();
    client().call(request).unwrap();
    let seen = provider.seen();
    assert_eq!(seen.len(), 4);
    for request in &seen {
        assert_eq!(request, &seen[0]);
        assert_eq!((request.line.as_str(), request.body.as_str()), ("PUT /page HTTP/1.1", "a letter"));
        assert!(request.fields.contains(&"x-tag: 7".to_owned()), "{request:?}");
    }
}

#[test]
fn every_kind_of_body_arrives() {
    let provider = Provider::new([]);
    let client = client();
    let put = || Request::put(provider.url());
    client.call(put().body("abc").unwrap()).unwrap();
    client.call(put().body(String::from("abc")).unwrap()).unwrap();
    client.call(put().body(&b"abc"[..]).unwrap()).unwrap();
    client.call(put().body(vec![b'a', b'b', b'c']).unwrap()).unwrap();
    client.call(put().body(&vec![b'a', b'b', b'c']).unwrap()).unwrap();
    assert!(provider.seen().iter().all(|seen| seen.body == "abc"));
    assert_eq!(provider.seen().len(), 5);
    client.call(put().body("").unwrap()).unwrap();
    client.call(put().body(()).unwrap()).unwrap();
    let empty = &provider.seen()[5..];
    assert_eq!(empty.len(), 2);
    assert!(empty.iter().all(|seen| seen.fields.contains(&"content-length: 0".to_owned())), "{empty:?}");
}

/// What holds up the next job.
#[track_caller]
fn blocked_by(valve: &Valve) -> Option<Blocked> {
    match valve.try_acquire() {
        Ok(_) => None,
        Err(Error::WouldWait { blocked_by, .. }) => Some(blocked_by),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn whatever_an_answer_says_about_when_to_come_back_pauses_everybody() {
    let pausing: [(u16, &[&str]); 5] = [
        (
            404,
            &[
                "X-Rate-Limit-Remaining: 0",
                "X-Rate-Limit-Reset: 4102444800000",
                "Date: Thu, 31 Dec 2099 23:00:00 GMT",
            ],
        ),
        (429, &["Retry-After: 60"]),
        (503, &["Date: Sat, 17 Jun 2023 12:00:00 GMT", "Retry-After: Sat, 17 Jun 2023 12:01:00 GMT"]),
        (200, &["X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60"]),
        (404, &["RateLimit: \"all\";r=0;t=60"]),
    ];
    for (code, fields) in pausing {
        let provider = Provider::new([Reply::Answer(code, fields, String::new())]);
        let client = client();
        let sent = client.call(Request::post(provider.url()).body(()).unwrap());
        assert_eq!(outcome(sent.map(|response| response.status().as_u16())), code);
        assert_eq!(blocked_by(client.valve()), Some(Blocked::Paused), "{fields:?}");
    }
}

#[test]
fn a_retry_comes_no_earlier_than_the_provider_said() {
    let begun = Instant::now();
    let provider = Provider::new([Reply::Answer(429, &["Retry-After: 1"], String::new())]);
    assert_eq!(client().get(provider.url()).unwrap().status(), 200);
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_refusal_comes_with_its_answer() {
    let long = "no".repeat(50_000);
    let provider = Provider::new([Reply::Answer(429, &["X-Reason: daily"], long)]);
    let client = client().retry(Retry::times(0));
    let Err(HttpError::Refused(response)) = client.get(provider.url()) else { panic!("not refused") };
    assert_eq!(response.headers()["x-reason"], "daily");
    assert_eq!(response.body().len(), 65_536);
    assert!(response.body().starts_with(b"nono"));
}

#[test]
fn a_refused_connection_is_used_again() {
    let provider = Provider::new([1, 2].map(|_| Reply::Answer(429, &[], "no".repeat(1_000))));
    let mut response = client().get(provider.url()).unwrap();
    assert_eq!(response.body_mut().read_to_string().unwrap(), "a page");
    assert_eq!((provider.seen().len(), provider.connections()), (3, 1));
}

#[test]
fn the_agents_choice_about_statuses_is_heeded_but_for_refusals() {
    let code = |code| Reply::Answer(code, &["Retry-After: 60"], String::new());
    let provider = Provider::new([code(404), code(429), status(404), status(200)]);
    let valve = Valve::builder("api").build().unwrap();
    let strict = HttpClient::new(agent(ureq::Agent::config_builder()), valve).retry(Retry::times(0));
    assert!(matches!(strict.get(provider.url()), Err(HttpError::Http(ureq::Error::StatusCode(404)))));
    assert!(matches!(strict.get(provider.url()), Err(HttpError::Refused(_))));
    assert_eq!(blocked_by(strict.valve()), Some(Blocked::Paused));

    let lenient = client();
    assert_eq!(lenient.get(provider.url()).unwrap().status(), 404);
    assert_eq!(lenient.get(provider.url()).unwrap().status(), 200);
}

#[test]
fn a_requests_own_configuration_does_not_hide_a_refusal() {
    let provider = Provider::new([Reply::Answer(429, &["Retry-After: 60"], String::new())]);
    let own = agent(ureq::Agent::config_builder().http_status_as_error(false));
    let request = Request::post(provider.url()).body(()).unwrap();
    let request = own.configure_request(request).http_status_as_error(true).build();
    let client = HttpClient::new(own, Valve::builder("api").build().unwrap());
    assert!(matches!(client.call(request), Err(HttpError::Refused(_))));
    assert_eq!(blocked_by(client.valve()), Some(Blocked::Paused));
}

#[test]
fn call_frees_the_slot_at_the_header_fields_and_run_holds_it_while_the_body_is_read() {
    let (tell, told) = mpsc::channel();
    let (tell_second, told_second) = mpsc::channel();
    let provider = Provider::new([
        Reply::Halves("first ", told, "second"),
        Reply::Halves("first ", told_second, "second"),
    ]);
    let client = client_of(Valve::builder("api").concurrency(1));

    let response = client.get(provider.url()).unwrap();
    assert_eq!(blocked_by(client.valve()), None, "the second half has not been sent");
    tell.send(()).unwrap();
    assert_eq!(response.into_body().read_to_string().unwrap(), "first second");

    let request = Request::get(provider.url()).body(()).unwrap();
    let text = client.run(request, |running, response| {
        assert!(!running.is_aborted());
        let mut reader = response.into_body().into_reader();
        let mut text = vec![0; 6];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(text, b"first ", "streamed: the second half has not been sent");
        assert_eq!(blocked_by(client.valve()), Some(Blocked::LocalConcurrency));
        tell_second.send(()).unwrap();
        reader.read_to_end(&mut text).unwrap();
        assert_eq!(blocked_by(client.valve()), Some(Blocked::LocalConcurrency));
        String::from_utf8(text).unwrap()
    });
    assert_eq!(text.unwrap(), "first second");
    assert_eq!(blocked_by(client.valve()), None);
}

#[test]
fn a_panic_while_the_body_is_read_frees_the_slot() {
    let provider = Provider::new([]);
    let client = client_of(Valve::builder("api").concurrency(1));
    let request = Request::get(provider.url()).body(()).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| client.run(request, |_, _| panic!("cannot read this"))));
    assert!(panicked.is_err());
    assert_eq!(client.get(provider.url()).unwrap().status(), 200);
    assert_eq!(provider.seen().len(), 2);
}

#[test]
fn a_token_ends_a_back_off() {
    let provider = Provider::new([status(503)]);
    let client = client().retry(Retry::times(3).backoff(LONG * 10).max_backoff(LONG * 10));
    let token = CancelToken::new();
    thread::scope(|scope| {
        let sent = scope.spawn(|| client.job(|job| job.cancel(&token)).get(provider.url()));
        provider.wait_for(1);
        token.cancel();
        assert!(matches!(sent.join().unwrap(), Err(HttpError::Valve(Error::Cancelled))));
    });
    assert_eq!(provider.seen().len(), 1);
}

#[test]
fn a_refusal_that_lasts_beyond_max_wait_is_the_outcome_at_once() {
    let provider = Provider::new([Reply::Answer(429, &["Retry-After: 3600"], String::new())]);
    let client = client();
    let begun = Instant::now();
    let sent = client.job(|job| job.max_wait(LONG / 6)).get(provider.url());
    assert!(matches!(sent, Err(HttpError::Refused(_))), "{sent:?}");
    assert!(begun.elapsed() < LONG / 6);
}

#[test]
fn a_closed_valve_lets_nothing_be_sent() {
    let provider = Provider::new([]);
    let client = client();
    client.valve().close();
    assert!(matches!(client.get(provider.url()), Err(HttpError::Valve(Error::Closed))));
    assert!(matches!(client.get("http:// nowhere"), Err(HttpError::Http(ureq::Error::Http(_)))));
    assert!(provider.seen().is_empty());
}

#[test]
fn an_error_can_be_passed_on_between_threads_and_says_what_it_is() {
    fn boxed(error: HttpError) -> Box<dyn std::error::Error + Send + Sync> {
        error.into()
    }
    let refused = HttpError::Refused(Box::new(Response::builder().status(429).body(Vec::new()).unwrap()));
    assert_eq!(boxed(refused).to_string(), "the provider refused, with status 429 Too Many Requests");
    assert_eq!(boxed(Error::Closed.into()).source().unwrap().to_string(), "the valve is closed");
}
