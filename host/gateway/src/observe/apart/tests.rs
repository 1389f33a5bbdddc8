//! What threads count apart is read as one.

use super::*;
use metrics::{counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use std::thread;

const THREADS: usize = 8;

fn metrics() -> Metrics {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[1.0]).unwrap();
    Metrics::new(builder.build_recorder())
}

fn on_threads(metrics: &Metrics, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| with_local_recorder(metrics, &work));
        }
    });
}

fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no `{series}` in\n{text}")).parse().unwrap()
}

#[test]
fn what_all_threads_recorded_is_read_as_one() {
    let metrics = metrics();
    on_threads(&metrics, || {
        let (count, level, times) = (counter!("count"), gauge!("level"), histogram!("took_seconds"));
        for _ in 0..SAMPLES_TOGETHER + 10 {
            count.increment(2);
            level.increment(3.0);
            level.decrement(2.0);
            times.record(0.5);
        }
    });
    let all = (THREADS * (SAMPLES_TOGETHER + 10)) as f64;
    assert_eq!(value(&metrics, "count"), 2.0 * all);
    assert_eq!(value(&metrics, "level"), all);
    assert_eq!(value(&metrics, "took_seconds_bucket{le=\"1\"}"), all);
    assert_eq!(value(&metrics, "took_seconds_sum"), 0.5 * all);
    assert_eq!(value(&metrics, "took_seconds_count"), all, "what was read is not read twice");
}

#[test]
fn what_was_recorded_before_is_read_whoever_reads_too() {
    let metrics = metrics();
    on_threads(&metrics, || {
        let (count, times) = (counter!("mine", "of" => name()), histogram!("took_seconds", "of" => name()));
        for so_far in 1..=300 {
            count.increment(1);
            times.record(0.5);
            let label = format!("{{of=\"{}\"}}", name());
            assert_eq!(value(&metrics, &format!("mine{label}")), f64::from(so_far));
            assert_eq!(value(&metrics, &format!("took_seconds_count{label}")), f64::from(so_far));
        }
    });
}

fn name() -> String {
    format!("{:?}", thread::current().id())
}

#[test]
fn a_gauge_is_what_was_set_last_and_what_was_added_since() {
    let metrics = metrics();
    on_threads(&metrics, || gauge!("level").increment(5.0));
    with_local_recorder(&metrics, || gauge!("level").set(2.0));
    assert_eq!(value(&metrics, "level"), 2.0);
    on_threads(&metrics, || gauge!("level").decrement(1.0));
    assert_eq!(value(&metrics, "level"), 2.0 - THREADS as f64);
}

#[test]
fn a_counter_takes_totals_that_are_counted_elsewhere() {
    let metrics = metrics();
    let told = |total| with_local_recorder(&metrics, || counter!("total").absolute(total));
    told(7);
    assert_eq!(value(&metrics, "total"), 7.0);
    told(9);
    assert_eq!(value(&metrics, "total"), 9.0);
}

#[test]
fn who_asks_for_the_same_metric_again_is_given_the_same() {
    let metrics = metrics();
    on_threads(&metrics, || {
        for _ in 0..100 {
            counter!("count", "of" => "all").increment(1);
            gauge!("level", "of" => "all").increment(1.0);
            histogram!("took_seconds", "of" => "all").record(1.0);
        }
    });
    let known = [
        metrics.counters.0.read().unwrap().len(),
        metrics.gauges.0.read().unwrap().len(),
        metrics.histograms.0.read().unwrap().len(),
    ];
    assert_eq!(known, [1, 1, 1]);
    assert_eq!(value(&metrics, "count{of=\"all\"}"), 100.0 * THREADS as f64);
}

#[test]
fn samples_are_bounded_while_nobody_reads() {
    let metrics = metrics();
    with_local_recorder(&metrics, || {
        (0..10 * SAMPLES_TOGETHER + 1).for_each(|_| histogram!("took_seconds").record(1.0))
    });
    metrics.histograms.each(|histogram| {
        assert_eq!(histogram.own.iter().map(|place| lock(place).len()).sum::<usize>(), 1);
    });
    metrics.run_upkeep();
    metrics.histograms.each(|histogram| {
        assert_eq!(histogram.own.iter().map(|place| lock(place).capacity()).sum::<usize>(), 0);
    });
}

#[test]
fn a_metric_has_places_for_the_threads_that_use_it_only() {
    let metrics = metrics();
    with_local_recorder(&metrics, || counter!("count").increment(1));
    metrics.counters.each(|counter| assert_eq!(counter.own.iter().count(), 1));
}
