//! The figures that dashboards read, as the exporter writes them.

use metrics_exporter_prometheus::PrometheusBuilder;
use std::time::Duration;
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{EngineConfig, EngineHandle};
use tidegate_types::{Class, Job, JobEvent, SamplingParams, TenantId};

#[tokio::test]
async fn figures_have_our_names_and_those_of_vllm() {
    let exporter = PrometheusBuilder::new().install_recorder().unwrap();
    let facts = toy::facts(50, 256);
    let config = EngineConfig { kv_cache_mib: Some(1), ..EngineConfig::default() };
    let factory = |limits| Ok(Box::new(ToyExecutor::new(50, limits, Faults::default())) as Box<_>);
    let engine = EngineHandle::start(config, facts, Box::new(factory)).unwrap();
    for _ in 0..2 {
        let mut stream = engine.submit(job(&engine)).unwrap();
        while let Some(event) = stream.next().await {
            assert!(!matches!(event, JobEvent::Failed(_)));
        }
    }
    engine.shutdown(Duration::from_secs(60)).await;
    let text = exporter.render();
    for line in [
        "vllm:num_requests_running{model_name=\"toy\"} 0",
        "vllm:num_requests_waiting{model_name=\"toy\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"toy\"} 0",
        "vllm:prefix_cache_queries_total{model_name=\"toy\"} 80",
        "vllm:prefix_cache_hits_total{model_name=\"toy\"} 32",
        "vllm:prompt_tokens_total{model_name=\"toy\"} 80",
        "vllm:generation_tokens_total{model_name=\"toy\"} 10",
        "vllm:num_preemptions_total{model_name=\"toy\"} 0",
        "tidegate_engine_prompt_tokens_total{model=\"toy\"} 80",
        "tidegate_engine_jobs_total{model=\"toy\",outcome=\"finished\"} 2",
        "tidegate_engine_restarts_total{model=\"toy\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

fn job(engine: &EngineHandle) -> Job {
    Job {
        id: engine.next_job_id(),
        prompt: vec![3; 40],
        sampling: SamplingParams::greedy(),
        max_tokens: 5,
        stop_token_ids: vec![],
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}
