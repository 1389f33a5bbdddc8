//! End-to-end tests over real sockets, one module for each side of the program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

mod admin;
mod asked_models;
mod authority;
mod background;
mod bad_input;
mod chat;
mod classifiers;
mod clients;
mod contract;
mod conversations;
mod disk_full;
mod embeddings;
mod ended;
mod events;
mod examples;
mod failing;
mod frozen;
mod glances;
mod guests;
mod guide;
mod halts;
mod http2_abuse;
mod instances;
mod invitation;
mod kafka;
mod keys;
mod kv;
mod large_bodies;
mod late_guards;
mod limits;
mod login;
mod logprobs;
mod many_streams;
mod members;
mod memories;
mod mtls;
mod once;
mod one_read;
mod order;
mod outside;
mod padding;
mod pasted;
mod pipeline;
mod plugin_host;
mod plugin_scopes;
mod prefilter;
mod prices;
mod projects;
mod prompts;
mod ready;
mod reload;
mod resume;
mod retention;
mod retries;
mod roles;
mod routes;
mod sampling;
mod several_gateways;
mod shipped;
mod stages;
mod starter_facts;
mod structured;
mod talk;
mod tenants_apart;
mod together;
mod tokens;
mod tool_formats;
mod tool_turns;
mod training;
mod upstream;
mod usage;
mod vectors;
