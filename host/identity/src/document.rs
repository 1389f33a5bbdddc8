//! Small documents of an issuer, by the outlet that checks where a name leads.

use crate::issuer::Trust;
use std::time::Duration;
use tidegate_egress::{Fetched, Outlet, OutletConfig};

/// Bytes of a document. A set of 64 large keys has less.
const MAX_BYTES: usize = 256 << 10;

/// Fetches `url`; the error is for the log.
pub(crate) async fn fetch(url: &str, trust: &Trust, limit: Duration) -> Result<Vec<u8>, String> {
    let accept = [("accept".to_owned(), "application/json".to_owned())];
    match send("GET", url, &accept, Vec::new(), trust, limit).await? {
        (200, body) => Ok(body),
        (status, _) => Err(format!("{url} answers {status}")),
    }
}

/// Sends one request, and gives the status and the whole body of its answer.
pub(crate) async fn send(
    method: &str,
    url: &str,
    headers: &[(String, String)],
    body: Vec<u8>,
    trust: &Trust,
    limit: Duration,
) -> Result<(u16, Vec<u8>), String> {
    let config = OutletConfig {
        origins: vec![origin(url).to_owned()],
        addresses: trust.addresses.clone(),
        timeout: limit,
        extra_roots: trust.extra_roots.clone(),
        resolve: None,
    };
    let outlet = Outlet::new(config).map_err(|error| error.to_string())?;
    let sent = tokio::time::timeout(limit, outlet.send(method, url, headers, body, MAX_BYTES)).await;
    let Fetched { status, body, truncated, .. } =
        sent.map_err(|_| format!("{url} took longer than {limit:?}"))?.map_err(|error| error.to_string())?;
    if truncated { Err(format!("{url} has more than {MAX_BYTES} bytes")) } else { Ok((status, body)) }
}

/// `scheme://host[:port]`; what is no URL is refused by the outlet.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Whether what is fetched there is what its owner sent: by TLS, or from this machine.
pub(crate) fn is_safe(url: &str) -> bool {
    let host = |rest: &str| rest.split(['/', '?']).next().unwrap_or_default().to_owned();
    match url.split_once("://") {
        Some(("https", rest)) => !rest.is_empty(),
        Some(("http", rest)) => {
            let host = host(rest);
            let name = host.rsplit_once(':').map_or(&*host, |(name, _)| name);
            matches!(name, "127.0.0.1" | "[::1]" | "localhost") || host == "[::1]"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_and_this_machine_are_safe() {
        for good in
            ["https://a.example/x", "http://127.0.0.1:80/x", "http://localhost", "http://[::1]:9/", "http://[::1]/"]
        {
            assert!(is_safe(good), "{good}");
        }
        for bad in [
            "http://a.example",
            "http://127.0.0.1.example/",
            "http://localhost@a.example/",
            "ftp://localhost",
            "x",
            "https://",
        ] {
            assert!(!is_safe(bad), "{bad}");
        }
        assert_eq!(origin("https://a.example:8443/b?c"), "https://a.example:8443");
        assert_eq!(origin("https://a.example"), "https://a.example");
    }
}
