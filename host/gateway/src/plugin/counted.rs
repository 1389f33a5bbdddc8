//! What a plugin counts while a case runs, by `metrics.count`: a case can expect it, and of an observer, which answers
//! nothing, it can expect little else.

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the sandbox counts what plugins do; the label `name` says what.
const EVENTS: &str = "tidegate_plugin_events_total";

/// Sums by name. An instance keeps the handles that it was given first, so that one recorder is there for all cases.
#[derive(Clone, Default)]
pub(super) struct Counted(Arc<Mutex<BTreeMap<String, u64>>>);

impl Counted {
    /// What was counted since it was asked last.
    pub(super) fn take(&self) -> BTreeMap<String, u64> {
        take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.labels().find(|label| label.key() == "name") {
            Some(name) if key.name() == EVENTS => {
                Counter::from_arc(Arc::new(Count { all: self.clone(), name: name.value().to_owned() }))
            }
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A handle of one name.
struct Count {
    all: Counted,
    name: String,
}

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        let mut sums = self.all.lock();
        let sum = sums.entry(self.name.clone()).or_default();
        *sum = sum.saturating_add(value);
    }

    /// No plugin sets a counter.
    fn absolute(&self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_plugins_count_is_summed_by_name_until_it_is_taken() {
        let counted = Counted::default();
        let seen =
            metrics::with_local_recorder(&counted, || metrics::counter!(EVENTS, "plugin" => "p", "name" => "seen"));
        seen.increment(2);
        seen.increment(3);
        metrics::with_local_recorder(&counted, || metrics::counter!("another", "name" => "seen").increment(1));
        assert_eq!(counted.take(), BTreeMap::from([("seen".to_owned(), 5)]));
        // As an instance does that lives on.
        seen.increment(1);
        assert_eq!(counted.take(), BTreeMap::from([("seen".to_owned(), 1)]));
        assert!(counted.take().is_empty());
    }
}
