//! Handles of the metrics that every request and every event touches, looked up once. A look-up by name builds the
//! labels, hashes them and takes the registry's lock, which costs more than what is counted.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use tidegate_sandbox::stage::StageKind;
use tidegate_types::{Caller, Class, Fault, Reject, RejectKind, TenantId};

/// The figures of one stage's plugin.
#[derive(Clone, Default)]
pub struct StageFigures(Arc<StageHandles>);

#[derive(Default)]
struct StageHandles {
    calls: [OnceLock<Histogram>; StageKind::ALL.len()],
    holdback: OnceLock<Histogram>,
    prefiltered: OnceLock<Counter>,
    glanced: [OnceLock<Counter>; StageKind::ALL.len()],
    tools: OnceLock<Arc<KnownTools>>,
}

/// Tools that are counted by name.
type KnownTools = Mutex<BTreeSet<String>>;

/// Tools of one plugin that are counted by name; further ones are counted together. A plugin may name tools anew for each request,
/// and a series stays for ever.
const MAX_TOOLS: usize = 64;
const OTHER_TOOLS: &str = "other";

/// By the names of their plugins, for as long as the series stay: of one name there may be several stages, and a reload makes all
/// anew.
static KNOWN_TOOLS: Mutex<BTreeMap<Arc<str>, Arc<KnownTools>>> = Mutex::new(BTreeMap::new());

impl StageFigures {
    /// How long calls take.
    pub(crate) fn calls(&self, plugin: &Arc<str>, kind: StageKind) -> &Histogram {
        self.0.calls[kind as usize].get_or_init(
            || histogram!("tidegate_plugin_call_seconds", "plugin" => Arc::clone(plugin), "stage" => kind.as_str()),
        )
    }

    /// For how long text is kept back.
    pub(crate) fn holdback(&self, plugin: &Arc<str>) -> &Histogram {
        self.0.holdback.get_or_init(|| histogram!("tidegate_plugin_holdback_seconds", "plugin" => Arc::clone(plugin)))
    }

    /// Windows that it was not asked about.
    pub(crate) fn prefiltered(&self, plugin: &Arc<str>) -> &Counter {
        let counted = || counter!("tidegate_plugin_prefiltered_total", "plugin" => Arc::clone(plugin));
        self.0.prefiltered.get_or_init(counted)
    }

    /// Windows, or prompts, that it let go at a glance.
    pub(crate) fn glanced(&self, plugin: &Arc<str>, kind: StageKind) -> &Counter {
        self.0.glanced[kind as usize].get_or_init(
            || counter!("tidegate_plugin_glanced_total", "plugin" => Arc::clone(plugin), "stage" => kind.as_str()),
        )
    }

    /// Counts a call of one of its tools.
    pub(crate) fn count_tool(&self, plugin: &Arc<str>, tool: &str) {
        let tool = self.label_of(plugin, tool);
        counter!("tidegate_tool_calls_total", "plugin" => Arc::clone(plugin), "tool" => tool).increment(1);
    }

    fn label_of(&self, plugin: &Arc<str>, tool: &str) -> String {
        let known = || {
            let mut known = KNOWN_TOOLS.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(Arc::clone(plugin)).or_default())
        };
        let mut tools = self.0.tools.get_or_init(known).lock().unwrap_or_else(PoisonError::into_inner);
        if tools.len() < MAX_TOOLS {
            tools.insert(tool.to_owned());
        }
        if tools.contains(tool) { tool.to_owned() } else { OTHER_TOOLS.to_owned() }
    }
}

/// Requests that were let in and whose answer has not ended.
static IN_WORK: LazyLock<Gauge> = LazyLock::new(|| gauge!("tidegate_requests_in_work"));

/// Counts a request while it is there.
pub(crate) struct InWork;

impl InWork {
    pub(crate) fn count() -> Self {
        IN_WORK.increment(1.0);
        Self
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        IN_WORK.decrement(1.0);
    }
}

