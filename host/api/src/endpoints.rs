//! One file for each endpoint; `generate.rs` is what the two that generate have in common.

pub(crate) mod chat_completions;
pub(crate) mod completions;
pub(crate) mod conversations;
pub(crate) mod embeddings;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod items;
pub(crate) mod keys;
pub(crate) mod login;
pub(crate) mod members;
pub(crate) mod memories;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod openapi;
pub(crate) mod projects;
pub(crate) mod reload;
pub(crate) mod responses;
pub(crate) mod streams;
pub(crate) mod usage;
