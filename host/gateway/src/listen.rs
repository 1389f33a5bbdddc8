//! Where a server listens, by what certificate, and within what bounds.

use crate::config::{ClientAuthConfig, ServerConfig};
use anyhow::Context;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_api::{ClientAuthority, Door, Limits, Listener, Tls};

/// Addresses that are this program's, on which nobody listens yet: what loads for minutes is not taken for a server that is up.
pub(crate) struct Bound {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) addr: SocketAddr,
    /// Where the administrator's routes are, where they have an address of their own.
    pub(crate) admin_addr: Option<SocketAddr>,
    pub(crate) certificate: Option<Tls>,
}

impl Bound {
    pub(crate) fn new(config: &ServerConfig) -> anyhow::Result<Self> {
        let certificate = read_tls(config)?;
        let callers = listen(config, certificate.clone())?;
        let administrators = admin_listener(config, certificate.clone())?;
        let addr = callers.address();
        let admin_addr = administrators.as_ref().map(Listener::address);
        Ok(Self { listeners: [callers].into_iter().chain(administrators).collect(), addr, admin_addr, certificate })
    }
}

fn listen(config: &ServerConfig, tls: Option<Tls>) -> anyhow::Result<Listener> {
    // Others' machines reach no administrator's route by chance.
    let door = match config.admin_listen {
        None if config.listen.ip().is_loopback() => Door::Every,
        _ => Door::Callers,
    };
    Ok(Listener::bind(config.listen, tls, door)?)
}

fn admin_listener(config: &ServerConfig, tls: Option<Tls>) -> anyhow::Result<Option<Listener>> {
    let Some(address) = config.admin_listen else { return Ok(None) };
    Ok(Some(Listener::bind(address, tls, Door::Administrators)?))
}

/// The certificate and its key, where HTTPS is configured.
pub(crate) fn read_tls(config: &ServerConfig) -> anyhow::Result<Option<Tls>> {
    let Some(files) = &config.tls else { return Ok(None) };
    let read = |path: &std::path::Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    // Whoever installed one before is fine too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = files.client_ca.as_deref().map(read).transpose()?;
    let required = files.client_auth == ClientAuthConfig::Required;
    let clients = authority.as_deref().map(|certificates| ClientAuthority { certificates, required });
    let tls = Tls::from_pem(&read(&files.cert)?, &read(&files.key)?, clients);
    Ok(Some(tls.with_context(|| format!("{} and its key cannot be served", files.cert.display()))?))
}

/// Of connections and bodies.
pub(crate) fn limits(config: &ServerConfig) -> Limits {
    Limits {
        max_connections: config.max_connections,
        max_body_bytes: config.max_body_bytes,
        header_timeout: Duration::from_millis(config.header_timeout_ms),
        body_timeout: Duration::from_millis(config.body_timeout_ms),
        let_in_within: config.let_in_within,
        streams: config.streams.to_limits(),
        obfuscation: config.streams.obfuscation,
        ..Limits::default()
    }
}
