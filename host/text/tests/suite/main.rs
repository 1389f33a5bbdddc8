//! The crate from outside: real folders, real conversations.

mod bad_folders;
mod chat;
mod folders;
mod injection;
mod output;
mod tokens;
