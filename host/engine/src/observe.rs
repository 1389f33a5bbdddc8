//! Prometheus figures: our own names, and vLLM's for the dashboards, autoscalers and endpoint pickers that read
//! those.
//!
//! They are set from the published figures, so a worker process needs no exporter of its own.

use crate::stats::{EndedJobs, EngineStats};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// One gauge under our name and under vLLM's.
struct Level([Gauge; 2]);

/// One counter under our name and under vLLM's.
struct Total([Counter; 2]);

/// Handles of all figures of one engine. Made once: install the recorder before the engine starts.
pub(crate) struct Gauges {
    running: Level,
    waiting: Level,
    kv_usage: Level,
    prefix_queries: Total,
    prefix_hits: Total,
    preemptions: Total,
    prompt_tokens: Total,
    generation_tokens: Total,
    steps: Counter,
    computed_tokens: Counter,
    jobs: [Counter; 3],
    restarts: Counter,
    queued_tokens: Gauge,
    tokens_per_second: Gauge,
    mask_seconds: Histogram,
}

impl Gauges {
    pub(crate) fn new(model: &str) -> Self {
        let job = |outcome| counter!("tidegate_engine_jobs_total", "model" => model.to_owned(), "outcome" => outcome);
        Self {
            running: level(model, "tidegate_engine_running", "vllm:num_requests_running"),
            waiting: level(model, "tidegate_engine_waiting", "vllm:num_requests_waiting"),
            kv_usage: level(model, "tidegate_engine_kv_usage", "vllm:kv_cache_usage_perc"),
            prefix_queries: total(model, "tidegate_engine_prefix_queries_total", "vllm:prefix_cache_queries_total"),
            prefix_hits: total(model, "tidegate_engine_prefix_hits_total", "vllm:prefix_cache_hits_total"),
            preemptions: total(model, "tidegate_engine_preemptions_total", "vllm:num_preemptions_total"),
            prompt_tokens: total(model, "tidegate_engine_prompt_tokens_total", "vllm:prompt_tokens_total"),
            generation_tokens: total(model, "tidegate_engine_generation_tokens_total", "vllm:generation_tokens_total"),
            steps: counter!("tidegate_engine_steps_total", "model" => model.to_owned()),
            computed_tokens: counter!("tidegate_engine_computed_tokens_total", "model" => model.to_owned()),
            jobs: [job("finished"), job("failed"), job("cancelled")],
            restarts: counter!("tidegate_engine_restarts_total", "model" => model.to_owned()),
            queued_tokens: gauge!("tidegate_engine_queued_tokens", "model" => model.to_owned()),
            tokens_per_second: gauge!("tidegate_engine_tokens_per_second", "model" => model.to_owned()),
            mask_seconds: histogram!("tidegate_engine_mask_seconds", "model" => model.to_owned()),
        }
    }

    /// Notes a step's time for masks, if it had any.
    pub(crate) fn masked(&self, spent: Duration) {
        if spent > Duration::ZERO {
            self.mask_seconds.record(spent.as_secs_f64());
        }
    }

    /// Jobs that have ended, also between two looks at the rest.
    pub(crate) fn set_ended(&self, ended: &EndedJobs) {
        for (job, count) in self.jobs.iter().zip([ended.finished, ended.failed, ended.cancelled]) {
            job.absolute(count);
        }
    }

    pub(crate) fn set(&self, stats: &EngineStats) {
        let counters = &stats.snapshot.counters;
        // A job that the loop has not seen waits as well.
        let unseen = stats.live_jobs.saturating_sub(stats.snapshot.running + stats.snapshot.waiting);
        self.running.set(stats.snapshot.running as f64);
        self.waiting.set((stats.snapshot.waiting + unseen) as f64);
        self.kv_usage.set(stats.kv_usage());
        self.prefix_queries.set(counters.prefix_queries);
        self.prefix_hits.set(counters.prefix_hits);
        self.preemptions.set(counters.preemptions);
        self.prompt_tokens.set(counters.prompt_tokens);
        self.generation_tokens.set(counters.generation_tokens);
        self.steps.absolute(counters.steps);
        self.computed_tokens.absolute(counters.computed_tokens);
        self.set_ended(&stats.ended);
        self.restarts.absolute(stats.restarts);
        self.queued_tokens.set(stats.queued_tokens as f64);
        self.tokens_per_second.set(stats.tokens_per_second);
    }
}

fn level(model: &str, ours: &'static str, vllm: &'static str) -> Level {
    Level([gauge!(ours, "model" => model.to_owned()), gauge!(vllm, "model_name" => model.to_owned())])
}

fn total(model: &str, ours: &'static str, vllm: &'static str) -> Total {
    Total([counter!(ours, "model" => model.to_owned()), counter!(vllm, "model_name" => model.to_owned())])
}

impl Level {
    fn set(&self, value: f64) {
        self.0.iter().for_each(|gauge| gauge.set(value));
    }
}

impl Total {
    fn set(&self, value: u64) {
        self.0.iter().for_each(|counter| counter.absolute(value));
    }
}

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gauges")
    }
}
