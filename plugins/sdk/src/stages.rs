//! One file per stage: its trait, what it is given and what it answers.

mod memory;
mod observer;
mod output_guard;
mod prompt_guard;
mod retriever;
mod router;
mod stream_guard;
mod tool_provider;

pub use memory::{Exchange, Item, Memory, Question};
pub use observer::{Observer, Summary};
pub use output_guard::{Output, OutputGuard};
pub use prompt_guard::{Action, Edit, Prompt, PromptGlance, PromptGuard, Verdict};
pub use retriever::{Chunk, Query, Retriever};
pub use router::{Candidate, Decision, RouteRequest, Router, each_once, offered};
pub use stream_guard::{Channel, Inspection, Redaction, StreamGlance, StreamGuard, Window, WindowAction};
#[doc(hidden)]
pub use stream_guard::{MAX_CARRY_BYTES, inspect_with_carry};
pub use tool_provider::ToolProvider;
