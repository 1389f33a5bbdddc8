//! What all instances of one plugin have in common, fixed when it is loaded.

use crate::bindings::direct::exports::tidegate::plugin as direct;
use crate::bindings::exports::tidegate::plugin as exports;
use crate::capability::{Documents, HttpAccess, KvStore, LogRate, ModelService, Undeclared, VectorStore};
use crate::config::Fixed;
use crate::registry::{Registry, Work};
use crate::stage::{Grants, Limits, StageKind};
use crate::state::HostState;
use crate::ticker::Clock;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use wasmtime::component::InstancePre;

/// Held where a peak is read to be said, which is seldom.
static SAYING: Mutex<()> = Mutex::new(());

/// The parts of an instance that are the same each time.
#[derive(Clone)]
pub(crate) struct Blueprint {
    pub(crate) name: Arc<str>,
    pub(crate) pre: InstancePre<HostState>,
    pub(crate) stages: StageIndices,
    pub(crate) config: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) grants: Grants,
    pub(crate) documents: Option<Arc<dyn Documents>>,
    pub(crate) http: Option<Arc<HttpAccess>>,
    pub(crate) kv: Arc<dyn KvStore>,
    pub(crate) models: Arc<dyn ModelService>,
    pub(crate) vectors: Arc<dyn VectorStore>,
    /// What its instances may log together.
    pub(crate) log_rate: Arc<LogRate>,
    /// The names that `metrics` accepts.
    pub(crate) metrics: Vec<String>,
    /// In the world of a test: what its instances counted by other names.
    pub(crate) undeclared: Option<Arc<Undeclared>>,
    /// Whether the descriptor says that the plugin refers to secrets.
    pub(crate) declares_secrets: bool,
    pub(crate) configure_cpu: Duration,
    /// Of its guests' CPU time.
    pub(crate) clock: Clock,
    /// Where its instances have their slots and their memory from.
    pub(crate) registry: Arc<Registry>,
    pub(crate) work: Work,
    /// Its guests may be entered on the caller's own stack, and again: they are small, and begin configured, for which they must be
    /// deterministic and import no granted capability.
    pub(crate) direct: bool,
    /// All tenants share the instances.
    pub(crate) shared: bool,
    /// Instances begin as `configure` has left one: it is not called again.
    pub(crate) is_configured: bool,
    /// The most linear memory, tables included, that one instance has had; of one that serves nobody nothing is noted.
    pub(crate) memory_peak: Option<Arc<AtomicUsize>>,
    pub(crate) fixed: Option<Fixed>,
}

impl Blueprint {
    /// Notes what an instance holds, in `tidegate_plugin_memory_peak_bytes` where it is the most so far.
    pub(crate) fn note_memory(&self, bytes: usize) {
        let Some(peak) = &self.memory_peak else { return };
        if peak.fetch_max(bytes, Ordering::Relaxed) < bytes {
            let gauge = metrics::gauge!("tidegate_plugin_memory_peak_bytes", "plugin" => self.name.to_string());
            // Of two at once the one that says it last says what both have come to: it looks while nobody else says anything.
            let _saying = SAYING.lock();
            gauge.set(peak.load(Ordering::Relaxed) as f64);
        }
    }

    /// CPU time of one call of a stage.
    pub(crate) fn call_cpu(&self, stage: StageKind) -> Duration {
        self.limits.stage_cpu.get(&stage).copied().unwrap_or(self.limits.cpu)
    }

    /// The least CPU time that a call of one of its stages may take.
    pub(crate) fn least_cpu(&self) -> Duration {
        self.stages.kinds().into_iter().map(|stage| self.call_cpu(stage)).min().unwrap_or(Duration::MAX)
    }

    /// Live instances of one project, or tenant.
    pub(crate) fn max_instances(&self) -> usize {
        match self.work {
            Work::Compute => self.limits.instances,
            Work::Wait => self.limits.waiting_instances,
        }
    }

    /// Wall time of `describe`, or of making and configuring an instance.
    pub(crate) fn configure_wall(&self) -> Duration {
        configure_wall(self.configure_cpu)
    }
}

/// Wall time of what may take so much CPU when a plugin is loaded; patient, since a busy machine is no fault of the plugin.
pub(crate) fn configure_wall(cpu: Duration) -> Duration {
    (cpu * 5).max(Duration::from_secs(5))
}

