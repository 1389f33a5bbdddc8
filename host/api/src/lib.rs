//! HTTP: listeners, connections, routes, endpoints, errors. Knows nothing of models; what is behind it is a
//! [`Service`], and what answers requests [`Answers`].
//!
//! The path of a request: `server.rs` accepts, `connection.rs` speaks TLS and HTTP over a [`socket`] that bounds
//! every wait (what never becomes a request is answered by `last_words.rs`), `dispatch.rs` gives the request its id,
//! its caller and its one record, `routes.rs` says which endpoint it is for, `endpoints/` answers, and `events.rs`
//! turns a reply into a stream without a task or a channel in between. An answer that shall outlive its connection is
//! written to a log by `generation.rs`, and `replay.rs` reads it. What is kept of conversations is in `kept.rs`, and
//! `answering.rs` makes the answers that are.
//!
//! Invariants: each request has exactly one answer and one record; every body, wait and number of connections is
//! bounded; a client that goes away takes its work with it, unless it
//! asked for a stream that it can come back to.

mod administration;
mod answering;
mod auth;
mod backend;
mod behind;
mod body;
mod check;
mod connection;
mod credential;
mod dispatch;
mod endpoints;
mod error;
mod events;
mod exchange;
mod flow;
mod generation;
mod grant;
mod history;
mod idempotency;
mod ids;
mod kept;
mod lanes;
mod last_words;
mod limits;
mod local;
mod openapi;
mod pages;
mod query;
mod rate_headers;
mod reading;
mod receive;
mod record;
mod replay;
mod routes;
mod server;
mod session;
mod socket;
mod tls;
mod uri;

pub use administration::{Administration, MemberChange, ProjectPage};
pub use auth::{ApiKey, Auth, SharedAuth};
pub use backend::{
    Aborted, Answers, BoxFuture, Embedded, Events, History, Reply, ReplyEvent, RequestContext, Service, no_store,
};
pub use behind::{Behind, Summaries, Titles};
pub use error::ApiError;
pub use grant::{CertificateGrant, Grant, GrantTokens, ProjectChoice, no_project};
pub use idempotency::answers::IdempotencyLimits;
pub use kept::{Kept, store_failed};
pub use lanes::Lanes;
pub use limits::Limits;
pub use routes::{Door, Group, routes};
pub use server::{Api, Listener, Server, serve};
pub use session::People;
pub use tidegate_streams::Limits as StreamLimits;
pub use tidegate_streams::shared::SharedLogs;
pub use tidegate_wire::{ModelCard, ModelPricing};
pub use tls::{ClientAuthority, Tls};
