//! `random`: bytes of the system's generator, by grant.

use super::CapabilityError;
use crate::bindings::tidegate::plugin::random::{Error, Host};
use crate::state::HostState;
use std::sync::Arc;

const MAX_BYTES: u32 = 4096;

impl Host for HostState {
    fn bytes(&mut self, len: u32) -> wasmtime::Result<Result<Vec<u8>, Error>> {
        Ok(self.random_bytes(len).map_err(Into::into))
    }
}

impl HostState {
    fn random_bytes(&mut self, len: u32) -> Result<Vec<u8>, CapabilityError> {
        self.allow("random", "random.bytes")?;
        if !(1..=MAX_BYTES).contains(&len) {
            return Err(CapabilityError::Invalid(format!("{len} random bytes; 1 to {MAX_BYTES} may be asked for")));
        }
        let mut bytes = vec![0; len as usize];
        let blueprint = Arc::clone(&self.blueprint);
        if let Some(fixed) = &blueprint.fixed {
            let (drawn_by, from) = self.draw(u64::from(len), fixed);
            let mut stream =
                blake3::Hasher::new().update(&fixed.seed.to_le_bytes()).update(drawn_by.as_bytes()).finalize_xof();
            stream.set_position(from);
            stream.fill(&mut bytes);
            return Ok(bytes);
        }
        getrandom::fill(&mut bytes).map_err(|error| CapabilityError::Unavailable(error.to_string()))?;
        Ok(bytes)
    }
}
