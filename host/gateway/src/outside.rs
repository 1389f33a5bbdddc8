//! What plugins may reach outside of the sandbox, by grant: HTTP through `egress`, models through
//! `pipeline`.

pub mod http;
pub mod models;
