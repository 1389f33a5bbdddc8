//! Limits that several gateways count together, as whoever asks sees them; who counts is elsewhere, and this crate stays
//! without IO.

use crate::limiter::{Claim, Denial};
use std::future::Future;
use std::pin::Pin;
use tidegate_types::Allowances;

/// The outcome of [`SharedLimits::reserve`] in the making.
pub type Reserving<'a> = Pin<Box<dyn Future<Output = Option<Result<SharedReservation, Box<Denial>>>> + Send + 'a>>;

/// Counts for several gateways.
pub trait SharedLimits: Send + Sync + 'static {
    /// Lets a request in that may cost up to `tokens`, as [`Limiter::reserve`](crate::Limiter::reserve) does. `None`,
    /// within a time that a request can wait, where nobody knows: then it was not let in.
    fn reserve<'a>(&'a self, claims: &'a [Claim<'a>], tokens: u64) -> Reserving<'a>;

    /// Gateways that count together. One that is left alone takes its part of the limits.
    fn gateways(&self) -> u32;
}

/// What was charged for a request that was let in.
pub struct SharedReservation {
    /// What was left after it.
    pub allowances: Allowances,
    /// To be settled; dropping it says that nothing was used.
    pub charged: Box<dyn Settle>,
}

/// A charge to be corrected.
pub trait Settle: Send + Sync {
    /// The request may cost so many `tokens` more than it was let in with. Waits for nothing, and is not refused.
    fn raise(&mut self, tokens: u64);

    /// The request has ended, and has cost `used` tokens. Waits for nothing.
    fn settle(self: Box<Self>, used: u64);
}
