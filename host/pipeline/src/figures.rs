//! Handles of the metrics that every request and every event touches, looked up once. A look-up by name builds the
//! labels, hashes them and takes the registry's lock, which costs more than what is counted.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};
use tidegate_sandbox::stage::StageKind;
use tidegate_types::{Caller, TenantId};

/// The figures of one stage's plugin.
#[derive(Clone, Default)]
pub struct StageFigures(Arc<StageHandles>);

#[derive(Default)]
struct StageHandles {
    calls: [OnceLock<Histogram>; StageKind::ALL.len()],
    holdback: OnceLock<Histogram>,
}

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
}

/// Requests that are being answered.
pub(crate) static IN_WORK: LazyLock<Gauge> = LazyLock::new(|| gauge!("tidegate_requests_in_work"));

/// How a request can end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    Failed,
    ClientGone,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Answered, Self::Failed, Self::ClientGone];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::ClientGone => "client-gone",
        }
    }
}

/// The figures of a tenant's requests to a model, whichever of its projects they are for: projects come and go without a
/// bound, and series stay.
pub(crate) struct RequestFigures {
    ended: [Counter; Outcome::ALL.len()],
    pub(crate) input_tokens: Counter,
    pub(crate) output_tokens: Counter,
    pub(crate) seconds: Histogram,
    pub(crate) to_first_token: Histogram,
}

impl RequestFigures {
    fn new(model: &str, tenant: &TenantId) -> Self {
        let labels = [("model", model.to_owned()), ("tenant", tenant.to_string())];
        let ended = |outcome: Outcome| {
            let [(_, model), (_, tenant)] = labels.clone();
            counter!("tidegate_requests_total", "model" => model, "tenant" => tenant, "outcome" => outcome.as_str())
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

/// The figures of `caller`'s requests to `model`. There are as many as the registry has series, which lives as long.
pub(crate) fn of_requests(model: &str, caller: &Caller) -> Arc<RequestFigures> {
    type Known = RwLock<HashMap<TenantId, HashMap<String, Arc<RequestFigures>>>>;
    static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
    let tenant = &caller.tenant;
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(figures) = known.get(tenant).and_then(|models| models.get(model)) {
        return Arc::clone(figures);
    }
    drop(known);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let models = known.entry(tenant.clone()).or_default();
    Arc::clone(models.entry(model.to_owned()).or_insert_with(|| Arc::new(RequestFigures::new(model, tenant))))
}
