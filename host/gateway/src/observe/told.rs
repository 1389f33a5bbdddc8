//! What each figure of `/metrics` says, on its `# HELP` line. The tests hold this table against the sources, which record
//! the figures, and against the guides, which name them.

use metrics::{KeyName, Recorder, SharedString};

/// Every figure of Tidegate's. Those under vLLM's names are the same numbers as ours.
const TOLD: &[(&str, &str)] = &[
    ("tidegate_background_dropped_total", "Memories and ends for observers that were left out, by what"),
    ("tidegate_behind_pauses_total", "Times that a model which writes titles or summaries was left alone"),
    ("tidegate_behind_total", "Titles and summaries, by how that went"),
    ("tidegate_budget_alerts_total", "Alerts of budgets, by scope and bound"),
    ("tidegate_budget_refusals_total", "Requests that a budget refused, by scope and window"),
    ("tidegate_engine_computed_tokens_total", "Positions that the engine computed"),
    ("tidegate_engine_generation_tokens_total", "Tokens that the engine generated"),
    ("tidegate_engine_jobs_total", "Jobs of the engine, by outcome"),
    ("tidegate_engine_kv_usage", "Part of the cache that is in use, from 0 to 1"),
    ("tidegate_engine_mask_seconds", "Time of steps for finding the tokens that may come in answers held to a schema"),
    ("tidegate_engine_preemptions_total", "Jobs that gave their blocks to another and began anew"),
    ("tidegate_engine_prefix_hits_total", "Prompt tokens that the prefix cache had"),
    ("tidegate_engine_prefix_queries_total", "Prompt tokens that were looked for in the prefix cache"),
    ("tidegate_engine_prompt_tokens_total", "Tokens of prompts"),
    ("tidegate_engine_queued_tokens", "Tokens of the jobs that wait"),
    ("tidegate_engine_restarts_total", "Times that the engine's process was started again"),
    ("tidegate_engine_running", "Jobs that are in the batch"),
    ("tidegate_engine_steps_total", "Steps of the engine"),
    ("tidegate_engine_tokens_per_second", "Tokens that the engine computes in a second, of late"),
    ("tidegate_engine_waiting", "Jobs that wait"),
    ("tidegate_event_failures_total", "Deliveries of usage events that failed"),
    ("tidegate_events_sent_total", "Usage events that were delivered"),
    ("tidegate_events_waiting", "Usage events that are not delivered"),
    ("tidegate_fallbacks_total", "Answers of another model than the first choice"),
    ("tidegate_grammar_compile_seconds", "Time for compiling what answers are held to, by outcome"),
    ("tidegate_holdback_halts_total", "Answers that ended since a closed guard withheld more than its cap"),
    ("tidegate_http_connections", "Connections that are open"),
    ("tidegate_http_connections_refused_total", "Connections above server.max_connections"),
    ("tidegate_http_request_duration_seconds", "Time of HTTP requests until their answers' ends, by route"),
    ("tidegate_http_requests_total", "HTTP requests, by route, status and outcome"),
    ("tidegate_idempotency_keys_total", "Requests with an Idempotency-Key, by what was found for it"),
    ("tidegate_input_tokens_total", "Tokens of prompts, by model, tenant and class"),
    ("tidegate_issuer_fetches_total", "Fetches of issuers' keys, by issuer and outcome"),
    ("tidegate_ledger_drain_failures_total", "Times that the database did not take what the journal has"),
    ("tidegate_ledger_drained_segment", "Number of the journal's file up to which the database has all"),
    ("tidegate_ledger_open", "Generations that are not settled"),
    ("tidegate_ledger_recovered_total", "Generations that a crash left open and that were settled at a start"),
    ("tidegate_limit_denials_total", "Requests that a limit refused, by reason and limit"),
    ("tidegate_limits_alone_total", "Requests that this gateway counted without the shared server"),
    ("tidegate_output_tokens_total", "Tokens of answers, by model, tenant and class"),
    ("tidegate_plugin_call_seconds", "Time of plugins' calls"),
    ("tidegate_plugin_events_total", "What plugins count themselves, by name"),
    ("tidegate_plugin_failures_total", "Calls of plugins that failed, by case"),
    ("tidegate_plugin_holdback_seconds", "Time for which guards kept text back"),
    ("tidegate_plugin_kv_failures_total", "Calls of plugins that the store did not answer"),
    ("tidegate_plugin_log_lines_dropped_total", "Log lines of plugins that were left out, being too many"),
    ("tidegate_plugin_memory_peak_bytes", "The most memory that one instance has had"),
    ("tidegate_plugin_pauses_total", "Times that a plugin was left out for failing"),
    ("tidegate_plugin_glanced_total", "Windows of streams, and prompts, that a guard let go at a glance"),
    ("tidegate_plugin_prefiltered_total", "Windows of streams on which a guard's descriptor had the answer"),
    ("tidegate_plugin_values", "What plugins observe themselves, by name"),
    ("tidegate_plugin_vectors_failures_total", "Calls of plugins for vectors that the store did not answer"),
    ("tidegate_plugin_verdicts_total", "Verdicts of guards other than to let pass"),
    ("tidegate_reloads_total", "Reloads, by outcome"),
    ("tidegate_request_seconds", "Time of generations"),
    ("tidegate_requests_in_work", "Requests between admission and the end of their answer"),
    ("tidegate_requests_total", "Generations, by outcome"),
    ("tidegate_scope_denials_total", "Requests for what their key may not use"),
    ("tidegate_shared_corrections_lost_total", "Corrections of shared limits that did not arrive"),
    ("tidegate_shared_losses_total", "Times that a connection to the shared server was given up"),
    ("tidegate_shared_up", "1 where the shared server answers"),
    ("tidegate_store_writes_total", "Writes to the database, by outcome"),
    ("tidegate_stream_reads_total", "Reads of resumable streams, from the start or from an event on"),
    ("tidegate_time_to_first_token_seconds", "Time until the first token"),
    ("tidegate_tokens_total", "Tokens of issuers that were shown, by outcome"),
    ("tidegate_tool_calls_total", "Calls of the server's tools, by plugin and tool"),
    ("tidegate_unjudged_bytes_total", "Bytes of text that left without a verdict"),
    ("tidegate_upstream_attempts_total", "Requests to upstreams, by outcome"),
    ("tidegate_upstream_breaker_state", "0 where an upstream is asked, 1 where it is left alone, 2 where it is tried"),
    ("tidegate_upstream_outstanding", "Requests that are at an upstream"),
    ("tidegate_upstream_retries_total", "Requests that were sent to upstreams again"),
    ("tidegate_upstream_retry_budget_exhausted_total", "Requests that were not sent again, the budget being used up"),
];

