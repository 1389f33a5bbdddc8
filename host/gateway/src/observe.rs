//! The process's one metrics recorder. Read next: `apart.rs`, for where figures are counted, and `told.rs`, for what each says.

mod apart;
mod told;

pub(crate) use apart::Metrics;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often what histograms were told is added to their buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// What plugins observe.
const OBSERVED: &str = "tidegate_plugin_values";

/// Upper bounds, in seconds, that resolve a plugin's microseconds and a long answer alike.
const SECONDS: [f64; 18] = [
    0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    30.0, 120.0,
];

/// The same for what plugins observe, whatever it is in.
const VALUES: [f64; 20] =
    [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7];

/// Installs the recorder, once in a process, and gives what renders it.
pub(crate) fn recorder() -> anyhow::Result<Arc<Metrics>> {
    static METRICS: OnceLock<Result<Arc<Metrics>, String>> = OnceLock::new();
    let install = || {
        let buckets = [(Matcher::Suffix("_seconds".into()), &SECONDS[..]), (Matcher::Full(OBSERVED.into()), &VALUES)];
        let builder = buckets.into_iter().try_fold(PrometheusBuilder::new(), |builder, (figures, bounds)| {
            builder.set_buckets_for_metric(figures, bounds).map_err(|error| error.to_string())
        });
        let metrics = Arc::new(Metrics::new(builder?.build_recorder()));
        told::describe(&*metrics);
        metrics::set_global_recorder(Arc::clone(&metrics)).map_err(|error| error.to_string())?;
        Ok(metrics)
    };
    METRICS.get_or_init(install).clone().map_err(|error| anyhow::anyhow!("metrics do not start: {error}"))
}

/// Keeps histograms small, for ever: the recorder holds each observation until then, or until somebody reads the metrics,
/// which nobody may ever do.
pub(crate) async fn upkeep(metrics: Arc<Metrics>) {
    every(UPKEEP_EVERY, move || metrics.run_upkeep()).await;
}

/// On a thread of its own: there may be much of it, and requests are waiting for this one.
async fn every(pause: Duration, work: impl Fn() + Clone + Send + 'static) {
    loop {
        tokio::time::sleep(pause).await;
        // One that panics is done again, too.
        let _ = tokio::task::spawn_blocking(work.clone()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn what_is_done_every_so_often_is_done_again() {
        let done = Arc::new(Notify::new());
        let (work, twice) = (Arc::clone(&done), async {
            done.notified().await;
            done.notified().await;
        });
        tokio::select! {
            () = every(Duration::from_millis(1), move || work.notify_one()) => {}
            outcome = tokio::time::timeout(Duration::from_secs(20), twice) => outcome.unwrap(),
        }
    }
}
