//! What is used, and what it costs. A [`Charge`] follows one generation: it reserves from the budgets, counts tokens
//! and calls of tools and retrievers, and is settled once, however the generation ends. A journal on this machine's disk keeps what happened through a
//! crash; a drain takes it into a database, whose absence holds up nobody.
//!
//! Invariants:
//! - each generation is settled exactly once: by its end, or after a crash with what its last mark says;
//! - what is billed was generated; what a crash may lose is at most what came after the last mark;
//! - the path of a token writes nothing and waits for nothing: it adds to a counter;
//! - a disk without room refuses new generations and loses no old one.
//!
//! Read `charge.rs`, then `journal.rs` and `drain.rs`.

mod audit;
mod budget;
mod call;
mod charge;
mod drain;
mod entry;
mod error;
mod journal;
mod ledger;
mod price;
mod recover;
mod segment;
mod tally;

pub use audit::{Contents, read_journal};
pub use budget::{Budget, Budgets, SetAside, Spent, day_of};
pub use call::{Call, CallKind, CallPrices, Called, Calls};
pub use charge::Charge;
pub use drain::{Batch, BoxFuture, Drain, Position, Sink};
pub use entry::{Alert, Entry, Event, Opening};
pub use error::LedgerError;
pub use journal::{Journal, JournalLimits};
pub use ledger::{Ledger, Who};
pub use price::{Price, Prices};
pub use tally::{Tally, Tokens};
