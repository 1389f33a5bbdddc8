//! `http`: requests to granted origins. This file bounds what a guest may send, fills secrets in and blanks them out of
//! what comes back; the supplier knows HTTP, checks the URL against the origins and the addresses behind it, and
//! follows no redirect. How many requests run at once is in
//! `http/places.rs`, how secrets are found in `http/blanks.rs`, how long a request may take in `http/bound.rs`.

mod blanks;
mod bound;
mod places;

use super::{BoxFuture, CapabilityError};
use crate::bindings::tidegate::plugin::http as wit;
use crate::slots::{Slots, share_of};
use crate::stage::{HttpGrant, Secret, SecretGrant};
use crate::state::HostState;
use blanks::{blanked, check_plain};
use bound::{Outgoing, least};
use places::Places;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::TenantId;

/// Longer than any that is registered. Without a bound a guest that may send no body would send content in it.
const MAX_METHOD_BYTES: usize = 32;
const MAX_URL_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_AT_ONCE: usize = 16;
/// Headers that are the host's: they say where a message ends and which connection it is for.
const RESERVED: [&str; 10] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "expect",
    "proxy-connection",
];
/// The same of a plugin that has secrets: in an answer that comes encoded, or in parts, nobody would see one.
const RESERVED_BESIDE_SECRETS: [&str; 2] = ["accept-encoding", "range"];
/// Before a secret. With a long one a service that cuts headers would bring back the secret's beginning.
const MAX_PREFIX_BYTES: usize = 64;

/// A request whose bounds were checked and whose secrets are filled in.
#[derive(Clone)]
pub struct HttpRequest {
    /// `GET`, `POST`, ...
    pub method: String,
    /// As the guest wrote it: to be parsed and checked by the supplier.
    pub url: String,
    /// Name and value; none that the supplier sets itself.
    pub headers: Vec<(String, String)>,
    /// Of the granted origins those that it may go to, where it has secrets that may not go to all.
    pub only_to: Option<Vec<String>>,
    /// The body; empty for none.
    pub body: Vec<u8>,
    /// For the whole exchange.
    pub timeout: Duration,
    /// Bytes of the answer's body; the rest is cut off.
    pub response_bytes: usize,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    /// Name in lower case, and value.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The body was longer.
    pub truncated: bool,
}

/// Opens what an `http` grant names. Called once per plugin, when it is loaded; does not touch the network.
pub trait HttpClient: Send + Sync {
    /// The origins of one plugin; an error is for the operator.
    fn open(&self, grant: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String>;
}

/// The origins that one plugin may reach. URLs come from a guest: an implementation connects to no other origin and to
/// no address that it has not checked, whatever the URL says and names resolve to.
pub trait HttpOrigins: Send + Sync {
    /// Sends one request; a status is no error.
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>>;
}

/// For hosts without a client: every grant is refused at load.
pub struct NoHttp;

impl HttpClient for NoHttp {
    fn open(&self, _: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String> {
        Err("this host has no HTTP client for plugins".into())
    }
}

/// One plugin's way out.
pub(crate) struct HttpAccess {
    origins: Arc<dyn HttpOrigins>,
    grant: HttpGrant,
    /// All that the plugin may send, each once and none empty: one answer may tell what another request has brought.
    secrets: Vec<Secret>,
    running: Arc<Slots>,
}

impl HttpAccess {
    /// `secrets` are all that the plugin is granted.
    pub(crate) fn open<'s>(
        client: &dyn HttpClient,
        grant: &HttpGrant,
        secrets: impl IntoIterator<Item = &'s Secret>,
    ) -> Result<Self, String> {
        Ok(Self::new(client.open(grant)?, grant.clone(), secrets))
    }

    fn new<'s>(origins: Arc<dyn HttpOrigins>, grant: HttpGrant, secrets: impl IntoIterator<Item = &'s Secret>) -> Self {
        let distinct: BTreeSet<&str> = secrets.into_iter().map(Secret::expose).collect();
        let secrets = distinct.into_iter().filter(|secret| !secret.is_empty()).map(Secret::new).collect();
        let running = Slots::new(grant.concurrency.try_into().unwrap_or(u32::MAX));
        Self { origins, grant, secrets, running }
    }

    /// For the requests of one call, whose instance could take so many bytes of bodies.
    fn places(&self, tenant: TenantId, most_bytes: usize) -> Places {
        Places::new(Arc::clone(&self.running), share_of(tenant), most_bytes)
    }

