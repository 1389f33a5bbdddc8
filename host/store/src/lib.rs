//! What lasts beyond the process: SQLite in a folder by default, Postgres when asked. The same statements run on
//! both, and the same tests.
//!
//! Invariants:
//! - every statement on a tenant's rows names the tenant; what is another's is as what never was. Of conversations and what
//!   belongs to them `tenant` is the owner: a project's id, or the tenant for its own;
//! - SQL is written out, never put together from what a caller sent;
//! - nothing here is on the path of a token, but what plugins keep in `kv` and `vectors` where the operator keeps it here: what must not
//!   wait for a database does not call it.
//!
//! Read `db.rs` first: it opens the database and brings it to this program's version.

mod audit;
pub mod conversations;
mod db;
mod ended;
mod error;
mod keeping;
mod keys;
mod kv;
mod lasting;
mod migrations;
mod outbox;
mod projects;
mod sessions;
mod usage;
mod vectors;

pub use audit::{Billed, Books, Counted, KeptAnswer};
pub use conversations::Conversations;
pub use db::{Db, Place};
pub use ended::Ended;
pub use error::StoreError;
pub use keeping::KeepError;
pub use keys::{Added, KeptKey, Keys};
pub use kv::{Kv, Space};
pub use outbox::{Outbox, Waiting};
pub use projects::{KeptProject, Projects};
pub use sessions::{KeptSession, Sessions};
pub use usage::{GroupBy, Holder, Only, Usage, UsageQuery, UsageSink, UsageSum};
pub use vectors::{Changes, Collection, Cursor, KeptVector, VectorChange, Vectors};
