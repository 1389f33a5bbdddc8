//! Requests of web pages. A browser sends a client certificate with whatever any page asks it to send, and reaches this
//! machine from any page; so what changes something here must not come from another site's page. Browsers say where a
//! request is from, programs say nothing. Logins have a stricter rule of their own (`session.rs`), since a cookie is for
//! browsers alone.

use crate::auth::Shown;
use hyper::header::ORIGIN;
use tidegate_types::{Fault, Reject, RejectKind};

/// How a request came to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Without TLS; a proxy may have ended that, so that the page may be of either scheme.
    Plain,
    /// By TLS of this server, whose pages are of `https` alone: one of `http` may be anybody's on the way.
    Tls,
}

/// Refuses what would change something and comes from a page that is not of this server.
pub(crate) fn check(shown: &Shown<'_>) -> Result<(), Reject> {
    if shown.method.is_safe() || !is_foreign(shown) {
        return Ok(());
    }
    let message = "the request comes from another site's page, and changes something; send a key in `Authorization`, or \
                   ask from a program, without `Origin`";
    Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("cross_site"))
}

fn is_foreign(shown: &Shown<'_>) -> bool {
    let mut origins = shown.headers.get_all(ORIGIN).iter().peekable();
    if origins.peek().is_some() {
        return !origins.all(|origin| is_own(origin.as_bytes(), shown));
    }
    // Browsers that name no origin say so in another way.
    let mut sites = shown.headers.get_all("sec-fetch-site").iter();
    sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// Whether a page of that origin is of the host that the request was sent to.
fn is_own(origin: &[u8], shown: &Shown<'_>) -> bool {
    let name = match (origin.strip_prefix(b"https://"), shown.transport) {
        (None, Transport::Plain) => origin.strip_prefix(b"http://"),
        (name, _) => name,
    };
    name.is_some_and(|name| name.eq_ignore_ascii_case(shown.host.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::header::{HeaderMap, HeaderName, HeaderValue};

    fn refused(method: Method, transport: Transport, host: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        let peer = "127.0.0.1:9".parse().unwrap();
        check(&Shown { method: &method, headers: &headers, host, peer, transport, certificate: None }).is_err()
    }

    #[test]
    fn over_tls_a_page_without_it_is_another_sites() {
        for (origin, transport, expected) in [
            ("http://gw.example", Transport::Tls, true),
            ("https://gw.example", Transport::Tls, false),
            ("http://gw.example", Transport::Plain, false),
            ("https://gw.example", Transport::Plain, false),
        ] {
            let refused = refused(Method::POST, transport, "gw.example", &[("origin", origin)]);
            assert_eq!(refused, expected, "{origin} by {transport:?}");
        }
    }

    #[test]
    fn what_comes_from_another_sites_page_changes_nothing() {
        for (host, headers) in [
            ("localhost:8080", &[("origin", "https://evil.example")][..]),
            ("localhost:8080", &[("origin", "http://localhost:3000")]),
            ("localhost:8080", &[("origin", "http://localhost")]),
            ("localhost:8080", &[("origin", "null")]),
            ("localhost:8080", &[("origin", "http://localhost:8080"), ("origin", "https://evil.example")]),
            ("localhost:8080", &[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")]),
            ("gw.example", &[("sec-fetch-site", "cross-site")]),
            ("gw.example", &[("sec-fetch-site", "same-site")]),
        ] {
            let refused = |method| refused(method, Transport::Plain, host, headers);
            assert!(refused(Method::POST) && refused(Method::DELETE), "{headers:?}");
            assert!(!refused(Method::GET), "{headers:?}");
        }
        for (host, headers) in [
            ("localhost:8080", &[][..]),
            ("localhost:8080", &[("origin", "http://localhost:8080")]),
            ("gw.example", &[("origin", "https://GW.example")]),
            ("gw.example", &[("sec-fetch-site", "same-origin")]),
            ("gw.example", &[("sec-fetch-site", "none")]),
        ] {
            assert!(!refused(Method::POST, Transport::Plain, host, headers), "{headers:?}");
        }
    }
}
