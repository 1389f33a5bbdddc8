//! What the tests share: guests by name, one sandbox for all of them, calls with little ceremony.

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, KvStore, MemoryKv, Namespace};
use tidegate_sandbox::stage::{CallContext, CallError, Channel, Limits, Prompt, Verdict, Window};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Caller, Message, RequestId, Retention, Role, TenantId};
use tokio::sync::Semaphore;

/// A config for tests: room for few instances, so that many sandboxes fit beside each other; compiled guests are
/// kept in the target directory.
pub fn small() -> SandboxConfig {
    let cache_dir = Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    SandboxConfig { cache_dir, total_instances: 32, total_waiting_instances: 32, ..SandboxConfig::default() }
}

/// The sandbox of the tests that need no bounds of their own.
pub fn shared() -> &'static Sandbox {
    static SHARED: LazyLock<Sandbox> = LazyLock::new(|| Sandbox::new(small()).expect("the sandbox starts"));
    &SHARED
}

/// A guest's component: the committed one, or the one that `cargo xtask plugins --into` has built from source, as in CI.
pub fn guest(name: &str) -> Vec<u8> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist");
    let folder = std::env::var_os("TIDEGATE_TEST_PLUGINS").map_or_else(committed, PathBuf::from);
    let path = folder.join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A guest that says something else in place of a part of its descriptor, in as many bytes: what it takes less is blank. Of a key
/// that is there twice the last counts.
pub fn saying(name: &str, part: &str, instead: &str) -> Vec<u8> {
    let mut component = guest(name);
    let at =
        component.windows(part.len()).position(|bytes| bytes == part.as_bytes()).expect("it says so as it is built");
    let instead = format!("{instead:<0$}", part.len());
    component[at..at + part.len()].copy_from_slice(instead.as_bytes());
    component
}

/// A guest with patient limits: tests run beside others on busy machines, so a deadline is hit only on purpose.
pub fn spec(name: &str) -> PluginSpec {
    let limits = Limits { cpu: Duration::from_secs(10), wall: Duration::from_secs(60), ..Limits::default() };
    PluginSpec { limits, ..PluginSpec::new(name, guest(name)) }
}

/// A guest in the shared sandbox.
pub fn load(name: &str) -> Arc<Plugin> {
    shared().load(spec(name)).expect("the guest loads")
}

/// A call of tenant `tenant`.
pub fn by(tenant: &str) -> CallContext {
    let caller = Arc::new(Caller { tenant: TenantId::new(tenant), ..Caller::local() });
    let (retention, deadline) = (Retention::Kept, Duration::from_secs(60));
    CallContext { request_id: RequestId::new("r1"), caller, hops: 0, retention, deadline, began: None, streaming: true }
}

/// A call of some tenant.
pub fn ctx() -> CallContext {
    by("local")
}

/// A prompt of one message, `m0`.
pub fn user(text: &str) -> Vec<Message> {
    vec![Message::text("m0", Role::User, text)]
}

/// Asks a prompt guard about one message.
pub async fn inspect(plugin: &Plugin, ctx: &CallContext, text: &str) -> Result<Verdict, CallError> {
    let messages = user(text);
    plugin.inspect_prompt(ctx, Prompt { messages: &messages, tools: &[], params: &[] }).await
}

/// A window of the answer's text.
pub fn window(text: &str, settled: u32) -> Window<'_> {
    Window { seq: 0, choice: 0, channel: &Channel::Text, text, settled, ending: None }
}

/// `kv` in memory that a test looks into.
pub struct WatchedKv {
    kept: MemoryKv,
    /// How often somebody read.
    pub reads: AtomicUsize,
    /// What was written: the owner, the key, and the value where one was set.
    pub written: Mutex<Vec<String>>,
    /// Has a permit for each read that is answered; absent where all are, at once.
    pub gate: Option<Semaphore>,
}

impl WatchedKv {
    /// That does as memory does.
    pub fn open() -> Arc<Self> {
        Self::with(None)
    }

    /// As a database that is away: lets nobody read, until its gate has permits.
    pub fn stalled() -> Arc<Self> {
        Self::with(Some(Semaphore::new(0)))
    }

    fn with(gate: Option<Semaphore>) -> Arc<Self> {
        Arc::new(Self { kept: MemoryKv::new(1 << 20), reads: AtomicUsize::new(0), written: Mutex::default(), gate })
    }

    /// Whether that was written, anywhere.
    pub fn has(&self, what: &str) -> bool {
        self.written.lock().iter().any(|written| written.contains(what))
    }
}

impl KvStore for WatchedKv {
    fn waits(&self) -> bool {
        self.gate.is_some()
    }

    fn get_many<'a>(
        &'a self,
        space: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if let Some(gate) = &self.gate {
                gate.acquire().await.expect("nobody closes it").forget();
            }
            self.kept.get_many(space, keys, most).await
        })
    }

    fn set<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        self.written.lock().push(format!("{} {key} {}", space.owner, String::from_utf8_lossy(&value)));
        self.kept.set(space, key, value, ttl, quota)
    }

    fn increment<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        self.written.lock().push(format!("{} {key}", space.owner));
        self.kept.increment(space, key, delta, ttl, quota)
    }

    fn delete<'a>(&'a self, space: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        self.kept.delete(space, key)
    }
}

/// Counters and observations by their keys, in words.
#[derive(Default)]
pub struct Counted {
    pub counts: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    /// In their order.
    pub observed: Arc<Mutex<Vec<(String, f64)>>>,
}

impl Counted {
    /// What was counted by that key.
    #[track_caller]
    pub fn count(&self, key: &str) -> u64 {
        self.counts.lock()[key].load(Ordering::SeqCst)
    }
}

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.counts.lock().entry(in_words(key)).or_default()))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Observed(in_words(key), Arc::clone(&self.observed))))
    }
}

struct Observed(String, Arc<Mutex<Vec<(String, f64)>>>);

impl HistogramFn for Observed {
    fn record(&self, value: f64) {
        self.1.lock().push((self.0.clone(), value));
    }
}

fn in_words(key: &Key) -> String {
    let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
    format!("{} {}", key.name(), labels.join(" "))
}

/// Runs a future and answers with what was logged under the target `plugin` meanwhile, on this thread.
pub async fn logged<T>(work: impl Future<Output = T>) -> (T, Vec<String>) {
    use tracing::instrument::WithSubscriber;
    let lines = Lines::default();
    let output = work.with_subscriber(lines.clone()).await;
    let lines = lines.0.lock().clone();
    (output, lines)
}

/// Collects events as text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.target() == "plugin"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write;
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
