//! `http`: requests to granted origins. This file bounds what a guest may send, fills secrets in and blanks them out of
//! what comes back; the supplier knows HTTP, checks the URL against the origins and the addresses behind it, and
//! follows no redirect.

use super::{BoxFuture, CapabilityError};
use crate::bindings::tidegate::plugin::http as wit;
use crate::stage::{HttpGrant, Secret};
use crate::state::HostState;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

const MAX_URL_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_AT_ONCE: usize = 16;
/// What a guest sees in a secret's place.
const BLANK: &str = "[secret]";
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

/// A request whose bounds were checked and whose secrets are filled in.
#[derive(Clone)]
pub struct HttpRequest {
    /// `GET`, `POST`, ...
    pub method: String,
    /// As the guest wrote it: to be parsed and checked by the supplier.
    pub url: String,
    /// Name and value; none that the supplier sets itself.
    pub headers: Vec<(String, String)>,
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
    running: Semaphore,
}

impl HttpAccess {
    pub(crate) fn open(client: &dyn HttpClient, grant: &HttpGrant) -> Result<Self, String> {
        let running = Semaphore::new(grant.concurrency);
        Ok(Self { origins: client.open(grant)?, grant: grant.clone(), running })
    }

    /// Sends a request whose secrets are `secrets`; answers without them. So much more of the answer is read than the guest
    /// gets that a secret across the cut is seen whole: a guest that chooses where the cut is would else read all of the
    /// secret but its end.
    async fn send(&self, request: HttpRequest, secrets: &[Secret]) -> Result<HttpResponse, CapabilityError> {
        let most = request.response_bytes;
        let longest = secrets.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
        let request = HttpRequest { response_bytes: most.saturating_add(longest.saturating_sub(1)), ..request };
        let started = Instant::now();
        let out_of_time = || CapabilityError::Timeout("no answer in time".into());
        let permit = tokio::time::timeout(request.timeout, self.running.acquire()).await;
        let _permit = permit.map_err(|_| {
            let most = self.grant.concurrency;
            CapabilityError::Unavailable(format!("{most} requests of this plugin run at once (http.concurrency)"))
        })?;
        let timeout = request.timeout.saturating_sub(started.elapsed());
        if timeout.is_zero() {
            return Err(out_of_time());
        }
        let sent = self.origins.send(HttpRequest { timeout, ..request });
        let mut response = tokio::time::timeout(timeout, sent).await.map_err(|_| out_of_time())??;
        response.truncated |= response.body.len() > most;
        let secrets: Vec<&str> = secrets.iter().map(Secret::expose).filter(|secret| !secret.is_empty()).collect();
        response.body = blanked(&response.body, &secrets, most);
        for (_, value) in &mut response.headers {
            // All of it: a cut could fall into a character.
            let left = blanked(value.as_bytes(), &secrets, usize::MAX);
            *value = String::from_utf8_lossy(&left).into_owned();
        }
        Ok(response)
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
        let checked: Vec<_> = requests.into_iter().map(|request| self.outgoing(&access.grant, request)).collect();
        let access = &access;
        let sends = checked.into_iter().map(|checked| async move {
            let (request, secrets) = checked?;
            access.send(request, &secrets).await
        });
        let answers = self.meter.waiting(futures_util::future::join_all(sends)).await;
        answers.into_iter().map(|answer| answer.map(Into::into).map_err(Into::into)).collect()
    }

    /// Checks a request's bounds and fills its secrets in.
    fn outgoing(
        &self,
        grant: &HttpGrant,
        request: wit::Request,
    ) -> Result<(HttpRequest, Vec<Secret>), CapabilityError> {
        let wit::Request { method, url, headers, secret_headers, body, timeout_ms } = request;
        if url.len() > MAX_URL_BYTES || body.len() > grant.request_bytes {
            let most = grant.request_bytes;
            let message = format!("a URL has at most {MAX_URL_BYTES} bytes, a body at most {most} (http.request_kib)");
            return Err(CapabilityError::Invalid(message));
        }
        let mut sent: Vec<(String, String)> = headers.into_iter().map(|header| (header.name, header.value)).collect();
        let mut secrets = Vec::new();
        for wit::SecretHeader { name, prefix, secret } in secret_headers {
            let value = self.secret(&secret)?;
            sent.push((name, [prefix.as_str(), value.expose()].concat()));
            secrets.push(value);
        }
        check_headers(&sent)?;
        let asked = if timeout_ms == 0 { grant.timeout } else { Duration::from_millis(timeout_ms.into()) };
        let left = self.until.saturating_duration_since(Instant::now());
        let timeout = asked.min(grant.timeout).min(left);
        let response_bytes = grant.response_bytes;
        Ok((HttpRequest { method, url, headers: sent, body, timeout, response_bytes }, secrets))
    }

    fn secret(&self, name: &str) -> Result<Secret, CapabilityError> {
        // Sending one needs no import of `secrets`: the descriptor alone says that the plugin does.
        if !self.blueprint.declares_secrets {
            let message =
                "the plugin's descriptor does not name `secrets` among its `capabilities`, which a secret header needs";
            return Err(CapabilityError::Denied(message.into()));
        }
        let found = self.blueprint.grants.secrets.get(name);
        found
            .filter(|_| !self.withholds("secrets"))
            .cloned()
            .ok_or_else(|| CapabilityError::Denied(format!("the secret `{}` is not granted here", name.escape_debug())))
    }
}

