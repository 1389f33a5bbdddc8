//! Requests of this machine, the only ones that a server without credentials answers. A page in a browser here must not
//! reach it through a name that points to 127.0.0.1, nor others through a proxy that runs here.

use crate::auth::Shown;
use std::net::IpAddr;
use tidegate_types::{Fault, Reject, RejectKind};

/// Refuses what is of another machine, or was not meant for this one.
pub(crate) fn check(shown: &Shown<'_>) -> Result<(), Reject> {
    let message = if !shown.peer.ip().to_canonical().is_loopback() {
        "this server has no API keys, so it answers only its own machine; add a key to its config"
    } else if !is_local_name(shown.host) {
        "this server has no API keys, so it answers only under the names of its own machine; \
             send the request to 127.0.0.1, or add a key to its config"
    } else if FORWARDED.iter().any(|name| shown.headers.contains_key(*name)) {
        "this server has no API keys, so it answers only its own machine, and a proxy forwards this request for \
             somebody; add a key to its config (`tidegate key NAME` makes one)"
    } else {
        return Ok(());
    };
    Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("local_only"))
}

/// What proxies say for whom they ask. To one on this machine everybody is local, so a request that has one of these is
/// nobody's of this machine. Those that say nothing cannot be told apart.
const FORWARDED: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];

/// `localhost`, a name below it, or a loopback address; with or without a port.
fn is_local_name(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.strip_prefix(':').is_none_or(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    if !(port.is_empty() || port.starts_with(':') && is_port) {
        return false;
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let address = name.parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Transport;
    use hyper::Method;
    use hyper::header::HeaderMap;

    #[test]
    fn without_keys_only_this_machine_is_served_and_only_by_its_own_names() {
        let shows = |host: &str, peer: &str, headers: &HeaderMap| {
            let (method, peer) = (&Method::GET, peer.parse().unwrap());
            check(&Shown { method, headers, host, peer, transport: Transport::Plain, certificate: None }).is_ok()
        };
        let allowed = |host: &str, peer: &str| shows(host, peer, &HeaderMap::new());
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:8080", "[::1]", "a.localhost"] {
            assert!(allowed(host, "127.0.0.1:9") && allowed(host, "[::1]:9") && allowed(host, "[::ffff:127.0.0.1]:9"));
        }
        assert!(!allowed("localhost", "192.0.2.1:9"));
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.1"] {
            assert!(!allowed(host, "127.0.0.1:9"), "{host}");
        }
        for name in FORWARDED {
            let forwarded = [(name.parse().unwrap(), "192.0.2.1".parse().unwrap())].into_iter().collect();
            assert!(!shows("localhost", "127.0.0.1:9", &forwarded), "{name}");
        }
    }
}
