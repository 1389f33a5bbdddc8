//! Why an engine does not start. What goes wrong with a job is a `Reject`, in that job's stream.

use tidegate_device::DeviceError;

/// The engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The operator must change the `[engine]` table.
    #[error("{0}")]
    Config(String),
    /// The backend could not load the model.
    #[error("loading the model: {0}")]
    Load(DeviceError),
    /// The operating system refused a thread or a process.
    #[error("starting {what}: {cause}")]
    Spawn {
        /// What was to be started.
        what: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// No random key for the prefix cache could be had.
    #[error("the system's random source failed: {0}")]
    Random(String),
    /// The loop ended before it said that it was ready.
    #[error("the engine ended while it was starting: {0}")]
    Died(String),
}

// Not `#[from]`, which makes it the source too: the message has it, and who prints sources would say it twice.
impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        Self::Load(error)
    }
}
