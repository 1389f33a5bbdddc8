//! The tenant queue as a pure data structure
