//! What a guest may ask of the host: one file per imported interface. `log`, `metrics` and `clock` are always there;
//! `kv` and `documents` are granted, and other suppliers than the built-in ones implement [`KvStore`] and
//! [`DocumentStore`]. Invariant: a supplier is told whose data it serves ([`Namespace`]), never by the guest.

mod clock;
mod documents;
mod folders;
mod kv;
mod log;
mod memory_kv;
mod metrics;

pub use documents::{DocumentEntry, DocumentStore, Documents};
pub use folders::Folders;
pub use kv::{KvStore, Namespace};
pub use memory_kv::MemoryKv;

pub(crate) use log::LogBudget;
pub(crate) use metrics::Meters;

use crate::bindings::Everything;
use crate::bindings::tidegate::plugin::{clock as clock_wit, documents as documents_wit, kv as kv_wit};
use crate::bindings::tidegate::plugin::{log as log_wit, metrics as metrics_wit, types as wit};
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
    /// The guest asked for something that cannot be.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The supplier cannot answer now.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

impl From<CapabilityError> for wit::Error {
    fn from(error: CapabilityError) -> Self {
        match error {
            CapabilityError::Denied(message) => Self::Denied(message),
            CapabilityError::Invalid(message) => Self::InvalidInput(message),
            CapabilityError::Unavailable(message) => Self::Unavailable(message),
        }
    }
}

/// The interfaces of the contract that a component may import, and what grants each.
pub(crate) const IMPORTS: [(&str, Grant); 6] = [
    ("tidegate:plugin/types@0.1.0", Grant::Always),
    ("tidegate:plugin/log@0.1.0", Grant::Always),
    ("tidegate:plugin/metrics@0.1.0", Grant::Always),
    ("tidegate:plugin/clock@0.1.0", Grant::Always),
    ("tidegate:plugin/kv@0.1.0", Grant::Kv),
    ("tidegate:plugin/documents@0.1.0", Grant::Documents),
];

/// What lets a component import an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Nothing to grant.
    Always,
    /// `kv_kib`
    Kv,
    /// `documents`
    Documents,
}

impl Grant {
    /// The name that a descriptor's `capabilities` has for it.
    pub(crate) fn capability(self) -> Option<&'static str> {
        match self {
            Self::Always => None,
            Self::Kv => Some("kv"),
            Self::Documents => Some("documents"),
        }
    }

    /// The line of the operator's config that gives it.
    pub(crate) fn config_line(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::Kv => "kv_kib = 1024",
            Self::Documents => "documents = { name = \"folder\" }",
        }
    }
}

/// Links every capability. Whether a component may import one was checked before: see `imports.rs`.
pub(crate) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    Everything::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)
}

impl wit::Host for HostState {}

// The generated traits, named once here so that a new capability is a new file and a line in `IMPORTS`.
const _: () = {
    const fn is_host<T: log_wit::Host + metrics_wit::Host + clock_wit::Host + kv_wit::Host + documents_wit::Host>() {}
    is_host::<HostState>();
};
