//! A generation that outlives its connections: one writer appends numbered events to a [`Log`], any number of readers
//! hold a [`Cursor`] each, and a reader that comes back goes on behind the last event that it saw.
//!
//! Invariants, each a property test:
//! - a reader sees every event once, in order, wherever its connection was cut;
//! - the writer waits for no reader but the one that it writes for, if there is one ([`Cursor::pace`]), which misses nothing:
//!   any other that is too slow for the log's bound is told what it missed, and nobody else is held up;
//! - a log belongs to a tenant; for every other it does not exist;
//! - memory is bounded: each log but for large events that say much of it again, and all together; what has ended gives way
//!   to what begins, and whoever holds more than its share of all is refused alone;
//! - what is appended together is there together, until somebody could have read it;
//! - a log says its end, and one into which nobody wrote was never there.
//!
//! In memory, and nothing but it: no task, no clock of its own, no IO. Read `log.rs`, `memory.rs`, `kept.rs`, `streams.rs`. Where several
//! gateways share their logs, [`shared`] says what is asked of whoever carries them.

mod found;
mod kept;
mod log;
mod memory;
pub mod shared;
mod streams;

pub use found::{Elsewhere, Found};
pub use log::{CUT, Cursor, LOST, Log, Missed, Numbered, Writer};
pub use streams::{Full, Limits, StreamId, Streams, Whose};
