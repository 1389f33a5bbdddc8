//! Architectures: each file says in which order a decoder block is composed, and nothing about kernels or caches.
//! Read `llama.rs` first; `decoder.rs` holds the pieces.

mod decoder;
pub(crate) mod llama;
pub(crate) mod mistral;
pub(crate) mod qwen2;
pub(crate) mod qwen3;

#[cfg(test)]
mod tests;