    /// Sends a request; answers without secrets. So much more of the answer is read than the guest gets that a secret across
    /// the cut is seen whole: a guest that chooses where the cut is would else read all of the secret but its end.
    async fn send(&self, outgoing: Outgoing, places: &Places) -> Result<HttpResponse, CapabilityError> {
        let late = outgoing.out_of_time();
        let request = outgoing.request;
        let most = request.response_bytes;
        let longest = self.secrets.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
        let request = HttpRequest { response_bytes: most.saturating_add(longest.saturating_sub(1)), ..request };
        let started = Instant::now();
        let place = tokio::time::timeout(request.timeout, places.place()).await;
        let _place = place.ok().flatten().ok_or_else(|| {
            let most = self.grant.concurrency;
            CapabilityError::Unavailable(format!("{most} requests of this plugin run at once (http.concurrency)"))
        })?;
        let timeout = request.timeout.saturating_sub(started.elapsed());
        if timeout.is_zero() {
            return Err(late);
        }
        let sent = self.origins.send(HttpRequest { timeout, ..request });
        let response = tokio::time::timeout(timeout, sent).await.map_err(|_| late)??;
        if !self.secrets.is_empty() {
            check_plain(&response)?;
        }
        let response = self.without_secrets(response, most);
        // Before the place is another request's.
        Ok(HttpResponse { body: places.keep(response.body)?, ..response })
    }

    /// The answer with so much of its body.
    fn without_secrets(&self, mut response: HttpResponse, most: usize) -> HttpResponse {
        response.truncated |= response.body.len() > most;
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::expose).collect();
        response.body = blanked(&response.body, &secrets, most);
        for (_, value) in &mut response.headers {
            // All of it: a cut could fall into a character.
            let left = blanked(value.as_bytes(), &secrets, usize::MAX);
            *value = String::from_utf8_lossy(&left).into_owned();
        }
        response
    }
}

impl wit::Host for HostState {
    async fn send(&mut self, request: wit::Request) -> wasmtime::Result<Result<wit::Response, wit::Error>> {
        let mut answers = self.send_each("http.send", vec![request]).await;
        Ok(answers.pop().unwrap_or_else(|| Err(wit::Error::Other("no answer".into()))))
    }

    async fn send_all(
        &mut self,
        requests: Vec<wit::Request>,
    ) -> wasmtime::Result<Vec<Result<wit::Response, wit::Error>>> {
        Ok(self.send_each("http.send-all", requests).await)
    }
}

impl HostState {
    async fn send_each(
        &mut self,
        function: &'static str,
        requests: Vec<wit::Request>,
    ) -> Vec<Result<wit::Response, wit::Error>> {
        let count = requests.len();
        let refuse = |error: CapabilityError| (0..count).map(|_| Err(error.clone().into())).collect();
        if let Err(error) = self.allow("http", function) {
            return refuse(error);
        }
        let Some(access) = self.blueprint.http.clone() else {
            return refuse(CapabilityError::Denied("`http` is not granted here".into()));
        };
        if count > MAX_AT_ONCE {
            return refuse(CapabilityError::Invalid(format!("{count} requests at once; at most {MAX_AT_ONCE}")));
        }
        let checked: Vec<_> = requests.into_iter().map(|request| self.outgoing(&access, request)).collect();
        let most_bytes = self.blueprint.limits.memory_bytes;
        let (access, places) = (&access, &access.places(self.tenant.clone(), most_bytes));
        let sends = checked.into_iter().map(|checked| async move { access.send(checked?, places).await });
        let answers = self.meter.waiting(futures_util::future::join_all(sends)).await;
        for answer in &answers {
            if let Err(CapabilityError::DeniedUntold { logged, .. }) = answer {
                self.complain(logged);
            }
        }
        answers.into_iter().map(|answer| answer.map(Into::into).map_err(Into::into)).collect()
    }

