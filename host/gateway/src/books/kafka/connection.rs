//! A connection to one broker: TLS and a password where the config says so, then one request at a time.

use crate::config::{KafkaConfig, variable};
use anyhow::{Context as _, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{RequestHeader, ResponseHeader, SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The longest answer: metadata of a topic's partitions and all brokers.
const MOST_BYTES: usize = 16 << 20;
const SASL_HANDSHAKE: i16 = 1;
const SASL_AUTHENTICATE: i16 = 0;

/// What brokers ask of those who come.
pub(super) struct Entrance {
    tls: Option<Arc<rustls::ClientConfig>>,
    /// By SASL PLAIN: nobody else's name, the user's, the password.
    sign_in: Option<Bytes>,
}

impl Entrance {
    pub(super) fn new(config: &KafkaConfig) -> anyhow::Result<Self> {
        let password = config.password_env.as_deref().map(variable).transpose();
        let password = password.context("in store.events.kafka.password_env")?;
        let sign_in = config.user.as_ref().zip(password).map(|(user, password)| format!("\0{user}\0{password}").into());
        let tls = config.tls.then(|| tls(config.ca.as_deref())).transpose()?;
        Ok(Self { tls, sign_in })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A request is a few small writes; waiting to merge them costs 40 ms.
async fn dial(address: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Open. After an error it must not be used again.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    asked: i32,
}

impl Connection {
    /// To `host:port`.
    pub(super) async fn open(address: &str, entrance: &Entrance) -> anyhow::Result<Self> {
        let mut stream: Box<dyn Stream> = Box::new(dial(address).await?);
        if let Some(tls) = &entrance.tls {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
            let secured = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
            stream = Box::new(secured.with_context(|| format!("TLS with {address}"))?);
        }
        let mut connection = Self { stream, asked: 0 };
        if let Some(sign_in) = &entrance.sign_in {
            connection.sign_in(sign_in).await.with_context(|| format!("{address} does not take the password"))?;
        }
        Ok(connection)
    }

    async fn sign_in(&mut self, sign_in: &Bytes) -> anyhow::Result<()> {
        let by = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str("PLAIN"));
        succeeded(self.ask(&by, SASL_HANDSHAKE).await?.error_code)?;
        let who = SaslAuthenticateRequest::default().with_auth_bytes(sign_in.clone());
        succeeded(self.ask(&who, SASL_AUTHENTICATE).await?.error_code)
    }

    /// Sends a request and reads its answer.
    pub(super) async fn ask<R: Request>(&mut self, request: &R, version: i16) -> anyhow::Result<R::Response> {
        self.asked = self.asked.wrapping_add(1);
        let header = RequestHeader::default().with_request_api_key(R::KEY).with_request_api_version(version);
        let header = header.with_correlation_id(self.asked).with_client_id(Some(StrBytes::from_static_str("tidegate")));
        let mut frame = BytesMut::new();
        frame.put_u32(0);
        header.encode(&mut frame, R::header_version(version))?;
        request.encode(&mut frame, version)?;
        let length = u32::try_from(frame.len() - 4)?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        let length = self.stream.read_u32().await? as usize;
        ensure!(length <= MOST_BYTES, "an answer of {length} bytes; the longest taken is {MOST_BYTES}");
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        let mut answer = Bytes::from(answer);
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version))?;
        ensure!(header.correlation_id == self.asked, "an answer to another request");
        R::Response::decode(&mut answer, version)
    }
}

/// A broker's code as a result.
pub(super) fn succeeded(code: i16) -> anyhow::Result<()> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(anyhow::anyhow!("{error:?} (code {code})")),
    }
}

/// Brokers show a certificate of one of the public authorities, or of the one in the file.
fn tls(ca: Option<&Path>) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(file) = ca {
        let read = || format!("store.events.kafka.ca: cannot use {}", file.display());
        let pem = std::fs::read(file).with_context(read)?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.map_err(|why| anyhow::anyhow!("{why}")).with_context(read)?).with_context(read)?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(client.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_to_a_broker_sends_small_writes_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = dial(&listener.local_addr().unwrap().to_string()).await.unwrap();
        assert!(socket.nodelay().unwrap());
    }
}
