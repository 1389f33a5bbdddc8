//! Key-value storage of this plugin and project, or tenant: in the memory of the server, gone when it stops, and each
//! gateway's own; or in its store, where the operator says so. Needs [`crate::Capability::Kv`].

// On wasm the values are the contract's, and are converted.
#![cfg_attr(not(target_arch = "wasm32"), expect(clippy::needless_question_mark))]

use crate::plugin::Error;

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::kv::tidegate::plugin::kv as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake::kv as imp;

/// The value of a key.
///
/// # Errors
/// What the host says: no grant, or storage out of order.
pub fn get(key: &str) -> Result<Option<Vec<u8>>, Error> {
    Ok(imp::get(key)?)
}

/// The values of several keys in one call, in their order.
///
/// # Errors
/// What the host says: no grant, or storage out of order.
pub fn get_many(keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
    Ok(imp::get_many(keys)?)
}

/// Sets a key, for a time, or until it is deleted or the server stops that has it in memory.
///
/// # Errors
/// What the host says: no grant, the quota is used up, or storage out of order.
pub fn set(key: &str, value: &[u8], ttl_ms: Option<u64>) -> Result<(), Error> {
    Ok(imp::set(key, value, ttl_ms)?)
}

/// Adds to a number and returns the sum; a key that is not there counts as 0.
///
/// # Errors
/// What the host says: no grant, the value is not a number, or storage out of order.
pub fn increment(key: &str, delta: i64, ttl_ms: Option<u64>) -> Result<i64, Error> {
    Ok(imp::increment(key, delta, ttl_ms)?)
}

/// Removes a key; one that is not there is fine.
///
/// # Errors
/// What the host says: no grant, or storage out of order.
pub fn delete(key: &str) -> Result<(), Error> {
    Ok(imp::delete(key)?)
}
