//! The batching engine: jobs in, tokens or vectors out, behind one handle.
//!
//! Read in the order of a job: [`handle`] checks and queues it, `run` is the loop that owns everything,
//! [`guides`] holds answers to grammars, [`step`] is the loop on one screen, [`scheduler`] decides who computes what (a pure state machine over
//! [`sequence`], [`blocks`] and [`prefix`]), [`stream`] hands the tokens out. With
//! `isolation = "process"` the loop is in a child process: [`isolation`] is the parent's side, [`worker`] the child's.
//!
//! Invariants: the scheduler has no IO, clock or randomness; every queue has a bound; a job's own failure ends
//! that job alone; dropping a [`JobStream`] frees its blocks within one step.

pub mod blocks;
pub mod config;
pub mod error;
pub mod guides;
pub mod handle;
pub mod isolation;
pub mod prefix;
pub mod scheduler;
pub mod sequence;
pub mod stats;
pub mod step;
pub mod stream;
pub mod toy;
pub mod worker;

mod compiling;
mod compute;
mod frame;
mod inbox;
mod observe;
mod pooled;
mod run;
mod shared;
mod thread;
mod validate;

pub use config::{Ahead, BLOCK_TOKENS, EngineConfig, Isolation, ModelFacts};
pub use error::EngineError;
pub use guides::Guides;
pub use handle::{EngineHandle, ExecutorFactory};
pub use isolation::WorkerCommand;
pub use stats::{Counters, EndedJobs, EngineStats, Health, Phase};
pub use stream::JobStream;
