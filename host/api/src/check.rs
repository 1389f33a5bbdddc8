//! What is wrong with a request's head before anyone looks at what it asks. hyper has parsed it; these are the
//! cases that it lets pass and that mean different things to different servers on the way.

use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, TRANSFER_ENCODING};
use hyper::{Request, Version};
use tidegate_types::{Fault, Reject, RejectKind};

/// Bytes of a request's head, as HTTP/1.1 writes it.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;

/// Whether a head is longer than this server reads. HTTP/1.1 stops reading by itself; over HTTP/2, where a head is packed,
/// this counts it.
pub(crate) fn is_too_long<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2 && written_bytes(request) > MAX_HEAD_BYTES
}

/// What a head takes where it is written out.
fn written_bytes<B>(request: &Request<B>) -> usize {
    const BETWEEN: usize = ": \r\n".len();
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + BETWEEN);
    path + authority + fields.sum::<usize>()
}

/// What is said of a head that is too long.
pub(crate) fn too_long() -> Reject {
    Reject::new(RejectKind::TooLarge, Fault::Client, "the request's head is longer than this server reads")
}

/// Checks a head; gives the name that the request was sent to, empty where HTTP/1.0 gives none.
pub(crate) fn head<B>(request: &Request<B>) -> Result<String, Reject> {
    no_shadow_headers(request.headers())?;
    no_stacked_encodings(request.headers())?;
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(wrong("the request has several `Host` headers; send one")),
        (Some(host), None) => Some(host.to_str().map_err(|_| wrong("the `Host` header is not text"))?),
        (None, None) => None,
    };
    let authority = request.uri().authority().map(|authority| authority.as_str());
    match (host, authority) {
        (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            Err(wrong("the request's URL and its `Host` header name different servers"))
        }
        (Some(name), _) | (None, Some(name)) => Ok(name.to_owned()),
        (None, None) if request.version() == Version::HTTP_11 => Err(wrong("the request has no `Host` header")),
        (None, None) => Ok(String::new()),
    }
}

/// A proxy before us may read `Content_Length` as `Content-Length`; then it and we would see different bodies.
fn no_shadow_headers(headers: &HeaderMap) -> Result<(), Reject> {
    for name in ["content_length", "transfer_encoding"] {
        if headers.contains_key(name) {
            return Err(wrong(format!("the header `{name}` is not accepted; write it with a hyphen")));
        }
    }
    Ok(())
}

/// This server takes the last of several encodings for the body's; one before it may take the first, and then they see
/// different ends of the body.
fn no_stacked_encodings(headers: &HeaderMap) -> Result<(), Reject> {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(wrong("the header `Transfer-Encoding` must be `chunked`, once and alone; send the body as it is")),
    }
}

/// Whether a line of a head announces a body of a length that HTTP itself does not take: [`hyper`] speaks of a head that is too
/// long, or malformed.
pub(crate) fn announces_too_much(line: &[u8]) -> bool {
    const MOST_DIGITS: usize = "18446744073709551613".len();
    let name = CONTENT_LENGTH.as_str().as_bytes();
    let Some((field, rest)) = line.split_at_checked(name.len()) else { return false };
    let Some(digits) = rest.strip_prefix(b":").filter(|_| field.eq_ignore_ascii_case(name)) else { return false };
    let digits = digits.trim_ascii();
    let short = digits.len() < MOST_DIGITS || !digits.iter().all(u8::is_ascii_digit);
    // The two largest numbers mean something else to it.
    !short && str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).is_none_or(|n: u64| n >= u64::MAX - 1)
}

fn wrong(message: impl Into<String>) -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("invalid_http")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &str, version: Version, headers: &[(&'static str, &str)]) -> Result<String, Reject> {
        let mut request = Request::builder().uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        head(&request.body(()).unwrap())
    }

    #[test]
    fn one_host_is_required_and_must_agree_with_the_url() {
        let ok = |uri, version, headers: &[_]| check(uri, version, headers).unwrap();
        assert_eq!(ok("/x", Version::HTTP_11, &[("host", "a:1")]), "a:1");
        assert_eq!(ok("http://A:1/x", Version::HTTP_11, &[("host", "a:1")]), "a:1");
        assert_eq!(ok("http://a/x", Version::HTTP_2, &[]), "a");
        assert_eq!(ok("/x", Version::HTTP_10, &[]), "");
        assert!(check("/x", Version::HTTP_11, &[]).is_err());
        assert!(check("/x", Version::HTTP_11, &[("host", "a"), ("host", "a")]).is_err());
        assert!(check("http://evil/x", Version::HTTP_11, &[("host", "a")]).is_err());
    }

    #[test]
    fn a_head_is_as_long_as_http_1_writes_it() {
        let with = |version, len: usize| {
            let request = Request::get("http://a/x").version(version).header("n", "v".repeat(len));
            is_too_long(&request.body(()).unwrap())
        };
        // `/x`, `a`, `n` and what stands between them.
        let most = MAX_HEAD_BYTES - 8;
        assert_eq!([most, most + 1].map(|len| with(Version::HTTP_2, len)), [false, true]);
        assert!(!with(Version::HTTP_11, most + 1), "that is not for us to count");
    }

    #[test]
    fn headers_that_another_server_may_take_for_others_are_refused() {
        assert!(check("/x", Version::HTTP_11, &[("host", "a"), ("content_length", "5")]).is_err());
        assert!(check("/x", Version::HTTP_11, &[("host", "a"), ("transfer_encoding", "chunked")]).is_err());
    }

    #[test]
    fn a_body_is_chunked_once_or_not() {
        let sent = |values: &[&'static str]| {
            let mut headers = vec![("host", "a")];
            headers.extend(values.iter().map(|value| ("transfer-encoding", *value)));
            check("/x", Version::HTTP_11, &headers)
        };
        for values in [&[][..], &["chunked"], &["Chunked "]] {
            assert!(sent(values).is_ok(), "{values:?}");
        }
        for values in
            [&["chunked, chunked"][..], &["gzip, chunked"], &["chunked", "identity"], &["chunked", "chunked"], &[""]]
        {
            assert!(sent(values).unwrap_err().message.contains("Transfer-Encoding"), "{values:?}");
        }
    }

    #[test]
    fn lengths_beyond_what_http_takes_are_seen_in_their_line() {
        let line = |value: &str| format!("Content-LENGTH:{value}\r");
        for value in [" 18446744073709551615", "18446744073709551614 ", " 99999999999999999999"] {
            assert!(announces_too_much(line(value).as_bytes()), "{value}");
        }
        for value in [" 18446744073709551613", " 1x446744073709551615", " 00000000000000000000001", " -1", ""] {
            assert!(!announces_too_much(line(value).as_bytes()), "{value}");
        }
        assert!(!announces_too_much(b"content-length") && !announces_too_much(b""));
    }
}
