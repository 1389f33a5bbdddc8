//! TLS for a listener: HTTP/2 and HTTP/1.1 by ALPN, TLS 1.2 and newer; certificates of clients where an authority for them
//! is configured.

use crate::error::ApiError;
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to serve. Clones are one: what takes its place does so in all of them.
#[derive(Clone)]
pub struct Tls(Arc<ArcSwap<TlsAcceptor>>);

/// Who signs the certificates of clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientAuthority<'a> {
    /// Its certificates, in PEM.
    pub certificates: &'a [u8],
    /// A connection without a certificate is refused.
    pub required: bool,
}

impl Tls {
    /// Reads a certificate chain and its private key from PEM. Where there is an authority for clients, a client may show
    /// a certificate; one that the authority did not sign ends the connection.
    pub fn from_pem(certificates: &[u8], key: &[u8], clients: Option<ClientAuthority<'_>>) -> Result<Self, ApiError> {
        let chain = chain(certificates, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|why| bad_pem("key", &why))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = match clients {
            Some(authority) => authority.verifier(Arc::clone(&provider))?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(Arc::new(ArcSwap::from_pointee(TlsAcceptor::from(Arc::new(config))))))
    }

    /// Takes what `renewed` is for new connections; those that are open go on with what they began with.
    pub fn replace(&self, renewed: &Self) {
        self.0.store(renewed.0.load_full());
    }

    /// For a new connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::clone(&self.0.load())
    }
}

impl ClientAuthority<'_> {
    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, ApiError> {
        const WHAT: &str = "authority of clients";
        let mut roots = RootCertStore::empty();
        for certificate in chain(self.certificates, WHAT)? {
            roots.add(certificate)?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = if self.required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|why| ApiError::BadPem { what: WHAT, why: why.to_string() })
    }
}

fn chain(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|why| bad_pem(what, &why))
}

fn bad_pem(what: &'static str, why: &rustls::pki_types::pem::Error) -> ApiError {
    ApiError::BadPem { what, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_pem_are_named() {
        assert!(matches!(Tls::from_pem(b"x", b"y", None), Err(ApiError::BadPem { what: "key", .. })));
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(Tls::from_pem(broken, b"y", None), Err(ApiError::BadPem { what: "certificate", .. })));
    }
}
