//! HTTP, scripted. A request that the host would not send does not reach the script; which origins are granted, and which
//! headers to a secret, is open.

use super::outside::{Script, check_secret, denied, secret_names};
use super::{hand_over, target};
use crate::host::http::{Request, Response};
use crate::plugin::Error;
use std::cell::RefCell;

const MAX_METHOD_BYTES: usize = 32;
const MAX_URL_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_AT_ONCE: usize = 16;
/// What an answer's body has at most by the host's default of `http.response_kib`; the rest is cut off.
const RESPONSE_BYTES: usize = 1 << 20;
/// The host's default of `memory_mib`.
const MEMORY_BYTES: usize = 64 << 20;
// A host refuses bodies of one call that do not fit its instance together; these do.
const _: () = assert!(MAX_AT_ONCE * RESPONSE_BYTES <= MEMORY_BYTES);
/// Before a secret.
const MAX_PREFIX_BYTES: usize = 64;
/// Headers that are the host's.
const RESERVED: [&str; 10] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "expect",
    "proxy-connection",
];
/// The same of a plugin that has secrets.
const RESERVED_BESIDE_SECRETS: [&str; 2] = ["accept-encoding", "range"];

#[derive(Default)]
struct Http {
    script: Script<Request, Response>,
    sent: Vec<Request>,
}

thread_local! {
    static HTTP: RefCell<Http> = RefCell::default();
}

/// Says what HTTP requests are answered.
pub fn on_http(script: impl FnMut(&Request) -> Result<Response, Error> + 'static) {
    HTTP.with_borrow_mut(|http| http.script = Some(Box::new(script)));
}

/// Requests that were sent since the last call, in order.
pub fn take_requests() -> Vec<Request> {
    HTTP.with_borrow_mut(|http| std::mem::take(&mut http.sent))
}

pub(in crate::host) fn send(request: &Request) -> Result<Response, Error> {
    hand_over("http.send", &[request]);
    answer(request)
}

pub(in crate::host) fn send_all(requests: &[Request]) -> Vec<Result<Response, Error>> {
    hand_over("http.send-all", &[&requests]);
    if requests.len() > MAX_AT_ONCE {
        let message = format!("{} requests at once; at most {MAX_AT_ONCE}", requests.len());
        return vec![Err(Error::InvalidInput(message)); requests.len()];
    }
    requests.iter().map(answer).collect()
}

fn answer(request: &Request) -> Result<Response, Error> {
    check(request)?;
    let answered = HTTP.with_borrow_mut(|http| {
        http.sent.push(request.clone());
        http.script.as_mut().map_or_else(|| denied("http"), |script| script(request))
    });
    answered.map(cut)
}

/// As much of an answer as the host reads.
fn cut(mut response: Response) -> Response {
    response.truncated |= response.body.len() > RESPONSE_BYTES;
    response.body.truncate(RESPONSE_BYTES);
    response
}

fn check(request: &Request) -> Result<(), Error> {
    if request.method.len() > MAX_METHOD_BYTES {
        return invalid(format!("a method has at most {MAX_METHOD_BYTES} bytes"));
    }
    if request.url.len() > MAX_URL_BYTES {
        return invalid(format!("a URL has at most {MAX_URL_BYTES} bytes"));
    }
    request.secret_headers.iter().try_for_each(|header| check_secret(&header.secret))?;
    if request.secret_headers.iter().any(|header| header.prefix.len() > MAX_PREFIX_BYTES) {
        return invalid(format!("what stands before a secret has at most {MAX_PREFIX_BYTES} bytes"));
    }
    let plain = request.headers.iter().map(|(name, value)| (name.as_str(), value.len()));
    let secret = request.secret_headers.iter().map(|header| (header.name.as_str(), header.prefix.len()));
    check_headers(&plain.chain(secret).collect::<Vec<_>>())?;
    target::check(request)
}

