//! Lines for the operator. The host caps size and rate, and leaves content out in zero-retention mode.

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For authors.
    Debug,
    /// One per noteworthy event.
    Info,
    /// Something to look at.
    Warn,
    /// Something broke.
    Error,
}

/// Writes a line; `fields` are key and JSON value.
pub fn write(level: Level, message: &str, fields: &[(String, String)]) {
    #[cfg(target_arch = "wasm32")]
    {
        use crate::wasm::bindings::base::tidegate::plugin::log as imp;
        let level = match level {
            Level::Debug => imp::Level::Debug,
            Level::Info => imp::Level::Info,
            Level::Warn => imp::Level::Warn,
            Level::Error => imp::Level::Error,
        };
        imp::write(level, message, fields);
    }
    #[cfg(not(target_arch = "wasm32"))]
    super::fake::write_log(level, message, fields);
}

/// Writes a line for authors.
pub fn debug(message: &str) {
    write(Level::Debug, message, &[]);
}

/// Writes a line about a noteworthy event.
pub fn info(message: &str) {
    write(Level::Info, message, &[]);
}

/// Writes a line about something to look at.
pub fn warn(message: &str) {
    write(Level::Warn, message, &[]);
}

/// Writes a line about something that broke.
pub fn error(message: &str) {
    write(Level::Error, message, &[]);
}
