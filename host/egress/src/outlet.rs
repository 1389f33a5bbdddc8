//! Requests whose URLs somebody else writes: a plugin. An [`Outlet`] goes to exact origins that the operator named, each
//! by a connector of its own, and connects only to addresses that its policy allows: a name is resolved once for a
//! connection, every address that it has is checked, and the connection goes to one that was checked. A name with
//! one forbidden address is refused as a whole: it is not one to be trusted. Redirects are answers, and not followed.

use crate::address::AddressPolicy;
use crate::connector::{Connector, ConnectorConfig, Request};
use crate::dial::Resolve;
use crate::error::EgressError;
use crate::target::{self, TargetOrigin};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// What an outlet may reach, and its bounds.
#[derive(Clone)]
pub struct OutletConfig {
    /// `scheme://host[:port]`, exact.
    pub origins: Vec<String>,
    /// Which addresses.
    pub addresses: AddressPolicy,
    /// For a connection, and for the head of an answer.
    pub timeout: Duration,
    /// Certificates that are trusted besides the public ones.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Looks names up; the system's way where none is given.
    pub resolve: Option<Resolve>,
}

/// The way out to some origins.
pub struct Outlet {
    origins: BTreeMap<TargetOrigin, Connector>,
    addresses: AddressPolicy,
}

/// What came back.
#[derive(Debug)]
pub struct Fetched {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case; what is not UTF-8 in a value is replaced.
    pub headers: Vec<(String, String)>,
    /// At most as many bytes as were asked for.
    pub body: Vec<u8>,
    /// The body was longer.
    pub truncated: bool,
}

impl Outlet {
    /// Checks the origins; opens no connection yet.
    pub fn new(config: OutletConfig) -> Result<Self, EgressError> {
        let mut origins = BTreeMap::new();
        for url in &config.origins {
            let (origin, path) = target::parse(url)?;
            if path != "/" || url.ends_with('?') {
                return Err(EgressError::BadTarget { why: "an origin is scheme, host and port, without a path" });
            }
            let mut connector = ConnectorConfig::new(origin.url());
            connector.connect_timeout = config.timeout;
            connector.first_byte_timeout = config.timeout;
            connector.idle_timeout = config.timeout;
            connector.max_response_bytes = u64::MAX;
            connector.addresses = Some(config.addresses.clone());
            connector.extra_roots.clone_from(&config.extra_roots);
            connector.resolve = config.resolve.clone();
            origins.insert(origin, Connector::new(connector)?);
        }
        Ok(Self { origins, addresses: config.addresses })
    }

    /// What [`Self::send`] refuses before it connects: a URL that is none or of another origin, a method or a header that no
    /// request of a plugin has, and an address that is not allowed, as far as that is known without a look-up.
    pub fn check(&self, method: &str, url: &str, headers: &[(String, String)]) -> Result<(), EgressError> {
        self.checked(method, url, headers)?;
        self.check_address(&target::parse(url)?.0)
    }

    /// Refuses origins that no request could reach, as far as that is known without a look-up.
    pub fn check_origins(&self) -> Result<(), EgressError> {
        self.origins.keys().try_for_each(|origin| self.check_address(origin))
    }

    fn check_address(&self, origin: &TargetOrigin) -> Result<(), EgressError> {
        let known = known_addresses(&origin.host);
        match known.first() {
            Some(&address) if !known.iter().any(|address| self.addresses.allows(*address)) => {
                Err(EgressError::AddressDenied { origin: origin.url(), address })
            }
            _ => Ok(()),
        }
    }

    /// The request, still without its body, and who sends it.
    fn checked(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
    ) -> Result<(&Connector, Request), EgressError> {
        let (origin, path) = target::parse(url)?;
        let connector = self.origins.get(&origin).ok_or_else(|| EgressError::OriginDenied { origin: origin.url() })?;
        let bad = |why| EgressError::BadTarget { why };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("its method is none"))?;
        if method == Method::CONNECT || method == Method::TRACE {
            return Err(bad("its method is not for plugins"));
        }
        let headers = header_map(headers).ok_or_else(|| bad("a header is none"))?;
        Ok((connector, Request { method, path, headers, body: Bytes::new() }))
    }

    /// Whether a URL is of one of these origins.
    pub fn is_of(url: &str, origins: &[String]) -> Result<bool, EgressError> {
        let (origin, _) = target::parse(url)?;
        let is_it = |of: &String| target::parse(of).is_ok_and(|(of, _)| of == origin);
        Ok(origins.iter().any(is_it))
    }

    /// Sends a request and reads at most `limit_bytes` of its answer. A status is no error.
    pub async fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
        limit_bytes: usize,
    ) -> Result<Fetched, EgressError> {
        let (connector, mut request) = self.checked(method, url, headers)?;
        request.body = Bytes::from(body);
        let mut response = connector.send(&request).await?;
        let mut fetched = Fetched {
            status: response.status.as_u16(),
            headers: header_list(&response.headers),
            body: Vec::new(),
            truncated: false,
        };
        while let Some(data) = response.data().await {
            let data = data?;
            let room = limit_bytes - fetched.body.len();
            fetched.body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                fetched.truncated = true;
                break;
            }
        }
        Ok(fetched)
    }
}

/// Where a host leads on every machine; on some, `localhost` leads to one of its addresses only.
fn known_addresses(host: &str) -> Vec<IpAddr> {
    if host == "localhost" {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    host.trim_matches(['[', ']']).parse().into_iter().collect()
}

fn header_map(headers: &[(String, String)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let mut value = HeaderValue::from_str(value).ok()?;
        // There may be a secret in it: it is kept in no table of the connection's, and shown nowhere.
        value.set_sensitive(true);
        map.append(HeaderName::try_from(name).ok()?, value);
    }
    Some(map)
}

fn header_list(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}
