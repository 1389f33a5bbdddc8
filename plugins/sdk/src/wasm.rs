//! Between the component's exports and a plugin's traits. Nothing here is for authors.

#![allow(missing_docs)]

pub mod bindings;
mod convert;
mod export;

pub use export::{
    call_tool, configure, describe, forget, glance, glance_prompt, inspect_output, inspect_prompt, inspect_window,
    list_tools, on_complete, recall, remember, retrieve, route,
};
pub use wit_bindgen::rt;
