//! Plain data that every crate speaks, and the [`clock`] by which it is dated: no other IO, no async, no behaviour beyond
//! small accessors.
//!
//! Read in the order of a request: [`caller`] asks, [`role`] says what it may and [`quota`] how much, [`chat`] is what was asked,
//! [`sampling`] how to draw, [`job`] what the engine gets, [`delta`] what streams back, [`reject`] how any of it may
//! fail. [`embedding`] is the same for vectors.

pub mod caller;
pub mod chat;
pub mod clock;
pub mod delta;
pub mod embedding;
pub mod finding;
pub mod ids;
pub mod job;
pub mod memory;
pub mod model;
pub mod quota;
pub mod reject;
pub mod report;
pub mod role;
pub mod sampling;
pub mod totals;
pub mod transcript;

pub use caller::{Caller, Class, ProjectId, TenantId};
pub use chat::{
    BETWEEN_PARTS, Chat, FieldNames, Form, Message, Part, Provenance, Role, ToolCall, ToolChoice, ToolDef, ToolHints,
    ToolOutcome,
};
pub use delta::{Delta, DeltaKind, FinishReason, TextLogprob, TopLogprob, Usage};
pub use embedding::{EmbedInput, EmbedRequest, Embeddings, Pooling};
pub use finding::{Finding, Severity, Span};
pub use ids::{JobId, RequestId};
pub use job::{Job, JobEvent, SampledToken};
pub use memory::Memory;
pub use model::{ROUTED_MODEL, default_model};
pub use quota::{Allowance, Allowances, Counted, Exceeded, Limited, Quota, Retention, Scope};
pub use reject::{Fault, Reject, RejectKind};
pub use report::{About, Citation, Flag, GuardAction, GuardOutcome, Notebook, Report, ToolRun};
pub use role::{Act, CallerRole, Reach};
pub use sampling::{Sampling, SamplingParams};
pub use totals::UsageTotals;
pub use transcript::{LeftOut, Summary, Transcript};
