//! What the operator grants a plugin. A grant is checked against the component's imports when it is loaded, and
//! against tenant and arguments when it is used.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_types::TenantId;

/// What the operator grants a plugin; everything else is refused at load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grants {
    /// Key-value storage, private to plugin and project, or tenant, of at most this many bytes.
    pub kv_bytes: Option<u64>,
    /// Read-only folders, by the name that the guest sees as the first part of a path.
    pub documents: BTreeMap<String, PathBuf>,
    /// Outbound HTTP.
    pub http: Option<HttpGrant>,
    /// A stage that sees content, or reads `vectors` where others may keep it, may have `http` as well: what callers write can then
    /// leave the machine.
    pub content: bool,
    /// Secrets that the host fills into requests, by the name that the guest knows.
    pub secrets: BTreeMap<String, SecretGrant>,
    /// Models, by the alias that the guest knows.
    pub models: BTreeMap<String, ModelGrant>,
    /// Vector collections of the project, or tenant, by name.
    pub vectors: BTreeMap<String, VectorAccess>,
    /// Random bytes.
    pub random: bool,
    /// Capabilities (`kv`, `http`, ...) that calls of a tenant do not have, whatever else is granted.
    pub withheld: BTreeMap<TenantId, BTreeSet<String>>,
}

/// Where a plugin may send requests, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpGrant {
    /// `scheme://host[:port]`, exact.
    pub origins: Vec<String>,
    /// Special addresses that may be connected to all the same, as `address/bits`.
    pub networks: Vec<String>,
    /// Requests of one plugin that run at once. Past this there is room for a tenant below its share only, and at most as
    /// much again.
    pub concurrency: usize,
    /// Bytes of an answer's body; the rest is cut off.
    pub response_bytes: usize,
    /// Bytes of a request's body.
    pub request_bytes: usize,
    /// The longest that one request may take.
    pub timeout: Duration,
}

impl HttpGrant {
    /// The defaults for `origins`.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Self {
        Self {
            origins: origins.into_iter().collect(),
            networks: Vec::new(),
            concurrency: 512,
            response_bytes: 1 << 20,
            request_bytes: 1 << 20,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A secret, and where the host fills it in: a service that a guest chooses, or a header that comes back cut or altered, would
/// tell the guest what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretGrant {
    /// The secret.
    pub value: Secret,
    /// The `http` origins that it may go to, as they are written there; empty for all.
    pub origins: Vec<String>,
    /// The headers that it may be in, in lower case.
    pub headers: Vec<String>,
}

impl SecretGrant {
    /// Headers that are there for secrets, which no service is known to bring back.
    pub const HEADERS: [&'static str; 3] = ["authorization", "x-api-key", "api-key"];

    /// For all origins, in the usual headers.
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: Secret::new(value), origins: Vec::new(), headers: Self::HEADERS.map(str::to_owned).into() }
    }
}

/// A value that no log and no guest sees.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A model that a plugin may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelGrant {
    /// The model's name in the config.
    pub model: String,
}

/// What a plugin may do with a collection.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum VectorAccess {
    /// Search.
    Read,
    /// Search, put and delete.
    Write,
}