/// Names, and bytes of values.
fn check_headers(headers: &[(&str, usize)]) -> Result<(), Error> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return invalid(format!("at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together"));
    }
    let beside_secrets = if secret_names().is_empty() { &[][..] } else { &RESERVED_BESIDE_SECRETS };
    let mut reserved = RESERVED.iter().chain(beside_secrets);
    match reserved.find(|reserved| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(reserved))) {
        Some(name) => invalid(format!("the header `{name}` is the host's")),
        None => Ok(()),
    }
}

fn invalid(message: String) -> Result<(), Error> {
    Err(Error::InvalidInput(message))
}

#[cfg(test)]
mod tests {
    use super::super::{grant_secrets, hold_to};
    use super::*;
    use crate::descriptor::{Capability, Descriptor};
    use crate::host::http;

    fn sent(request: &Request) -> Result<u16, Error> {
        on_http(|_| Ok(Response { status: 200, ..Response::default() }));
        http::send(request).map(|response| response.status)
    }

    fn get() -> Request {
        Request::get("https://api.example.com/v1")
    }

    #[test]
    fn requests_that_the_host_does_not_send_are_refused() {
        let check = |request: Request| assert!(matches!(sent(&request), Err(Error::InvalidInput(_))), "{request:?}");
        grant_secrets(&["key"]);
        check(Request::get("x".repeat(MAX_URL_BYTES + 1)));
        check(Request::get("api.example.com/v1"));
        check(Request { method: String::new(), ..get() });
        check(Request { method: "M".repeat(MAX_METHOD_BYTES + 1), ..get() });
        check(get().header("Content-Length", "3"));
        check(get().header("x", "y".repeat(MAX_HEADER_BYTES)));
        check((0..=MAX_HEADERS).fold(get(), |request, n| request.header(n.to_string(), "")));
        check(get().header("Range", "bytes=0-9"));
        check(get().secret_header("authorization", "x".repeat(MAX_PREFIX_BYTES + 1), "key"));
        assert_eq!(take_requests(), []);
        grant_secrets(&[]);
        assert_eq!(sent(&get().header("Range", "bytes=0-9")), Ok(200));
        assert_eq!(take_requests().len(), 1);
    }

    #[test]
    fn so_many_are_sent_at_once_at_most() {
        sent(&get()).unwrap();
        let answered = |count| http::send_all(&vec![get(); count]);
        assert!(answered(MAX_AT_ONCE).iter().all(Result::is_ok));
        let refused = answered(MAX_AT_ONCE + 1);
        assert_eq!(refused.len(), MAX_AT_ONCE + 1);
        assert!(refused.iter().all(|answer| matches!(answer, Err(Error::InvalidInput(_)))));
    }

    #[test]
    fn of_an_answer_there_is_as_much_as_a_host_reads_unasked() {
        let read = |bytes: usize| {
            on_http(move |_| Ok(Response { status: 200, body: vec![b'x'; bytes], ..Response::default() }));
            let response = http::send(&get()).unwrap();
            (response.body.len(), response.truncated)
        };
        assert_eq!(read(RESPONSE_BYTES), (RESPONSE_BYTES, false));
        assert_eq!(read(RESPONSE_BYTES + 1), (RESPONSE_BYTES, true));
    }

    #[test]
    fn a_secret_must_be_granted_and_its_use_declared() {
        let request = get().secret_header("authorization", "Bearer ", "key");
        assert!(matches!(sent(&request), Err(Error::Denied(why)) if why.contains("`key` is not granted")));
        grant_secrets(&["key"]);
        assert_eq!(sent(&request), Ok(200));
        let descriptor = Descriptor::new("probe", "0.1.0", "A probe");
        hold_to(&descriptor);
        assert!(matches!(sent(&request), Err(Error::Denied(why)) if why.contains("does not name `secrets`")));
        hold_to(&descriptor.needs(Capability::Secrets, "shows who asks"));
        assert_eq!(sent(&request), Ok(200));
    }
}
