//! `[server]`: where it listens, with which certificate, and what all requests together may take.

use super::{StreamsConfig, address};
use anyhow::{bail, ensure};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// `[server]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on.
    #[serde(deserialize_with = "address::read")]
    pub listen: SocketAddr,
    /// Address for the administrator's routes, which `listen` has not then.
    #[serde(deserialize_with = "address::read_some")]
    pub admin_listen: Option<SocketAddr>,
    /// Serve HTTPS.
    pub tls: Option<TlsConfig>,
    /// Open connections.
    pub max_connections: usize,
    /// Requests between admission and the end of their answer; past it only for tenants below their share of it.
    pub max_inflight: usize,
    /// Bytes of a request body.
    pub max_body_bytes: usize,
    /// Time for a request's headers to arrive.
    pub header_timeout_ms: u64,
    /// Time for a request's body to arrive.
    pub body_timeout_ms: u64,
    /// After Ctrl-C or SIGTERM: for so long the server says that it is not ready, and takes requests as before.
    pub settle_ms: u64,
    /// Time for running answers to end then.
    pub drain_timeout_ms: u64,
    /// How long who asks for a response in the background waits at most for it to be let in: for whoever embeds this program.
    #[serde(skip)]
    pub let_in_within: Duration,
    /// Take the config and plugins anew whenever one of their files changes.
    pub watch: bool,
    /// Streams that a client can come back to.
    pub streams: StreamsConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin_listen: None,
            tls: None,
            max_connections: 10_000,
            max_inflight: 1024,
            max_body_bytes: 10 << 20,
            header_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            settle_ms: 0,
            drain_timeout_ms: 30_000,
            let_in_within: Duration::from_secs(1),
            watch: false,
            streams: StreamsConfig::default(),
        }
    }
}

/// Of `settle_ms`: nothing looks less often whether a server is ready.
const MAX_SETTLE_MS: u64 = 300_000;

impl ServerConfig {
    pub(super) fn check(&self) -> Vec<anyhow::Result<()>> {
        let bounds = [
            ("max_connections", self.max_connections),
            ("max_inflight", self.max_inflight),
            ("max_body_bytes", self.max_body_bytes),
        ];
        let bounds = bounds.map(|(key, value)| {
            ensure!(value > 0, "server.{key} is 0, so that no request could be served; the smallest is 1");
            Ok(())
        });
        let times = [("header_timeout_ms", self.header_timeout_ms), ("body_timeout_ms", self.body_timeout_ms)];
        let times = times.map(|(key, value)| {
            ensure!(
                value > 0,
                "server.{key} is 0, in which nothing arrives; there is no value for no bound: write a long time, or leave it \
                 out for the default"
            );
            Ok(())
        });
        let others = [self.check_tls(), self.check_admin(), self.check_settle(), self.streams.check()];
        others.into_iter().chain(bounds).chain(times).collect()
    }

    fn check_tls(&self) -> anyhow::Result<()> {
        if let Some(tls) = &self.tls
            && tls.client_auth == ClientAuthConfig::Required
            && tls.client_ca.is_none()
        {
            bail!("server.tls.client_auth is required, but there is no `client_ca` to check certificates by");
        }
        Ok(())
    }

    fn check_admin(&self) -> anyhow::Result<()> {
        if let Some(admin) = self.admin_listen
            && is_one(self.listen, admin)
        {
            bail!(
                "server.admin_listen is {admin}, where server.listen = {} is already; give it a port of its own",
                self.listen
            );
        }
        Ok(())
    }

    fn check_settle(&self) -> anyhow::Result<()> {
        let settle_ms = self.settle_ms;
        ensure!(
            settle_ms <= MAX_SETTLE_MS,
            "server.settle_ms is {settle_ms}, for which no stop should wait; the largest is {MAX_SETTLE_MS}"
        );
        Ok(())
    }
}

/// Whether only one of two addresses can be listened on. The system says so when both are to be, which is once all is loaded.
/// All of IPv6 are all of IPv4, too, unless the system has been told otherwise.
fn is_one(one: SocketAddr, other: SocketAddr) -> bool {
    let (one_ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
    let has = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let same_ip = one_ip == other_ip || has(one_ip, other_ip) || has(other_ip, one_ip);
    one.port() == other.port() && one.port() != 0 && same_ip
}

/// `[server.tls]`: PEM files.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Authorities whose certificates clients may show.
    pub client_ca: Option<PathBuf>,
    /// Whether they must.
    #[serde(default)]
    pub client_auth: ClientAuthConfig,
}

/// `server.tls.client_auth`
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthConfig {
    /// A connection without a certificate is for callers with a key or a token.
    #[default]
    Optional,
    /// A connection without a certificate is refused.
    Required,
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn bounds_that_let_nothing_in_are_refused_by_name() {
        for key in ["max_connections", "max_inflight", "max_body_bytes", "header_timeout_ms", "body_timeout_ms"] {
            let why = Config::parse(&format!("[server]\n{key} = 0\n")).unwrap_err().to_string();
            assert!(why.starts_with(&format!("server.{key} is 0, ")), "{why}");
            Config::parse(&format!("[server]\n{key} = 1\n")).unwrap();
        }
        Config::parse("[server]\ndrain_timeout_ms = 0\n").unwrap();
    }

    #[test]
    fn administrators_have_an_address_of_their_own_or_none() {
        for (listen, admin, is_good) in [
            ("127.0.0.1:80", "127.0.0.1:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", true),
            ("127.0.0.1:80", "127.0.0.2:80", true),
            ("127.0.0.1:80", "[::]:80", false),
            ("[::]:80", "0.0.0.0:80", false),
            ("[::1]:80", "[::]:80", false),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", false),
            ("[::1]:80", "0.0.0.0:80", true),
            ("127.0.0.1:0", "127.0.0.1:0", true),
        ] {
            let read = Config::parse(&format!("[server]\nlisten = \"{listen}\"\nadmin_listen = \"{admin}\"\n"));
            let why = read.err().map(|why| why.to_string());
            assert_eq!(why.is_none(), is_good, "{listen} {admin}: {why:?}");
            assert!(why.is_none_or(|why| why.contains("give it a port of its own")), "{listen} {admin}");
        }
    }

    #[test]
    fn a_stop_that_would_not_come_to_an_end_is_refused() {
        for (settle_ms, is_good) in [(0, true), (300_000, true), (300_001, false)] {
            let read = Config::parse(&format!("[server]\nsettle_ms = {settle_ms}\n"));
            assert_eq!(read.is_ok(), is_good, "{settle_ms}: {read:?}");
        }
    }
}
