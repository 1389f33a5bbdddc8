//! TLS for a listener: HTTP/2 and HTTP/1.1 by ALPN, TLS 1.2 and newer.

use crate::error::ApiError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to serve.
#[derive(Clone)]
pub struct Tls(pub(crate) TlsAcceptor);

impl Tls {
    /// Reads a certificate chain and its private key from PEM.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, ApiError> {
        let bad = |what| move |why: rustls::pki_types::pem::Error| ApiError::BadPem { what, why: why.to_string() };
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(bad("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(bad("key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_pem_are_named() {
        assert!(matches!(Tls::from_pem(b"x", b"y"), Err(ApiError::BadPem { what: "key", .. })));
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(Tls::from_pem(broken, b"y"), Err(ApiError::BadPem { what: "certificate", .. })));
    }
}
