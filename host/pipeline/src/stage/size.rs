//! How much a plugin was given to read, and what its failure means where that is the reason: who chose the size shall take the
//! plugin away from nobody else.

use tidegate_sandbox::stage::CallError;
use tidegate_types::{Fault, Reject, RejectKind};

/// A plugin that uses up its CPU time or memory on more than this has met its limits, and one that does so on less is out of
/// order. Of so much the slowest of the shipped guards reads the worst text that was found in a third of its time, on a slow machine.
const LARGE_BYTES: usize = 16 << 10;

/// The code of a refusal of what is larger than a closed stage can read.
pub(crate) const TOO_LONG: &str = "too_long_to_check";

/// Bytes that a plugin is to read, by who chose how many they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    /// The caller, or whoever wrote what came from outside.
    Sent(usize),
    /// The model.
    Said(usize),
}

impl Size {
    pub(crate) fn is_large(self) -> bool {
        let (Self::Sent(num_bytes) | Self::Said(num_bytes)) = self;
        num_bytes > LARGE_BYTES
    }

    /// What a closed stage's failure is where this is the reason: trying again would not help.
    pub(super) fn too_long(self, limit: &str, failure: Reject) -> Reject {
        let (text, remedy) = match self {
            Self::Sent(num_bytes) => (format!("{num_bytes} bytes"), "send a shorter text"),
            Self::Said(num_bytes) => {
                (format!("{num_bytes} bytes that the model wrote"), "ask for a shorter answer (`max_tokens`)")
            }
        };
        let message = format!(
            "a required check of this server cannot read {text} within its {limit}; {remedy}, or have that limit raised"
        );
        let reject = Reject::new(RejectKind::Invalid, Fault::Client, message).code(TOO_LONG);
        match failure.cause {
            Some(cause) => reject.because(cause),
            None => reject,
        }
    }
}

/// The limit that a larger input needs more of.
pub(super) fn outgrown(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::Deadline { clock: "cpu", .. } => Some("limits.cpu_ms"),
        CallError::Memory { .. } => Some("limits.memory_mib"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_that_a_text_is_too_long_can_shorten_it() {
        let failure = || Reject::unavailable(Fault::Plugin, "no", 1).because("it trapped");
        for (size, text, remedy) in [
            (Size::Sent(70_000), "cannot read 70000 bytes within", "send a shorter text"),
            (Size::Said(70_000), "cannot read 70000 bytes that the model wrote within", "`max_tokens`"),
        ] {
            let Reject { message, code, cause, .. } = size.too_long("limits.cpu_ms", failure());
            assert!(message.contains(text) && message.contains(remedy), "{message}");
            assert_eq!((code.as_deref(), cause.is_some()), (Some(TOO_LONG), true));
        }
        assert!(Size::Said(16_385).is_large() && !Size::Sent(16_384).is_large());
    }
}
