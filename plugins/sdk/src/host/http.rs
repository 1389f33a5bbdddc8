//! Requests to granted origins. Needs [`crate::Capability::Http`]; a stage that sees content needs the operator's
//! `content` grant as well. The host follows no redirect and fills secrets in.

use crate::plugin::Error;

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::http::tidegate::plugin::http as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake::http as fake;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, ...
    pub method: String,
    /// `https://host[:port]/path?query`.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Headers whose value the host completes.
    pub secret_headers: Vec<SecretHeader>,
    /// The body; empty for none.
    pub body: Vec<u8>,
    /// 0 for the host's bound.
    pub timeout_ms: u32,
}

/// A header whose value is a prefix and a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretHeader {
    /// The header's name.
    pub name: String,
    /// Such as `Bearer `; often empty.
    pub prefix: String,
    /// The secret's name in the operator's grant.
    pub secret: String,
}

/// What came back. Any status is an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The body was longer than the grant allows.
    pub truncated: bool,
}

impl Request {
    /// A `GET` request.
    pub fn get(url: impl Into<String>) -> Self {
        Self { method: "GET".into(), url: url.into(), ..Self::default() }
    }

    /// A `POST` request with a body of JSON.
    pub fn post_json(url: impl Into<String>, json: impl Into<Vec<u8>>) -> Self {
        let request = Self { method: "POST".into(), url: url.into(), body: json.into(), ..Self::default() };
        request.header("content-type", "application/json")
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a header whose value the host completes with a secret. Needs [`Capability::Secrets`] in the descriptor.
    ///
    /// [`Capability::Secrets`]: crate::Capability::Secrets
    pub fn secret_header(
        mut self,
        name: impl Into<String>,
        prefix: impl Into<String>,
        secret: impl Into<String>,
    ) -> Self {
        self.secret_headers.push(SecretHeader { name: name.into(), prefix: prefix.into(), secret: secret.into() });
        self
    }

    /// Bounds the wait.
    pub fn timeout_ms(mut self, timeout_ms: u32) -> Self {
        self.timeout_ms = timeout_ms;
        self
    }
}

impl Response {
    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
}

/// Sends a request and waits for its answer.
///
/// # Errors
/// What the host says: no grant for the origin or its address, no connection, no answer in time.
pub fn send(request: &Request) -> Result<Response, Error> {
    #[cfg(target_arch = "wasm32")]
    return Ok(imp::send(&request.clone().into())?.into());
    #[cfg(not(target_arch = "wasm32"))]
    fake::send(request)
}

/// Sends several requests at once (at most 16); answers in their order.
pub fn send_all(requests: &[Request]) -> Vec<Result<Response, Error>> {
    #[cfg(target_arch = "wasm32")]
    {
        let requests: Vec<imp::Request> = requests.iter().cloned().map(Into::into).collect();
        let answers = imp::send_all(&requests).into_iter();
        answers.map(|answer| answer.map(Into::into).map_err(Into::into)).collect()
    }
    #[cfg(not(target_arch = "wasm32"))]
    fake::send_all(requests)
}
