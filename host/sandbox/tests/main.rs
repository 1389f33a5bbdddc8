//! The sandbox with real components: the guests of `tests/guests`, built and committed in `tests/guests/dist`.

// Helpers of tests are tests, which clippy sees only in `#[test]` functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cache;
mod calls;
mod capabilities;
mod contract;
mod frozen;
mod glances;
mod guests;
mod json;
mod limits;
mod loading;
mod outside;
mod pools;
mod retention;
mod snapshots;
mod stalled;
mod support;
