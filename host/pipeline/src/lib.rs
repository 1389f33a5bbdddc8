//! The path of a chat request