/// How a request can end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    /// By the server or something behind it.
    Failed,
    /// By a guard, a limit or for what it asked.
    Refused,
    ClientGone,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Answered, Self::Failed, Self::Refused, Self::ClientGone];

    /// Of a request that gets this instead of an answer, or of the rest of one.
    pub(crate) fn of(reject: &Reject) -> Self {
        let limited = reject.kind == RejectKind::RateLimited || reject.code.as_deref() == Some("overloaded");
        if reject.fault == Fault::Client || limited { Self::Refused } else { Self::Failed }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::ClientGone => "client-gone",
        }
    }
}

/// What is said of how requests end.
pub fn outcomes() -> [&'static str; 4] {
    Outcome::ALL.map(Outcome::as_str)
}

/// The figures of a tenant's requests of one class to a model, whichever of its projects they are for: projects come and
/// go without a bound, and series stay.
pub(crate) struct RequestFigures {
    ended: [Counter; Outcome::ALL.len()],
    pub(crate) input_tokens: Counter,
    pub(crate) output_tokens: Counter,
    pub(crate) seconds: Histogram,
    pub(crate) to_first_token: Histogram,
}

impl RequestFigures {
    fn new(model: &str, tenant: &TenantId, class: Class) -> Self {
        let labels =
            [("model", model.to_owned()), ("tenant", tenant.to_string()), ("class", class.as_str().to_owned())];
        let ended = |outcome: Outcome| {
            let labels = labels.iter().cloned().chain([("outcome", outcome.as_str().to_owned())]);
            counter!("tidegate_requests_total", &labels.collect::<Vec<_>>())
        };
        Self {
            ended: Outcome::ALL.map(ended),
            input_tokens: counter!("tidegate_input_tokens_total", &labels),
            output_tokens: counter!("tidegate_output_tokens_total", &labels),
            seconds: histogram!("tidegate_request_seconds", &labels),
            to_first_token: histogram!("tidegate_time_to_first_token_seconds", &labels),
        }
    }

    pub(crate) fn ended(&self, outcome: Outcome) -> &Counter {
        &self.ended[outcome as usize]
    }
}

/// The figures of `caller`'s requests to `model`, which each thread has looked up once. There are as many as the registry
/// has series, which lives as long.
pub(crate) fn of_requests(model: &str, caller: &Caller) -> Arc<RequestFigures> {
    type Known = HashMap<(TenantId, Class), HashMap<String, Arc<RequestFigures>>>;
    thread_local!(static KNOWN: RefCell<Known> = RefCell::default());
    let whose = (caller.tenant.clone(), caller.class);
    let make = || Arc::new(RequestFigures::new(model, &caller.tenant, caller.class));
    let find = |known: &RefCell<Known>| {
        let mut known = known.borrow_mut();
        if let Some(figures) = known.get(&whose).and_then(|models| models.get(model)) {
            return Arc::clone(figures);
        }
        let models = known.entry(whose.clone()).or_default();
        Arc::clone(models.entry(model.to_owned()).or_insert_with(make))
    };
    // A thread that ends knows nothing any more.
    KNOWN.try_with(find).unwrap_or_else(|_| make())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_a_plugin_names_anew_each_time_are_few_series_however_often_it_is_loaded() {
        let (plugin, other) = (Arc::from("names-anew"), Arc::from("another"));
        let loaded: [StageFigures; 3] = Default::default();
        let names = (0..3 * MAX_TOOLS).map(|number| format!("tool_{number}"));
        let labels: BTreeSet<String> =
            names.zip(loaded.iter().cycle()).map(|(name, figures)| figures.label_of(&plugin, &name)).collect();
        assert_eq!((labels.len(), labels.contains(OTHER_TOOLS)), (MAX_TOOLS + 1, true));
        for figures in &loaded {
            assert_eq!(figures.label_of(&plugin, "tool_0"), "tool_0", "one that was known before");
        }
        assert_eq!(StageFigures::default().label_of(&other, "tool_last"), "tool_last");
    }
}
