//! Fairness among tenants as pure data structures: a queue, by class order first, then weighted fair share, then arrival;
//! and bounded places in front of it, which one tenant cannot fill for all.
//!
//! Fair share is by virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
//! 2024): each tenant of a class has a counter that grows by what it was served, divided by its weight; the
//! tenant with the lowest counter goes next. A tenant that comes back from idleness is lifted to the lowest
//! counter of those who wait, so that idling gains no credit. Inside a tenant it is first come, first served.
//!
//! Nobody of a class is starved by others of it; a worse class is, for as long as a better one has work. Whoever cannot have
//! that puts all into one class, as turns do (`tidegate-turns`).
//!
//! Invariant: no clock, no IO, no randomness; the same calls give the same order. The engine's scheduler, turns and calls that
//! wait for a plugin's instances have the queue; whatever bounds what may be there at once has places. Read next: [`queue`],
//! then [`lane`], which holds the counters, and [`places`].

pub mod lane;
pub mod places;
pub mod queue;

pub use places::Places;
pub use queue::{FairQueue, Owner, Ticket};
