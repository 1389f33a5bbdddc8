//! The gateway as a library, so that tests can build it in process.
