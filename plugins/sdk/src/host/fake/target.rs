//! Where a request goes, and how: a URL, a method and headers that the host would send. Its rules, and its words.

use crate::host::http::Request;
use crate::plugin::Error;
use std::net::{Ipv4Addr, Ipv6Addr};

const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

pub(super) fn check(request: &Request) -> Result<(), Error> {
    let plain = request.headers.iter().map(|(name, value)| (name, value));
    let secret = request.secret_headers.iter().map(|header| (&header.name, &header.prefix));
    let headers = plain.chain(secret);
    let checked = check_url(&request.url).and_then(|()| check_method(&request.method)).and_then(|()| {
        let is_one = |(name, value): (&String, &String)| is_token(name) && is_value(value);
        if headers.into_iter().all(is_one) { Ok(()) } else { Err("a header is none") }
    });
    checked.map_err(|why| Error::InvalidInput(format!("the URL cannot be used: {why}")))
}

/// As in the names of methods and headers.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

fn check_method(method: &str) -> Result<(), &'static str> {
    match method {
        "CONNECT" | "TRACE" => Err("its method is not for plugins"),
        method if is_token(method) => Ok(()),
        _ => Err("its method is none"),
    }
}

fn check_url(url: &str) -> Result<(), &'static str> {
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has characters other than printable ASCII");
    }
    if url.contains(['\\', '#', '`', '"', '<', '>', '^', '{', '|', '}']) {
        return Err("it has characters that URLs do not have, or a fragment");
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let rest = rest.ok_or("it does not start with http:// or https://")?;
    let port = check_host(rest.split(['/', '?']).next().unwrap_or_default())?;
    if port.is_none_or(is_port) { Ok(()) } else { Err("its port is no number from 1 to 65535") }
}

/// Gives the port, as it is written.
fn check_host(authority: &str) -> Result<Option<&str>, &'static str> {
    if authority.contains('@') {
        return Err("it has a user or a password");
    }
    if let Some(inner) = authority.strip_prefix('[') {
        let (address, after) = inner.split_once(']').ok_or("its host is no address")?;
        let port = after.strip_prefix(':');
        let good = address.parse::<Ipv6Addr>().is_ok() && (after.is_empty() || port.is_some());
        return if good { Ok(port) } else { Err("its host is no address") };
    }
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    check_name(&host.to_ascii_lowercase()).map(|()| port)
}

fn check_name(host: &str) -> Result<(), &'static str> {
    let good = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if host.len() > MAX_NAME_BYTES || !host.split('.').all(good) {
        return Err("its host is no name");
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if number && host.parse::<Ipv4Addr>().is_err() {
        return Err("its host is an address in an unusual form");
    }
    Ok(())
}

fn is_port(digits: &str) -> bool {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain && digits.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: &Request) -> String {
        match check(request) {
            Ok(()) => String::new(),
            Err(Error::InvalidInput(why)) => why,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_url_must_be_one_that_the_host_takes_apart() {
        for url in [
            "https://API.example.com",
            "http://h:80/a/b?c=d/e",
            "http://h?q=1",
            "http://127.0.0.1:8080/x%20y",
            "http://[0:0::1]:81/",
        ] {
            assert_eq!(refused(&Request::get(url)), "", "{url}");
        }
        for (url, why) in [
            ("", "http:// or https://"),
            ("/v1", "http:// or https://"),
            ("ftp://h/", "http:// or https://"),
            ("HTTP://h/", "http:// or https://"),
            ("http:///", "its host is no name"),
            ("http://:80/", "its host is no name"),
            ("http://h./", "its host is no name"),
            ("http://a_b/", "its host is no name"),
            ("http://-a/", "its host is no name"),
            ("http://me:secret@h/", "a user or a password"),
            ("http://h/#part", "or a fragment"),
            ("http://h\\@e/", "characters that URLs do not have"),
            ("http://h /", "printable ASCII"),
            ("http://\u{e9}/", "printable ASCII"),
            ("http://h:0/", "its port"),
            ("http://h:/", "its port"),
            ("http://h:+80/", "its port"),
            ("http://h:65536/", "its port"),
            ("http://[::1/", "its host is no address"),
            ("http://[::1]x/", "its host is no address"),
            ("http://[::1]:/", "its port"),
            ("http://2130706433/", "in an unusual form"),
            ("http://0x7f.1/", "in an unusual form"),
            ("http://127.1/", "in an unusual form"),
        ] {
            let said = refused(&Request::get(url));
            assert!(said.starts_with("the URL cannot be used: ") && said.contains(why), "{url:?}: {said}");
        }
    }

    #[test]
    fn a_method_and_headers_must_be_what_http_has() {
        let with = |method: &str| Request { method: method.into(), ..Request::get("https://h/") };
        for method in ["PUT", "DELETE", "PROPFIND", "get"] {
            assert_eq!(refused(&with(method)), "", "{method}");
        }
        for method in ["", "GET ", "G\u{c9}T"] {
            assert!(refused(&with(method)).contains("its method is none"), "{method:?}");
        }
        for method in ["CONNECT", "TRACE"] {
            assert!(refused(&with(method)).contains("is not for plugins"), "{method}");
        }
        let headers = |name: &str, value: &str| refused(&Request::get("https://h/").header(name, value));
        assert_eq!(headers("x-a", "one, \ttwo"), "");
        for (name, value) in [("", "a"), ("x a", "a"), ("x:", "a"), ("x", "a\nb"), ("x", "\u{e9}")] {
            assert!(headers(name, value).contains("a header is none"), "{name:?} {value:?}");
        }
        let secret = Request::get("https://h/").secret_header("x", "a\n", "key");
        assert!(refused(&secret).contains("a header is none"));
    }
}