/// Where a component's stages are exported; `None` where they are not.
#[derive(Clone)]
pub(crate) struct StageIndices {
    pub(crate) meta: exports::meta::GuestIndices,
    pub(crate) prompt_guard: Option<exports::prompt_guard::GuestIndices>,
    pub(crate) stream_guard: Option<exports::stream_guard::GuestIndices>,
    pub(crate) router: Option<exports::router::GuestIndices>,
    pub(crate) tool_provider: Option<exports::tool_provider::GuestIndices>,
    pub(crate) retriever: Option<exports::retriever::GuestIndices>,
    pub(crate) output_guard: Option<exports::output_guard::GuestIndices>,
    pub(crate) memory: Option<exports::memory::GuestIndices>,
    pub(crate) observer: Option<exports::observer::GuestIndices>,
    /// Of stages that are entered on the caller's own stack, the functions for that.
    pub(crate) direct_prompt_guard: Option<direct::prompt_guard::GuestIndices>,
    pub(crate) direct_stream_guard: Option<direct::stream_guard::GuestIndices>,
    pub(crate) prompt_glance: Option<direct::prompt_glance::GuestIndices>,
    pub(crate) stream_glance: Option<direct::stream_glance::GuestIndices>,
}

impl StageIndices {
    /// Looks for each stage's interface.
    pub(crate) fn find(pre: &InstancePre<HostState>) -> wasmtime::Result<Self> {
        Ok(Self {
            meta: exports::meta::GuestIndices::new(pre)?,
            prompt_guard: exports::prompt_guard::GuestIndices::new(pre).ok(),
            stream_guard: exports::stream_guard::GuestIndices::new(pre).ok(),
            router: exports::router::GuestIndices::new(pre).ok(),
            tool_provider: exports::tool_provider::GuestIndices::new(pre).ok(),
            retriever: exports::retriever::GuestIndices::new(pre).ok(),
            output_guard: exports::output_guard::GuestIndices::new(pre).ok(),
            memory: exports::memory::GuestIndices::new(pre).ok(),
            observer: exports::observer::GuestIndices::new(pre).ok(),
            direct_prompt_guard: direct::prompt_guard::GuestIndices::new(pre).ok(),
            direct_stream_guard: direct::stream_guard::GuestIndices::new(pre).ok(),
            prompt_glance: direct::prompt_glance::GuestIndices::new(pre).ok(),
            stream_glance: direct::stream_glance::GuestIndices::new(pre).ok(),
        })
    }

    /// The stages that are there.
    pub(crate) fn kinds(&self) -> BTreeSet<StageKind> {
        let found = |kind: &StageKind| match kind {
            StageKind::PromptGuard => self.prompt_guard.is_some(),
            StageKind::StreamGuard => self.stream_guard.is_some(),
            StageKind::Router => self.router.is_some(),
            StageKind::ToolProvider => self.tool_provider.is_some(),
            StageKind::Retriever => self.retriever.is_some(),
            StageKind::OutputGuard => self.output_guard.is_some(),
            StageKind::Memory => self.memory.is_some(),
            StageKind::Observer => self.observer.is_some(),
        };
        StageKind::ALL.into_iter().filter(found).collect()
    }

    /// Forgets the stages that the config does not name, so that they can never run.
    pub(crate) fn retain(&mut self, kinds: &BTreeSet<StageKind>) {
        let keeps = |kind| kinds.contains(&kind);
        self.prompt_guard.take_if(|_| !keeps(StageKind::PromptGuard));
        self.stream_guard.take_if(|_| !keeps(StageKind::StreamGuard));
        self.router.take_if(|_| !keeps(StageKind::Router));
        self.tool_provider.take_if(|_| !keeps(StageKind::ToolProvider));
        self.retriever.take_if(|_| !keeps(StageKind::Retriever));
        self.output_guard.take_if(|_| !keeps(StageKind::OutputGuard));
        self.memory.take_if(|_| !keeps(StageKind::Memory));
        self.observer.take_if(|_| !keeps(StageKind::Observer));
        self.direct_prompt_guard.take_if(|_| !keeps(StageKind::PromptGuard));
        self.direct_stream_guard.take_if(|_| !keeps(StageKind::StreamGuard));
        self.prompt_glance.take_if(|_| !keeps(StageKind::PromptGuard));
        self.stream_glance.take_if(|_| !keeps(StageKind::StreamGuard));
    }
}
