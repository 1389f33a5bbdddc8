//! Handles of the metrics that every request and every event touches, looked up once. A look-up by name builds the
//! labels, hashes them and takes the registry's lock, which costs more than what is counted.

use metrics::{Counter, Histogram, counter, histogram};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};
use tidegate_sandbox::stage::StageKind;
use tidegate_types::TenantId;

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

/// The figures of a tenant's requests to a model.
pub(crate) struct RequestFigures {
    pub(crate) input_tokens: Counter,
    pub(crate) output_tokens: Counter,
    pub(crate) seconds: Histogram,
    pub(crate) to_first_token: Histogram,
}

impl RequestFigures {
    fn new(model: &str, tenant: &TenantId) -> Self {
        let labels = [("model", model.to_owned()), ("tenant", tenant.to_string())];
        Self {
            input_tokens: counter!("tidegate_input_tokens_total", &labels),
            output_tokens: counter!("tidegate_output_tokens_total", &labels),
            seconds: histogram!("tidegate_request_seconds", &labels),
            to_first_token: histogram!("tidegate_time_to_first_token_seconds", &labels),
        }
    }
}

/// The figures of `tenant`'s requests to `model`. There are as many as the registry has series, which lives as long.
pub(crate) fn of_requests(model: &str, tenant: &TenantId) -> Arc<RequestFigures> {
    type Known = RwLock<HashMap<TenantId, HashMap<String, Arc<RequestFigures>>>>;
    static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(figures) = known.get(tenant).and_then(|models| models.get(model)) {
        return Arc::clone(figures);
    }
    drop(known);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let models = known.entry(tenant.clone()).or_default();
    Arc::clone(models.entry(model.to_owned()).or_insert_with(|| Arc::new(RequestFigures::new(model, tenant))))
}
