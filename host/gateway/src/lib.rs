//! The gateway as a library, so that tests run it in their own process. `main.rs` tells the story.

pub mod artifact;
pub mod assemble;
pub mod audit;
mod books;
pub mod bundled;
mod callers;
pub mod chat;
pub mod cli;
pub mod config;
pub mod descriptors;
mod invitation;
mod keep;
pub mod key;
mod keys;
mod listen;
mod observe;
pub mod outside;
pub mod plugin;
mod reload;
pub mod remote;
mod serve;
mod service;
mod start;
pub mod stdout;
mod terminal;

pub use assemble::{check, check_file};
pub use serve::Running;
pub use start::start;