    /// Checks a request's bounds and fills its secrets in.
    fn outgoing(&self, access: &HttpAccess, request: wit::Request) -> Result<Outgoing, CapabilityError> {
        let grant = &access.grant;
        let wit::Request { method, url, headers, secret_headers, body, timeout_ms } = request;
        if method.len() > MAX_METHOD_BYTES {
            return Err(CapabilityError::Invalid(format!("a method has at most {MAX_METHOD_BYTES} bytes")));
        }
        if url.len() > MAX_URL_BYTES || body.len() > grant.request_bytes {
            let most = grant.request_bytes;
            let message = format!("a URL has at most {MAX_URL_BYTES} bytes, a body at most {most} (http.request_kib)");
            return Err(CapabilityError::Invalid(message));
        }
        let mut sent: Vec<(String, String)> = headers.into_iter().map(|header| (header.name, header.value)).collect();
        let mut only_to = None;
        for wit::SecretHeader { name, prefix, secret } in secret_headers {
            let granted = self.secret(&secret)?;
            check_place(granted, &name, &prefix)?;
            narrow(&mut only_to, &granted.origins);
            sent.push((name, [prefix.as_str(), granted.value.expose()].concat()));
        }
        check_headers(&sent)?;
        if !access.secrets.is_empty() {
            check_headers_beside_secrets(&sent)?;
        }
        let own = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        let left = self.until.saturating_duration_since(Instant::now());
        let (timeout, bound) = least(own, grant.timeout, left);
        let response_bytes = grant.response_bytes;
        let request = HttpRequest { method, url, headers: sent, only_to, body, timeout, response_bytes };
        Ok(Outgoing { request, bound })
    }

    fn secret(&self, name: &str) -> Result<&SecretGrant, CapabilityError> {
        // Sending one needs no import of `secrets`: the descriptor alone says that the plugin does.
        if !self.blueprint.declares_secrets {
            let message =
                "the plugin's descriptor does not name `secrets` among its `capabilities`, which a secret header needs";
            return Err(CapabilityError::Denied(message.into()));
        }
        let found = self.blueprint.grants.secrets.get(name);
        found
            .filter(|_| !self.withholds("secrets"))
            .ok_or_else(|| CapabilityError::Denied(format!("the secret `{}` is not granted here", name.escape_debug())))
    }
}

/// Refuses a place for a secret in which a service might bring it back in a form that is not found.
fn check_place(granted: &SecretGrant, name: &str, prefix: &str) -> Result<(), CapabilityError> {
    if prefix.len() > MAX_PREFIX_BYTES {
        let message = format!("what stands before a secret has at most {MAX_PREFIX_BYTES} bytes");
        return Err(CapabilityError::Invalid(message));
    }
    if granted.headers.iter().any(|header| header.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let (name, headers) = (name.escape_debug(), granted.headers.join(", "));
    let message =
        format!("the secret may be in these headers, and `{name}` is none: {headers} (`headers` of its grant)");
    Err(CapabilityError::Denied(message))
}

/// Leaves the origins that one more secret may go to.
fn narrow(only_to: &mut Option<Vec<String>>, origins: &[String]) {
    match only_to {
        _ if origins.is_empty() => {}
        Some(only_to) => only_to.retain(|origin| origins.contains(origin)),
        None => *only_to = Some(origins.to_vec()),
    }
}

fn check_headers(headers: &[(String, String)]) -> Result<(), CapabilityError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        let message = format!("at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together");
        return Err(CapabilityError::Invalid(message));
    }
    match named(headers, &RESERVED) {
        Some(name) => Err(CapabilityError::Invalid(format!("the header `{name}` is the host's"))),
        None => Ok(()),
    }
}

fn check_headers_beside_secrets(headers: &[(String, String)]) -> Result<(), CapabilityError> {
    match named(headers, &RESERVED_BESIDE_SECRETS) {
        Some(name) => {
            let message = format!("the header `{name}` is the host's in a request of a plugin that has secrets");
            Err(CapabilityError::Invalid(message))
        }
        None => Ok(()),
    }
}

/// Whether no plugin that has secrets may send a header of that name.
pub fn is_reserved(header: &str) -> bool {
    RESERVED.iter().chain(&RESERVED_BESIDE_SECRETS).any(|reserved| header.eq_ignore_ascii_case(reserved))
}

/// The first header with one of these names, as it is written.
fn named<'h>(headers: &'h [(String, String)], names: &[&str]) -> Option<&'h str> {
    let is_one = |header: &str| names.iter().any(|name| header.eq_ignore_ascii_case(name));
    headers.iter().map(|(name, _)| name.as_str()).find(|name| is_one(name))
}

impl From<HttpResponse> for wit::Response {
    fn from(response: HttpResponse) -> Self {
        let HttpResponse { status, headers, body, truncated } = response;
        let headers = headers.into_iter().map(|(name, value)| wit::Header { name, value }).collect();
        Self { status, headers, body, truncated }
    }
}

#[cfg(test)]
mod tests;
