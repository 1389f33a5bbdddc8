//! What is kept of callers' conversations, where the server keeps anything.

use crate::backend::no_store;
use crate::behind::Behind;
use crate::server::Api;
use tidegate_store::{Conversations, StoreError};
use tidegate_types::{Caller, Fault, Reject, RejectKind, Retention};

/// Where conversations are kept.
#[derive(Clone)]
pub struct Kept {
    /// The conversations of all tenants.
    pub conversations: Conversations,
    /// What is written behind answers that are kept.
    pub behind: Behind,
}

impl Api {
    /// What is kept, and how.
    pub(crate) fn kept(&self) -> Result<&Kept, Reject> {
        self.kept.as_ref().ok_or_else(no_store)
    }

    /// The conversations, to be read.
    pub(crate) fn conversations(&self) -> Result<&Conversations, Reject> {
        match &self.kept {
            Some(kept) => Ok(&kept.conversations),
            None => Err(no_store()),
        }
    }

    /// The conversations, to be written for this caller.
    pub(crate) fn writable(&self, caller: &Caller) -> Result<&Conversations, Reject> {
        match &self.kept {
            Some(kept) if caller.scope.retention == Retention::Kept => Ok(&kept.conversations),
            Some(_) => Err(nothing_kept()),
            None => Err(no_store()),
        }
    }
}

/// What is said to who asks for something to be stored, and is nobody of whom something may be.
pub(crate) fn nothing_kept() -> Reject {
    let message = "nothing of this key's tenant or project is stored (`zero_retention`); \
                   send the whole conversation with each request";
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code("zero_retention")
}

/// Something that is not there, or is another's: nobody can tell which.
pub(crate) fn not_found(what: &str) -> Reject {
    let message = format!("there is no such {what}");
    Reject::new(RejectKind::NotFound, Fault::Client, message).code(format!("{what}_not_found"))
}

/// What a caller is told of a database that did not do what was asked.
pub(crate) fn store_failed(error: &StoreError) -> Reject {
    match error {
        StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Folder { .. } => {
            let message = "the server's store does not answer now; try again";
            Reject::unavailable(Fault::Operator, message, 2).code("store_unavailable").because(error)
        }
        StoreError::Body(_) | StoreError::Migration(_) | StoreError::Statement(_) => {
            Reject::internal(Fault::Operator, error.to_string())
        }
    }
}
