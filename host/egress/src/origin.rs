//! A base URL, taken apart once. Requests may only append to its path.

use crate::error::EgressError;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Scheme;

/// Where a connector goes.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) tls: bool,
    /// Without brackets, for name lookup and certificates.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `host` or `host:port`, as in a `Host` header.
    pub(crate) authority: HeaderValue,
    /// `scheme://authority`, for messages and for HTTP/2.
    pub(crate) name: String,
    /// Path of the base URL without a trailing slash.
    base_path: String,
}

impl Origin {
    pub(crate) fn parse(url: &str) -> Result<Self, EgressError> {
        let bad = |why| EgressError::BadUrl { url: without_user(url), why };
        let uri: Uri = url.parse().map_err(|_| bad("it is not a URL"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(bad("it must start with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must not hold a user or a password; use an API key"));
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(bad("it must not have a query or a fragment"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match authority.port_u16() {
            Some(port) => port,
            None if has_port => return Err(bad("its port is not a number below 65536")),
            None if tls => 443,
            None => 80,
        };
        let name = format!("{}://{authority}", if tls { "https" } else { "http" });
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| bad("its host is no header value"))?;
        let base_path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host, port, authority: header, name, base_path })
    }

    /// The path of `below` (which starts with a slash) under the base URL.
    pub(crate) fn path(&self, below: &str) -> String {
        [&self.base_path, below].concat()
    }
}

/// A password in a URL must not come back in an error.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_taken_apart() {
        let check = |url: &str, tls: bool, host: &str, port: u16, path: &str| {
            let origin = Origin::parse(url).unwrap();
            assert_eq!((origin.tls, origin.host.as_str(), origin.port), (tls, host, port), "{url}");
            assert_eq!(origin.path("/models"), path, "{url}");
        };
        check("http://127.0.0.1:8000/v1", false, "127.0.0.1", 8000, "/v1/models");
        check("https://api.example.com/v1/", true, "api.example.com", 443, "/v1/models");
        check("http://[::1]:81", false, "::1", 81, "/models");
        check("http://h/a/b", false, "h", 80, "/a/b/models");
    }

    #[test]
    fn urls_that_could_lead_elsewhere_are_refused() {
        let urls = ["", "h", "/v1", "ftp://h", "http://", "http://h?x=1", "http://h/#f", "http://h:99999", "http://h:"];
        for url in urls {
            assert!(Origin::parse(url).is_err(), "{url}");
        }
        let error = Origin::parse("http://me:secret@h/v1").unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("secret"), "{error}");
    }
}
