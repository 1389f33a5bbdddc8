//! The process's one metrics recorder. Read next: `apart.rs`, for where figures are counted, and `told.rs`, for what each says.

mod apart;
mod told;

pub(crate) use apart::Metrics;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often what histograms were told is added to their buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Upper bounds, in seconds, that resolve a plugin's microseconds and a long answer alike.
const SECONDS: [f64; 18] = [
    0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    30.0, 120.0,
];

/// Installs the recorder, once in a process, and gives what renders it.
pub(crate) fn recorder() -> anyhow::Result<Arc<Metrics>> {
    static METRICS: OnceLock<Result<Arc<Metrics>, String>> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS);
        let metrics = Arc::new(Metrics::new(builder.map_err(|error| error.to_string())?.build_recorder()));
        told::describe(&*metrics);
        metrics::set_global_recorder(Arc::clone(&metrics)).map_err(|error| error.to_string())?;
        Ok(metrics)
    };
    METRICS.get_or_init(install).clone().map_err(|error| anyhow::anyhow!("metrics do not start: {error}"))
}

/// Keeps histograms small, for ever: the recorder holds each observation until then, or until somebody reads the metrics,
/// which nobody may ever do.
pub(crate) async fn upkeep(metrics: Arc<Metrics>) {
    every(UPKEEP_EVERY, || metrics.run_upkeep()).await;
}

async fn every(pause: Duration, work: impl Fn()) {
    loop {
        tokio::time::sleep(pause).await;
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn what_is_done_every_so_often_is_done_again() {
        let done = Notify::new();
        let twice = async {
            done.notified().await;
            done.notified().await;
        };
        tokio::select! {
            () = every(Duration::from_millis(1), || done.notify_one()) => {}
            outcome = tokio::time::timeout(Duration::from_secs(20), twice) => outcome.unwrap(),
        }
    }
}
