//! Opens a connection: name lookup, TCP without Nagle's delay, TLS, and the HTTP version by ALPN.

use crate::address::AddressPolicy;
use crate::connector::ConnectorConfig;
use crate::error::{EgressError, describe};
use crate::http2::Http2;
use crate::lookups::{self, Crowded};
use crate::origin::Origin;
use crate::pool::{Connection, H1, Wire};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// Looks a host's addresses up.
pub type Resolve = Arc<dyn Fn(String, u16) -> Resolving + Send + Sync>;

/// The addresses of a host, to come.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Everything that a new connection needs.
pub(crate) struct Dialer {
    addresses: Option<AddressPolicy>,
    resolve: Option<Resolve>,
    tls: Option<TlsConnector>,
    http2_only: bool,
    connect_timeout: Duration,
}

const H2: &[u8] = b"h2";
/// Bounds the head of a response.
const H1_BUFFER_BYTES: usize = 64 << 10;

impl Dialer {
    pub(crate) fn new(origin: &Origin, config: &ConnectorConfig) -> Result<Self, EgressError> {
        let tls = if origin.tls { Some(tls_connector(config)?) } else { None };
        Ok(Self {
            addresses: config.addresses.clone(),
            resolve: config.resolve.clone(),
            tls,
            http2_only: config.http2_prior_knowledge,
            connect_timeout: config.connect_timeout,
        })
    }

    pub(crate) async fn dial(&self, origin: &Origin) -> Result<Connection, EgressError> {
        let until = Instant::now() + self.connect_timeout;
        match timeout_at(until, self.open(origin, until)).await {
            Ok(outcome) => outcome.map_err(|error| self.failure(origin, &error)),
            Err(_) => Err(EgressError::ConnectTimeout { origin: origin.name.clone(), limit: self.connect_timeout }),
        }
    }

    fn failure(&self, origin: &Origin, error: &io::Error) -> EgressError {
        let (origin, inner) = (origin.name.clone(), error.get_ref());
        if let Some(Forbidden(address)) = inner.and_then(|inner| inner.downcast_ref()) {
            return EgressError::AddressDenied { origin, address: *address };
        }
        if inner.is_some_and(|inner| inner.is::<Crowded>()) {
            return EgressError::LookupTimeout { origin, limit: self.connect_timeout, why: error.to_string() };
        }
        // No error of the system: each address has had its part of the time.
        if inner.is_none() && error.raw_os_error().is_none() && error.kind() == io::ErrorKind::TimedOut {
            return EgressError::ConnectTimeout { origin, limit: self.connect_timeout };
        }
        EgressError::Connect { origin, why: describe(error) }
    }

    async fn open(&self, origin: &Origin, until: Instant) -> io::Result<Connection> {
        let tcp = self.tcp(origin, until).await?;
        let Some(tls) = &self.tls else {
            return handshake(Box::new(tcp), self.http2_only).await;
        };
        let name = ServerName::try_from(origin.host.clone()).map_err(io::Error::other)?;
        let stream = tls.connect(name, tcp).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        handshake(Box::new(stream), http2).await
    }

    /// The host's addresses, all of them checked: these are the ones that are connected to.
    async fn checked_addresses(&self, origin: &Origin, until: Instant) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<SocketAddr> = match &self.resolve {
            Some(resolve) => resolve(origin.host.clone(), origin.port).await?,
            None => lookups::system().look_up(&origin.host, origin.port, until).await?,
        };
        let Some(policy) = &self.addresses else { return Ok(addresses) };
        match addresses.iter().find(|address| !policy.allows(address.ip())) {
            Some(forbidden) => Err(io::Error::other(Forbidden(forbidden.ip()))),
            None => Ok(addresses),
        }
    }

    /// Tries the host's addresses in turn; each gets its part of the time that is left.
    async fn tcp(&self, origin: &Origin, until: Instant) -> io::Result<TcpStream> {
        let addresses = self.checked_addresses(origin, until).await?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for (i, address) in addresses.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let part = left / u32::try_from(addresses.len() - i).unwrap_or(u32::MAX);
            match timeout_at(Instant::now() + part, connect(*address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }
}

/// An address that the policy does not allow.
#[derive(Debug, thiserror::Error)]
#[error("{0} may not be connected to")]
struct Forbidden(IpAddr);

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A request is one small write and each token another; waiting to merge them costs 40 ms.
    socket.set_nodelay(true)?;
    socket.set_keepalive(true)?;
    socket.connect(address).await
}

async fn handshake(stream: Box<dyn Wire>, http2: bool) -> io::Result<Connection> {
    let io = TokioIo::new(stream);
    if !http2 {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(H1_BUFFER_BYTES).handshake(io).await.map_err(io::Error::other)?;
        return Ok(Connection::H1(H1::new(sender, connection)));
    }
    let shared = Http2::handshake(io).await.map_err(io::Error::other)?;
    let stream = shared.open();
    Ok(Connection::H2(shared, stream))
}

fn tls_connector(config: &ConnectorConfig) -> Result<TlsConnector, EgressError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in &config.extra_roots {
        roots.add(certificate.clone())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(client)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_sends_small_writes_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(stream.nodelay().unwrap());
    }

    #[test]
    fn a_connection_that_takes_too_long_says_so() {
        let config = ConnectorConfig::new("http://h");
        let origin = Origin::parse("http://h").unwrap();
        let failure = |error| Dialer::new(&origin, &config).unwrap().failure(&origin, &error);
        let late = failure(io::ErrorKind::TimedOut.into());
        assert!(matches!(late, EgressError::ConnectTimeout { .. }), "{late}");
        let crowded = failure(io::Error::new(io::ErrorKind::TimedOut, Crowded { max: 16 }));
        assert!(matches!(crowded, EgressError::LookupTimeout { .. }) && crowded.is_timeout(), "{crowded}");
        assert!(crowded.to_string().contains("http://h") && crowded.to_string().contains("16 lookups"), "{crowded}");
        let refused = failure(io::ErrorKind::ConnectionRefused.into());
        assert!(matches!(refused, EgressError::Connect { .. }), "{refused}");
    }
}
