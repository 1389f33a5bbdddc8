//! The path of a chat request: verbs in `stages`, their order in [`chat`], their states in `states`.
//!
//! A [`Pipeline`] is immutable once built; a changed config is a new one. Read [`chat`] first. Vectors have a path of their
//! own, `embed.rs`; several prompts at once take it side by side, [`prompts`].

pub mod account;
mod admission;
mod aside;
pub mod ask;
mod background;
mod bounds;
pub mod breaker;
pub mod chat;
pub mod context;
mod embed;
mod estimate;
pub mod figures;
pub mod gate;
pub mod holdback;
mod labels;
mod models;
mod noted;
mod owed;
pub mod prompts;
pub mod reply;
pub mod source;
pub mod stage;
mod stages;
mod states;

pub use breaker::{Breaker, BreakerConfig};
pub use chat::{Limits, MemoryStage, Pipeline, RetrieverStage, Stages, ToolLimits};
pub use context::{History, RequestContext};
pub use embed::{Embedded, Room};
pub use gate::{Gate, GateConfig};
pub use models::{EngineModel, Makes, Model, ModelBackend, Models};
pub use prompts::Replies;
pub use reply::{Reply, ReplyEvent};
pub use stage::{OnError, Stage};
pub use stages::{OutputGuardStage, PricedTools, WhenStreamed, apply_edits, check_arguments, passage};
