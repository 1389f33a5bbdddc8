//! What a stream guard may withhold under test.

use anyhow::anyhow;
use tidegate_sandbox::Plugin;

/// How much the guard may withhold: what it promises, and no more than the server lets it.
#[derive(Clone, Copy)]
pub(super) struct Cap {
    pub(super) promised: Option<u32>,
    pub(super) most: usize,
}

impl Cap {
    pub(super) fn of(plugin: &Plugin, most: usize) -> Self {
        Self { promised: plugin.descriptor().holdback_bytes, most }
    }

    pub(super) fn bytes(self) -> usize {
        self.promised.map_or(self.most, |promised| self.most.min(promised as usize))
    }

    /// What a server would end the answer for.
    pub(super) fn passed(self, withheld: usize) -> anyhow::Error {
        match self.promised {
            Some(promised) if (promised as usize) < self.most => {
                anyhow!("it withholds {withheld} bytes, and its descriptor promises at most {promised}")
            }
            _ => anyhow!(
                "it withholds {withheld} bytes, and a server ends the answer at more than {} (`limits.holdback_bytes` of the \
                 stage); where operators are to allow more, say so here: `[limits] holdback_bytes = {withheld}`",
                self.most
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_withholds_what_it_promises_and_no_more_than_a_server_lets_it() {
        for (promised, bytes, why) in [
            (None, 512, "a server ends the answer at more than 512"),
            (Some(64), 64, "its descriptor promises at most 64"),
            (Some(4096), 512, "a server ends the answer at more than 512"),
        ] {
            let cap = Cap { promised, most: 512 };
            assert_eq!(cap.bytes(), bytes);
            assert!(cap.passed(9999).to_string().contains(why), "{}", cap.passed(9999));
        }
    }
}
