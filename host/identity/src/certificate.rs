//! Client certificates, once TLS has found that a trusted authority signed them: whether one is that of a name or a
//! fingerprint. A name counts only where it is among the certificate's alternative names; its subject says nothing.

use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The certificate of a connection's other end.
#[derive(Clone, Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    sha256: [u8; 32],
}

/// Which certificates are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// Those for that host name or address. A wildcard in the certificate stands for one label.
    Host(ServerName<'static>),
    /// Those with that URI, to the letter: a SPIFFE id.
    Uri(String),
    /// The one whose DER has that SHA-256.
    Sha256([u8; 32]),
}

impl CertificateName {
    /// A DNS name or an address.
    pub fn host(name: &str) -> Option<Self> {
        ServerName::try_from(name.to_owned()).ok().map(Self::Host)
    }

    /// 64 hex digits, with or without colons between pairs.
    pub fn sha256(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|digit| *digit != ':').collect();
        let mut bytes = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self::Sha256(bytes))
    }
}

impl Certificate {
    /// Of its DER.
    pub fn new(der: &[u8]) -> Self {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest(&SHA256, der).as_ref());
        Self { der: CertificateDer::from(der.to_vec()), sha256 }
    }

    /// Whether `name` means it.
    pub fn is(&self, name: &CertificateName) -> bool {
        let parsed = || EndEntityCert::try_from(&self.der).ok();
        match name {
            CertificateName::Sha256(wanted) => self.sha256 == *wanted,
            CertificateName::Host(host) => {
                parsed().is_some_and(|parsed| parsed.verify_is_valid_for_subject_name(host).is_ok())
            }
            CertificateName::Uri(uri) => {
                parsed().is_some_and(|parsed| parsed.valid_uri_names().any(|known| known == uri))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn certificate(names: &[&str], uri: Option<&str>) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "named.example");
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::new(made.der())
    }

    #[test]
    fn a_certificate_is_known_by_its_alternative_names_and_its_fingerprint_only() {
        let plain = certificate(&["a.example", "192.0.2.7"], Some("spiffe://x/y"));
        let host = |name: &str| CertificateName::host(name).unwrap();
        assert!(plain.is(&host("a.example")) && plain.is(&host("A.example")) && plain.is(&host("192.0.2.7")));
        for other in ["named.example", "b.a.example", "example", "192.0.2.8"] {
            assert!(!plain.is(&host(other)), "{other}");
        }
        let wild = certificate(&["*.b.example"], None);
        assert!(wild.is(&host("x.b.example")) && !wild.is(&host("x.y.b.example")) && !wild.is(&host("b.example")));
        assert!(plain.is(&CertificateName::Uri("spiffe://x/y".into())));
        assert!(
            !plain.is(&CertificateName::Uri("spiffe://x/Y".into())) && !wild.is(&CertificateName::Uri(String::new()))
        );
        assert!(plain.is(&CertificateName::Sha256(plain.sha256)) && !wild.is(&CertificateName::Sha256(plain.sha256)));
    }

    #[test]
    fn a_fingerprint_is_64_digits() {
        let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
        let pairs: Vec<&str> = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
        assert_eq!(CertificateName::sha256(&pairs.join(":")), CertificateName::sha256(&digits));
        assert!(CertificateName::sha256(&digits).is_some());
        for bad in ["", &digits[1..], &digits.replace('0', "g"), "é"] {
            assert_eq!(CertificateName::sha256(bad), None, "{bad}");
        }
    }
}
