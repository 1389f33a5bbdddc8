//! What is kept of callers' conversations, where the server keeps anything.

use crate::backend::no_store;
use crate::behind::Behind;
use crate::server::Api;
use std::time::Duration;
use tidegate_store::conversations::{Deleted, ago_ms};
use tidegate_store::{Conversations, StoreError};
use tidegate_types::{Caller, Fault, Reject, RejectKind, Retention, TenantId};

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

    /// Ends the streams of responses that were deleted, and lets nobody read from a log what is gone, at any gateway. Those
    /// that ended long ago have none left.
    pub(crate) fn forget_streams(&self, tenant: &TenantId, responses: &[Deleted]) {
        let since = ago_ms(LONGEST_RESPONSE + self.limits.streams.keep);
        let recent = responses.iter().filter(|response| response.is_running || response.created_ms >= since);
        let names: Vec<String> = recent.flat_map(|response| streams_of(&response.id)).collect();
        if !names.is_empty() {
            self.streams.forget(tenant, names);
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

/// From its beginning to its end.
const LONGEST_RESPONSE: Duration = Duration::from_secs(3600);

/// Where the events of a response may be: under its own name, or under that of its message.
pub(crate) fn streams_of(response: &str) -> [String; 2] {
    let unique = response.strip_prefix("resp_").unwrap_or(response);
    [response.to_owned(), format!("stream_{unique}")]
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
pub fn store_failed(error: StoreError) -> Reject {
    match error {
        StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::LogInUse | StoreError::Folder { .. } => {
            let message = "the server's store does not answer now; try again";
            Reject::unavailable(Fault::Operator, message, 2).code("store_unavailable").because(error)
        }
        StoreError::Body(_)
        | StoreError::Migration(_)
        | StoreError::Absent { .. }
        | StoreError::OtherVersion { .. }
        | StoreError::Statement(_) => Reject::internal(Fault::Operator, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_asked_again_says_so_and_a_defect_does_not() {
        let cause = std::io::Error::other("the disk is gone");
        let away = store_failed(StoreError::Folder { path: "data".into(), cause });
        assert_eq!((away.kind, away.retry_after_s), (RejectKind::Unavailable, Some(2)));
        let defect = serde_json::from_str::<u8>("x").unwrap_err();
        assert_eq!(store_failed(StoreError::Body(defect)).kind, RejectKind::Internal);
    }
}
