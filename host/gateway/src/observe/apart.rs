//! What is counted, counted apart: each thread adds to a place of its own, and the sum is made when somebody reads. A
//! number that all threads add to is fetched from another core for each request, which costs more than what is counted.
//!
//! Invariant: what is rendered has everything that was recorded before.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// As many samples of one thread are handed on together.
const SAMPLES_TOGETHER: usize = 1024;

/// A recorder in front of that of Prometheus.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    rendering: PrometheusHandle,
    counters: Table<ApartCounter>,
    gauges: Table<ApartGauge>,
    histograms: Table<ApartHistogram>,
    /// Held while what was recorded is handed on and read: nobody reads between the two.
    reading: Mutex<()>,
}

impl Metrics {
    pub(super) fn new(recorder: PrometheusRecorder) -> Self {
        let rendering = recorder.handle();
        let (counters, gauges, histograms) = (Table::default(), Table::default(), Table::default());
        Self { recorder, rendering, counters, gauges, histograms, reading: Mutex::new(()) }
    }

    /// All figures, as Prometheus reads them.
    pub(crate) fn render(&self) -> String {
        let _reading = self.hand_on();
        self.rendering.render()
    }

    /// Adds what histograms were told to their buckets.
    pub(super) fn run_upkeep(&self) {
        let _reading = self.hand_on();
        self.rendering.run_upkeep();
    }

    fn hand_on(&self) -> MutexGuard<'_, ()> {
        let reading = lock(&self.reading);
        self.counters.each(ApartCounter::hand_on);
        self.gauges.each(ApartGauge::hand_on);
        self.histograms.each(ApartHistogram::hand_on);
        reading
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_counter(name, unit, text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_gauge(name, unit, text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_histogram(name, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let make = || ApartCounter { own: Places::new(), sum: self.recorder.register_counter(key, metadata) };
        Counter::from_arc(self.counters.find(key, make))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let sum = || self.recorder.register_gauge(key, metadata);
        Gauge::from_arc(self.gauges.find(key, || ApartGauge {
            base: Number::default(),
            own: Places::new(),
            sum: sum(),
        }))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let make = || ApartHistogram { own: Places::new(), all: self.recorder.register_histogram(key, metadata) };
        Histogram::from_arc(self.histograms.find(key, make))
    }
}

/// What there is by name and labels: whoever asks for the same is given the same.
struct Table<T>(RwLock<HashMap<Key, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

// What may change of a key is a memory of its hash.
#[allow(clippy::mutable_key_type)]
impl<T> Table<T> {
    fn find(&self, key: &Key, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Arc::clone(known);
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(key.clone()).or_insert_with(|| Arc::new(make())))
    }

    fn each(&self, of: impl Fn(&T)) {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().for_each(|known| of(known));
    }
}

/// How many places there are: more than threads that record often, so that two of those seldom have the same.
static NUM_PLACES: LazyLock<usize> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * processors).next_power_of_two().min(32)
});

/// The places of one metric, each made when a thread first needs it: most tenants are served by a few. Threads that share
/// one wait for each other, and nothing worse.
struct Places<T>(Box<[OnceLock<Box<Place<T>>>]>);

/// A line of the cache for itself, with the one that is fetched beside it.
#[derive(Default)]
#[repr(align(128))]
struct Place<T>(T);

impl<T: Default> Places<T> {
    fn new() -> Self {
        Self((0..*NUM_PLACES).map(|_| OnceLock::new()).collect())
    }

    fn of_this_thread(&self) -> &T {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed));
        &self.0[NUMBER.with(|number| number & (self.0.len() - 1))].get_or_init(Box::default).0
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|place| Some(&place.get()?.0))
    }
}

struct ApartCounter {
    own: Places<AtomicU64>,
    sum: Counter,
}

impl ApartCounter {
    fn hand_on(&self) {
        self.sum.absolute(self.own.iter().map(|place| place.load(Ordering::Relaxed)).sum());
    }
}

impl CounterFn for ApartCounter {
    fn increment(&self, value: u64) {
        self.own.of_this_thread().fetch_add(value, Ordering::Relaxed);
    }

    /// For totals that somebody else counts; what is told those is not added to. The higher of two counts.
    fn absolute(&self, value: u64) {
        self.sum.absolute(value);
    }
}

/// An `f64` by its bits.
#[derive(Default)]
struct Number(AtomicU64);

impl Number {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, value: f64) {
        let sum = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // It always gives a sum.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

/// What was set last, less what had been added by then; and what each thread has added.
struct ApartGauge {
    base: Number,
    own: Places<Number>,
    sum: Gauge,
}

impl ApartGauge {
    fn added(&self) -> f64 {
        self.own.iter().map(Number::get).sum()
    }

    fn hand_on(&self) {
        self.sum.set(self.base.get() + self.added());
    }
}

impl GaugeFn for ApartGauge {
    fn increment(&self, value: f64) {
        self.own.of_this_thread().add(value);
    }

    fn decrement(&self, value: f64) {
        self.own.of_this_thread().add(-value);
    }

    fn set(&self, value: f64) {
        self.base.set(value - self.added());
    }
}

struct ApartHistogram {
    own: Places<Mutex<Vec<f64>>>,
    all: Histogram,
}

impl ApartHistogram {
    /// Of a thread that records no more, nothing is kept.
    fn hand_on(&self) {
        for place in self.own.iter() {
            std::mem::take(&mut *lock(place)).into_iter().for_each(|sample| self.all.record(sample));
        }
    }
}

impl HistogramFn for ApartHistogram {
    fn record(&self, value: f64) {
        let mut samples = lock(self.own.of_this_thread());
        samples.push(value);
        // Under the lock: who finds none left here finds them there.
        if samples.len() >= SAMPLES_TOGETHER {
            samples.drain(..).for_each(|sample| self.all.record(sample));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
