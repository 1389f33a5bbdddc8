//! `secrets`: the names of the secrets that a guest may refer to. Values are filled in where a request leaves: see
//! `http.rs`.

use crate::bindings::tidegate::plugin::secrets::Host;
use crate::state::HostState;

impl Host for HostState {
    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(match self.allow("secrets", "secrets.names") {
            Ok(()) => self.blueprint.grants.secrets.keys().cloned().collect(),
            Err(_) => Vec::new(),
        })
    }
}
