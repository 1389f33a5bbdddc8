//! The crate from outside: real folders, real conversations.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::expect_used, clippy::panic)]

mod bad_folders;
mod chat;
mod fixtures;
mod folders;
mod injection;
mod output;
mod tokens;
mod tool_turns;
mod within;