/// Tells a recorder what its figures say.
pub(super) fn describe(recorder: &impl Recorder) {
    for (name, text) in TOLD {
        let (key, text) = (KeyName::from_const_str(name), SharedString::const_str(text));
        match name {
            name if name.ends_with("_total") => recorder.describe_counter(key, None, text),
            name if name.ends_with("_seconds") || name.ends_with("_values") => {
                recorder.describe_histogram(key, None, text);
            }
            _ => recorder.describe_gauge(key, None, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Adds the texts of all files below a folder that end so.
    fn texts(folder: &Path, ending: &str, all: &mut Vec<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                texts(&path, ending, all);
            } else if path.to_string_lossy().ends_with(ending) && !path.ends_with("observe/told.rs") {
                all.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// The names that the sources give to what records.
    fn recorded() -> BTreeSet<String> {
        let mut all = Vec::new();
        for krate in std::fs::read_dir(repository().join("host")).unwrap() {
            texts(&krate.unwrap().path().join("src"), ".rs", &mut all);
        }
        let mut found = BTreeSet::new();
        for text in &all {
            // `level` and `total` are the engine's, for two names at once.
            for open in ["counter!(", "gauge!(", "histogram!(", "level(model,", "total(model,"] {
                let names =
                    text.split(open).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
                found.extend(names.filter(|name| name.starts_with("tidegate_")).map(str::to_owned));
            }
        }
        found
    }

    #[test]
    fn every_figure_is_told_and_no_other_is() {
        let told: BTreeSet<String> = TOLD.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(recorded(), told);
    }

    #[test]
    fn every_figure_is_in_a_guide() {
        let mut guides = vec![std::fs::read_to_string(repository().join("wit/README.md")).unwrap()];
        texts(&repository().join("docs"), ".md", &mut guides);
        let guides = guides.concat();
        let missing: Vec<&str> =
            TOLD.iter().map(|(name, _)| *name).filter(|name| !guides.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/operating.md, Metrics, or another guide names {missing:?}");
    }

    #[test]
    fn what_is_told_stands_before_the_figure() {
        let recorder = PrometheusBuilder::new().build_recorder();
        describe(&recorder);
        with_local_recorder(&recorder, || metrics::counter!("tidegate_requests_total").increment(1));
        let text = recorder.handle().render();
        assert!(text.contains("# HELP tidegate_requests_total Generations, by outcome\n"), "{text}");
    }
}
