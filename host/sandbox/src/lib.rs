//! WebAssembly components as pipeline stages
