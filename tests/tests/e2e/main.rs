//! End-to-end tests over real sockets, one module for each side of the program.

mod bad_input;
mod chat;
mod clients;
mod examples;
mod guests;
mod keys;
mod many_streams;
mod pipeline;
mod upstream;
