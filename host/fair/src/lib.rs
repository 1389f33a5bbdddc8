//! The tenant queue as a pure data structure: class order first, then weighted fair share, then arrival.
//!
//! Fair share is by virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
//! 2024): each tenant of a class has a counter that grows by what it was served, divided by its weight; the
//! tenant with the lowest counter goes next. A tenant that comes back from idleness is lifted to the lowest
//! counter of the active ones, so that idling gains no credit. Inside a tenant it is first come, first served.
//!
//! Invariant: no clock, no IO, no randomness; the same calls give the same order. The engine's scheduler and
//! the gateway's admission both use it. Read next: [`queue`], then [`lane`], which holds the counters.

pub mod lane;
pub mod queue;

pub use queue::{FairQueue, Owner, Ticket};
