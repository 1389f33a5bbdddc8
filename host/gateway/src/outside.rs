//! What plugins may reach outside of the sandbox, by grant: HTTP through `egress`, models through
//! `pipeline`, what they keep through `store`.

pub mod http;
pub mod kv;
pub mod models;
