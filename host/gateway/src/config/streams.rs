//! `[server.streams]`: the logs of resumable streams.

use anyhow::bail;
use serde::Deserialize;
use std::time::Duration;
use tidegate_api::StreamLimits;

/// Bounds of the logs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct StreamsConfig {
    /// How long a stream that has ended can still be read.
    pub keep_s: u64,
    /// What one log holds, beside the large events that came last and say much of it again; past that its oldest are dropped.
    pub log_kib: usize,
    /// What all logs hold together.
    pub total_mib: usize,
    /// Logs of one tenant, all its projects together; past that those that ended first go early, and while all run there is
    /// room for no further one.
    pub per_tenant: usize,
    /// Random characters make events alike in size, where `stream_options.include_obfuscation` does not say.
    pub obfuscation: bool,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        let limits = StreamLimits::default();
        Self {
            keep_s: limits.keep.as_secs(),
            log_kib: limits.log_bytes >> 10,
            total_mib: limits.total_bytes >> 20,
            per_tenant: limits.per_tenant,
            obfuscation: true,
        }
    }
}

impl StreamsConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.log_kib == 0 {
            bail!("server.streams.log_kib is 0, and no event could wait for its reader; it must be at least 1");
        }
        if self.log_kib > self.total_mib << 10 {
            let (one, all) = (self.log_kib, self.total_mib);
            bail!(
                "server.streams.log_kib is {one}, more than the total_mib = {all} of all logs; raise that, or lower it"
            );
        }
        Ok(())
    }

    /// For the HTTP side.
    pub fn to_limits(&self) -> StreamLimits {
        StreamLimits {
            keep: Duration::from_secs(self.keep_s),
            log_bytes: self.log_kib << 10,
            total_bytes: self.total_mib << 20,
            per_tenant: self.per_tenant,
        }
    }
}
