//! An observer that writes one structured line for each request: who (a pseudonym), which model, what became of it,
//! what it cost, how long it took and what the guards saw. It reaches nothing but the log, and is told no content.
//! Read next: [`record`].

pub mod record;

use record::{Detail, Record};
use serde::Deserialize;
use tidegate_plugin_sdk::host::{clock, log, metrics};
use tidegate_plugin_sdk::{Context, Descriptor, Error, Observer, Plugin, Setting, Severity, Summary};

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    outcomes: Vec<String>,
    only_findings: bool,
    min_severity: String,
    findings: Detail,
    level: String,
}

/// The plugin.
#[derive(Debug)]
pub struct AuditObserver {
    config: Config,
    level: log::Level,
    min_severity: Severity,
}

const SEVERITIES: [&str; 5] = ["info", "low", "medium", "high", "critical"];
const OUTCOMES: [&str; 4] = ["answered", "failed", "refused", "client-gone"];

impl Plugin for AuditObserver {
    type Config = Config;

    fn describe() -> Descriptor {
        let details = ["each", "counts", "none"];
        Descriptor::new("audit-observer", env!("CARGO_PKG_VERSION"), "Writes one structured line for each request")
            .setting(Setting::choices("outcomes", &OUTCOMES, &[], "Only requests that ended so; empty: all"))
            .setting(Setting::switch("only_findings", false, "Only requests in which a guard saw something"))
            .setting(Setting::choice("min_severity", &SEVERITIES, "info", "Findings below are left out"))
            .setting(Setting::choice("findings", &details, "counts", "How findings are written"))
            .setting(Setting::choice("level", &["debug", "info", "warn"], "info", "The level of the lines"))
            .metric("requests_recorded", "lines written")
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if let Some(unknown) = config.outcomes.iter().find(|name| !OUTCOMES.contains(&name.as_str())) {
            let known = OUTCOMES.join(", ");
            return Err(Error::InvalidConfig(format!("no request ends as `{unknown}`; `outcomes` are: {known}")));
        }
        let level = match config.level.as_str() {
            "debug" => log::Level::Debug,
            "warn" => log::Level::Warn,
            _ => log::Level::Info,
        };
        let min_severity = match config.min_severity.as_str() {
            "low" => Severity::Low,
            "medium" => Severity::Medium,
            "high" => Severity::High,
            "critical" => Severity::Critical,
            _ => Severity::Info,
        };
        Ok(Self { config, level, min_severity })
    }
}

impl Observer for AuditObserver {
    fn on_complete(&self, ctx: &Context, summary: &Summary) -> Result<(), Error> {
        let Config { outcomes, only_findings, findings, .. } = &self.config;
        let seen: Vec<_> = summary.findings.iter().filter(|finding| finding.severity >= self.min_severity).collect();
        let is_wanted = outcomes.is_empty() || outcomes.contains(&summary.outcome);
        if !is_wanted || (*only_findings && seen.is_empty()) {
            return Ok(());
        }
        let record = Record { ctx, summary, findings: &seen, ended_unix_ms: clock::now_unix_ms() };
        log::write(self.level, "request", &record.fields(*findings));
        metrics::count("requests_recorded", 1);
        Ok(())
    }
}

tidegate_plugin_sdk::export!(AuditObserver: Observer);

#[cfg(test)]
mod tests;
