//! Requests and tokens per minute, and requests at once, of keys, tenants, users and models. Pure: no IO, no async, and
//! the time is given.
//!
//! [`Limiter`] lets a request in where all of its [`Claim`]s have room, or says which has none and when it will. What a
//! request will cost is not known before it ends: it is let in with the most that it may cost, and corrected afterwards
//! ([`Limiter::settle`]) to what it did cost, as if that had been known from the start.
//!
//! Invariants, each a property in `tests/properties.rs`: over any time no more is used than the rate times that time and
//! one burst, which is the amount of one minute; a correction leaves what a limiter would have that had known; what was
//! let in and has ended leaves nothing behind; what is idle is forgotten. Read next: [`meter`]. Where several gateways
//! count together, somebody else does, by the same rules: [`shared`] is what they are asked.

pub mod limiter;
mod lows;
pub mod meter;
pub mod shared;
mod table;

pub use limiter::{Claim, Denial, Limiter, Reservation};
pub use table::{Bounds, Subject};