fn check_headers(headers: &[(String, String)]) -> Result<(), CapabilityError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        let message = format!("at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together");
        return Err(CapabilityError::Invalid(message));
    }
    match headers.iter().find(|(name, _)| RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))) {
        Some((name, _)) => Err(CapabilityError::Invalid(format!("the header `{name}` is the host's"))),
        None => Ok(()),
    }
}

/// The first `most` bytes of a body or a header's value, with [`BLANK`] for each secret that begins in them, and one for
/// those that share bytes.
fn blanked(body: &[u8], secrets: &[&str], most: usize) -> Vec<u8> {
    let found = |secret: &&str| {
        let (bytes, len) = (secret.as_bytes(), secret.len());
        let windows = body.windows(len).enumerate();
        windows.filter(|(_, window)| *window == bytes).map(|(start, _)| (start, start + len)).collect::<Vec<_>>()
    };
    let mut places: Vec<(usize, usize)> = secrets.iter().flat_map(found).filter(|(start, _)| *start < most).collect();
    places.sort_unstable();
    let (mut left, mut from) = (Vec::with_capacity(body.len().min(most)), 0);
    for (start, end) in places {
        // One that begins in another: what is left of it goes too.
        if start >= from {
            left.extend_from_slice(&body[from..start]);
            left.extend_from_slice(BLANK.as_bytes());
        }
        from = from.max(end);
    }
    left.extend_from_slice(body.get(from..body.len().min(most)).unwrap_or_default());
    left
}

impl From<HttpResponse> for wit::Response {
    fn from(response: HttpResponse) -> Self {
        let HttpResponse { status, headers, body, truncated } = response;
        let headers = headers.into_iter().map(|(name, value)| wit::Header { name, value }).collect();
        Self { status, headers, body, truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with that header, and with so much of that body as is asked for.
    struct Echo(&'static str, &'static str);

    impl HttpOrigins for Echo {
        fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>> {
            let mut body = self.1.as_bytes().to_vec();
            let truncated = body.len() > request.response_bytes;
            body.truncate(request.response_bytes);
            let headers = vec![("x-echo".into(), self.0.into())];
            Box::pin(async move { Ok(HttpResponse { status: 200, headers, body, truncated }) })
        }
    }

    /// What a guest that may read so many bytes gets.
    async fn told(echo: Echo, secrets: &[&str], most: usize) -> HttpResponse {
        let grant = HttpGrant { response_bytes: most, ..HttpGrant::new(["https://a.example".to_owned()]) };
        let access = HttpAccess { origins: Arc::new(echo), running: Semaphore::new(1), grant };
        let request = HttpRequest {
            method: "GET".into(),
            url: "https://a.example/".into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: Duration::from_secs(60),
            response_bytes: most,
        };
        let secrets: Vec<Secret> = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        access.send(request, &secrets).await.unwrap()
    }

    #[tokio::test]
    async fn a_secret_that_comes_back_is_blanked_out() {
        let echo = Echo("Bearer hunter22, unt", "hunter22 and hunter22hunter22, hunter2");
        let response = told(echo, &["", "hunter22"], 1000).await;
        assert_eq!(response.headers[0].1, "Bearer [secret], unt");
        assert_eq!(response.body, b"[secret] and [secret][secret], hunter2");
        assert!(!response.truncated);
        // One that is a part of another, and two that share a byte.
        let echo = Echo("hunter22 é cabab é", "hunter22, cabab");
        let response = told(echo, &["unt", "hunter22", "cab", "bab"], 1000).await;
        assert_eq!(response.headers[0].1, "[secret] é [secret] é");
        assert_eq!(response.body, b"[secret], [secret]");
    }

    /// Neither does the cut tell whether what is before it begins as the secret does: a guest would guess that byte by byte.
    #[tokio::test]
    async fn wherever_a_body_is_cut_nothing_of_a_secret_is_left_and_all_else_is() {
        const BODY: &str = "token a1b2c3d4 a1b2c3d, a1b2c3d4a1b2c3d4.";
        for most in 0..=BODY.len() + 1 {
            let response = told(Echo("", BODY), &["a1b2c3d4", "c3d4"], most).await;
            let mut expected = String::new();
            for (at, letter) in BODY.char_indices().take_while(|(at, _)| *at < most) {
                let of_secret = (6..14).contains(&at) || (24..40).contains(&at);
                match at {
                    6 | 24 | 32 => expected.push_str(BLANK),
                    _ if of_secret => {}
                    _ => expected.push(letter),
                }
            }
            assert_eq!(String::from_utf8(response.body).unwrap(), expected, "the first {most} bytes");
            assert_eq!(response.truncated, most < BODY.len(), "the first {most} bytes");
        }
    }

    #[test]
    fn headers_of_the_connection_are_the_hosts() {
        let header = |name: &str| vec![(name.to_owned(), "x".to_owned())];
        for name in RESERVED.into_iter().chain(["Host", "Transfer-Encoding"]) {
            assert!(check_headers(&header(name)).is_err(), "{name}");
        }
        assert!(check_headers(&header("x-own")).is_ok());
        let many: Vec<_> = (0..65).flat_map(|_| header("x")).collect();
        assert!(check_headers(&many).is_err());
    }
}
