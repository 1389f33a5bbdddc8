//! Requests of web pages. A browser sends a client certificate with whatever any page asks it to send, and reaches this
//! machine from any page; so what changes something here must not come from another site's page. Browsers say where a
//! request is from, programs say nothing. Logins have a stricter rule of their own (`session.rs`), since a cookie is for
//! browsers alone.

use crate::auth::Shown;
use hyper::header::ORIGIN;
use tidegate_types::{Fault, Reject, RejectKind};

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
        return !origins.all(|origin| is_own(origin.as_bytes(), shown.host));
    }
    // Browsers that name no origin say so in another way.
    let mut sites = shown.headers.get_all("sec-fetch-site").iter();
    sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// Whether a page of that origin is of the host that the request was sent to.
fn is_own(origin: &[u8], host: &str) -> bool {
    let name = [&b"https://"[..], b"http://"].iter().find_map(|scheme| origin.strip_prefix(*scheme));
    name.is_some_and(|name| name.eq_ignore_ascii_case(host.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::header::{HeaderMap, HeaderName, HeaderValue};

    fn refused(method: Method, host: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        let peer = "127.0.0.1:9".parse().unwrap();
        check(&Shown { method: &method, headers: &headers, host, peer, certificate: None }).is_err()
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
            assert!(refused(Method::POST, host, headers) && refused(Method::DELETE, host, headers), "{headers:?}");
            assert!(!refused(Method::GET, host, headers), "{headers:?}");
        }
        for (host, headers) in [
            ("localhost:8080", &[][..]),
            ("localhost:8080", &[("origin", "http://localhost:8080")]),
            ("gw.example", &[("origin", "https://GW.example")]),
            ("gw.example", &[("sec-fetch-site", "same-origin")]),
            ("gw.example", &[("sec-fetch-site", "none")]),
        ] {
            assert!(!refused(Method::POST, host, headers), "{headers:?}");
        }
    }
}
