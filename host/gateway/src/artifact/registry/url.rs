//! The few things that are done with URLs here.

use anyhow::{Context, bail};
use std::net::IpAddr;
use std::path::Path;
use tidegate_egress::CertificateDer;

/// An absolute URL in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// `scheme://host[:port]`, in lower case and without the port that the scheme implies.
    pub(super) origin: String,
    /// Path and query; starts with a slash.
    pub(super) path: String,
}

impl Target {
    pub(super) fn parse(url: &str) -> anyhow::Result<Self> {
        let strange = |byte: u8| !byte.is_ascii_graphic() || b"\\\"<>#`{}|^".contains(&byte);
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if !["http", "https"].contains(&scheme) || authority.is_empty() || url.bytes().any(strange) {
            bail!("`{}` is no URL of a registry", url.escape_debug());
        }
        let implied = if scheme == "http" { ":80" } else { ":443" };
        let authority = authority.strip_suffix(implied).unwrap_or(authority).to_ascii_lowercase();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { origin: format!("{scheme}://{authority}"), path })
    }

    /// What a `Location` means in an answer of `origin`.
    pub(super) fn location(origin: &str, location: &str) -> anyhow::Result<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Self::parse(&format!("{origin}{location}"));
        }
        Self::parse(location)
    }

    /// The same with a query parameter more.
    pub(super) fn with(mut self, key: &str, value: &str) -> Self {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        self.path.push_str(&format!("{joint}{key}={}", encode(value)));
        self
    }
}

/// For a query's value.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Whether `host[:port]` is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The certificates of a PEM file, each fit to be one of an authority.
pub(crate) fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    use rustls::pki_types::pem::PemObject;
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.with_context(|| format!("cannot read certificates from {}", file.display()))?;
    if all.is_empty() {
        bail!("{} holds no certificate in PEM", file.display());
    }
    let mut roots = rustls::RootCertStore::empty();
    for certificate in &all {
        roots
            .add(certificate.clone())
            .with_context(|| format!("{} holds a certificate that is none", file.display()))?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_absolute_or_of_the_same_origin() {
        let at = |location: &str| Target::location("http://h:5000", location).map(|t| (t.origin, t.path));
        let pair = |origin: &str, path: &str| Some((origin.to_owned(), path.to_owned()));
        assert_eq!(at("/v2/x?y=1").ok(), pair("http://h:5000", "/v2/x?y=1"));
        assert_eq!(at("HTTPS://x/").ok(), None);
        assert_eq!(at("https://X:443/a?b").ok(), pair("https://x", "/a?b"));
        assert_eq!(at("https://x?b").ok(), pair("https://x", "/?b"));
        for wrong in ["", "x", "//x/y", "ftp://x/", "https://x/\\y", "https://x/ y", "https:///y"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            Target::parse("http://h/?a=b").unwrap().with("digest", "sha256:a b&").path,
            "/?a=b&digest=sha256:a%20b%26"
        );
    }

    #[test]
    fn this_machine_is_known_by_its_names_only() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.com", "127.0.0.1.nip.io", "10.0.0.1", "[::2]", "example.com:80", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
