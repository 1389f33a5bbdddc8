//! Starts the first turn on the first candidate that takes it, so that a refusal has its own status.

use crate::chat::Pipeline;
use crate::models::{Model, ModelBackend};
use crate::source::{EngineSource, Source};
use crate::stages::fit::{self, Fitted};
use crate::states::{Equipped, Request, Routed, ServerTool};
use std::sync::Arc;
use tidegate_types::{Fault, Reject, RejectKind, ToolDef};

/// A request whose first turn is being generated.
pub(crate) struct Started {
    pub(crate) turn: TurnPlan,
    pub(crate) source: Source,
}

/// What every turn of one answer needs.
pub(crate) struct TurnPlan {
    pub(crate) request: Request,
    pub(crate) tools: Vec<ServerTool>,
    pub(crate) model: Arc<Model>,
    pub(crate) seeds: Vec<u64>,
}

impl Pipeline {
    pub(crate) async fn start(&self, routed: Routed) -> Result<Started, Reject> {
        let Routed { equipped: Equipped { request, tools }, candidates } = routed;
        let seeds = fit::seeds(request.chat.sampling.seed, request.chat.n)?;
        let mut last = None;
        for model in candidates {
            match generate(&model, &request, &tools, &seeds).await {
                Ok(source) => return Ok(Started { turn: TurnPlan { request, tools, model, seeds }, source }),
                Err(reject) if may_try_another(&reject) => {
                    tracing::warn!(request = %request.cx.request_id, model = %model.name, "{reject}");
                    last = Some(reject);
                }
                Err(reject) => return Err(reject),
            }
        }
        Err(last.unwrap_or_else(|| Reject::internal(Fault::Operator, "no candidate")))
    }
}

impl TurnPlan {
    /// Starts the next turn on the same model.
    pub(crate) async fn generate(&self) -> Result<Source, Reject> {
        generate(&self.model, &self.request, &self.tools, &self.seeds).await
    }
}

async fn generate(
    model: &Arc<Model>,
    request: &Request,
    tools: &[ServerTool],
    seeds: &[u64],
) -> Result<Source, Reject> {
    let defs: Vec<ToolDef> = tools.iter().map(|tool| tool.def.clone()).collect();
    match (fit::fit(model, &request.chat, &defs, seeds)?, &model.backend) {
        (Fitted::Engine(turn), ModelBackend::Engine(engine)) => {
            Ok(Source::Engine(Box::new(EngineSource::start(engine, turn, &request.cx.caller)?)))
        }
        (Fitted::Upstream(chat), ModelBackend::Upstream(upstream)) => {
            Ok(Source::Upstream(Box::new(upstream.generate(&chat, &request.cx.request_id).await?)))
        }
        _ => Err(Reject::internal(Fault::Operator, "fit and backend disagree")),
    }
}

/// Nothing has been said yet, and the next model may be better off.
fn may_try_another(reject: &Reject) -> bool {
    matches!(
        reject.kind,
        RejectKind::Unavailable | RejectKind::BadUpstream | RejectKind::UpstreamTimeout | RejectKind::RateLimited
    )
}
