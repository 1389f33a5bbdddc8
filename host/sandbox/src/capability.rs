//! What a guest may ask of the host: one file per imported interface. `log`, `metrics` and `clock` are always there;
//! the others are granted. `kv`, `documents` and `vectors` have built-in suppliers and take others by a trait; what
//! answers for `http` and `models` comes from outside ([`HttpClient`], [`ModelService`]). Invariant: a supplier is told
//! whose data it serves ([`Namespace`], [`Collection`]), never by the guest.

mod clock;
mod documents;
mod folders;
mod http;
mod kv;
mod log;
mod log_rate;
mod memory_kv;
mod memory_vectors;
mod metrics;
mod models;
mod random;
mod secrets;
mod vectors;

pub use documents::{DocumentEntry, DocumentStore, Documents};
pub use folders::Folders;
pub use http::{HttpClient, HttpOrigins, HttpRequest, HttpResponse, NoHttp, is_reserved};
pub use kv::{KvRefusal, KvStore, Namespace, check_kv_key};
pub use log::{escape, for_line};
pub use memory_kv::{Contents as KvContents, MemoryKv};
pub use memory_vectors::{Contents as VectorContents, MemoryVectors, VectorChange};
pub use models::{Labels, ModelAsk, ModelReply, ModelService, NoModels};
pub use vectors::{Collection, VectorEntry, VectorHit, VectorRefusal, VectorStore};

pub(crate) use http::HttpAccess;
pub(crate) use log::LogBudget;
pub(crate) use log_rate::LogRate;
pub(crate) use metrics::{Meters, Undeclared};

use crate::bindings::Everything;
use crate::bindings::tidegate::plugin::types as wit;
use crate::state::HostState;
use std::future::Future;
use std::pin::Pin;
use wasmtime::component::{HasSelf, Linker};

/// The future of a supplier's answer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a capability has no answer; the guest sees it as the contract's `error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// Not granted, or the grant is used up.
    #[error("denied: {0}")]
    Denied(String),
    /// The same, where the log says more than the guest is told.
    #[error("denied: {logged}")]
    DeniedUntold {
        /// What the guest is told.
        told: String,
        /// What the log says, as a line about the guest.
        logged: String,
    },
    /// The guest asked for something that cannot be.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The supplier cannot answer now.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It took too long.
    #[error("timeout: {0}")]
    Timeout(String),
    /// Not something that the supplier does.
    #[error("unsupported: {0}")]
    Unsupported(String),
}

impl From<CapabilityError> for wit::Error {
    fn from(error: CapabilityError) -> Self {
        match error {
            CapabilityError::Denied(message) | CapabilityError::DeniedUntold { told: message, .. } => {
                Self::Denied(message)
            }
            CapabilityError::Invalid(message) => Self::InvalidInput(message),
            CapabilityError::Unavailable(message) => Self::Unavailable(message),
            CapabilityError::Timeout(message) => Self::Timeout(message),
            CapabilityError::Unsupported(message) => Self::Unsupported(message),
        }
    }
}

/// The interfaces of the contract that a component may import, and what grants each.
pub(crate) const IMPORTS: [(&str, Grant); 12] = [
    ("tidegate:plugin/types@0.1.0", Grant::Always),
    ("tidegate:plugin/log@0.1.0", Grant::Always),
    ("tidegate:plugin/metrics@0.1.0", Grant::Always),
    ("tidegate:plugin/clock@0.1.0", Grant::Always),
    ("tidegate:plugin/kv@0.1.0", Grant::Kv),
    ("tidegate:plugin/documents@0.1.0", Grant::Documents),
    ("tidegate:plugin/accounting@0.1.0", Grant::Always),
    ("tidegate:plugin/secrets@0.1.0", Grant::Secrets),
    ("tidegate:plugin/http@0.1.0", Grant::Http),
    ("tidegate:plugin/models@0.1.0", Grant::Models),
    ("tidegate:plugin/vectors@0.1.0", Grant::Vectors),
    ("tidegate:plugin/random@0.1.0", Grant::Random),
];

/// Everything that a grant can be about, by the names that descriptors and configs have for it.
pub fn names() -> impl Iterator<Item = &'static str> {
    IMPORTS.iter().filter_map(|(_, grant)| grant.capability())
}

/// What lets a component import an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Nothing to grant.
    Always,
    /// `kv_kib`
    Kv,
    /// `documents`
    Documents,
    /// `secrets`
    Secrets,
    /// `http`
    Http,
    /// `models`
    Models,
    /// `vectors`
    Vectors,
    /// `random`
    Random,
}

impl Grant {
    /// The name that a descriptor's `capabilities` has for it.
    pub(crate) fn capability(self) -> Option<&'static str> {
        match self {
            Self::Always => None,
            Self::Kv => Some("kv"),
            Self::Documents => Some("documents"),
            Self::Secrets => Some("secrets"),
            Self::Http => Some("http"),
            Self::Models => Some("models"),
            Self::Vectors => Some("vectors"),
            Self::Random => Some("random"),
        }
    }

    /// The line of the operator's config that gives it.
    pub(crate) fn config_line(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::Kv => "kv_kib = 1024",
            Self::Documents => "documents = { name = \"folder\" }",
            Self::Secrets => "secrets = { name = \"ENVIRONMENT_VARIABLE\" }",
            Self::Http => "http = { origins = [\"https://host\"] }",
            Self::Models => "models = { alias = \"model\" }",
            Self::Vectors => "vectors = { collection = \"read\" }",
            Self::Random => "random = true",
        }
    }
}

/// Links every capability. Whether a component may import one was checked before: see `imports.rs`.
pub(crate) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    Everything::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)
}

impl wit::Host for HostState {}
impl crate::bindings::tidegate::plugin::accounting::Host for HostState {}
