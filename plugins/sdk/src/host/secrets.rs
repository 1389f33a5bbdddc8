//! Secrets that the host fills into requests: see [`super::http::Request::secret_header`]. Needs
//! [`crate::Capability::Secrets`].

/// The names that were granted, sorted.
pub fn names() -> Vec<String> {
    #[cfg(target_arch = "wasm32")]
    return crate::wasm::bindings::secrets::tidegate::plugin::secrets::names();
    #[cfg(not(target_arch = "wasm32"))]
    super::fake::secret_names()
}
