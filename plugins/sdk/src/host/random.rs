//! Random bytes, fit for keys. Needs [`crate::Capability::Random`].

use crate::plugin::Error;

/// 1 to 4,096 random bytes; on other targets than wasm the same ones each time.
///
/// # Errors
/// What the host says: no grant, or too many at once.
pub fn bytes(len: u32) -> Result<Vec<u8>, Error> {
    #[cfg(target_arch = "wasm32")]
    return Ok(crate::wasm::bindings::random::tidegate::plugin::random::bytes(len)?);
    #[cfg(not(target_arch = "wasm32"))]
    super::fake::random_bytes(len)
}
