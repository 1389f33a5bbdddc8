//! Starts the first turn on the first candidate that takes it, so that a refusal has its own status.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::models::{Model, ModelBackend};
use crate::source::{EngineSource, Source, UpstreamSource};
use crate::stages::fit::{self, Fitted};
use crate::stages::shorten::shorten;
use crate::states::{Ended, Equipped, Request, Routed, ServerTool};
use std::sync::Arc;
use tidegate_ledger::{Charge, Tally};
use tidegate_types::{Chat, Fault, Form, Part, Reject, RejectKind, ToolDef};

/// Text that takes longer than this to encode (about 1 us a byte) would hold up the other requests of its thread.
const LONG_TEXT_BYTES: usize = 16 << 10;

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
    pub(crate) async fn start(self: &Arc<Self>, routed: Routed) -> Result<Started, Ended> {
        let charge = routed.equipped.request.charge.clone();
        let started = self.start_first(routed).await;
        if let (Err(_), Some(charge)) = (&started, charge) {
            charge.settle("failed");
        }
        started
    }

    async fn start_first(self: &Arc<Self>, routed: Routed) -> Result<Started, Ended> {
        let Routed { equipped: Equipped { mut request, tools }, candidates } = routed;
        let seeds = fit::seeds(request.chat.sampling.seed, request.chat.n);
        let mut last = None;
        for model in candidates {
            if matches!(model.backend, ModelBackend::Upstream(_)) {
                request = self.settled(request).await?;
            }
            if request.may_shorten {
                request = shortened(&model, request, &tools).await?;
            }
            match generate(&model, &request, &tools, &seeds).await {
                Ok(source) => {
                    // The engine reads the prompt meanwhile; a refusal drops `source`, which stops it.
                    request = self.settled(request).await?;
                    return Ok(Started { turn: TurnPlan { request, tools, model, seeds }, source });
                }
                Err(reject) if may_try_another(&reject) => {
                    tracing::warn!(request = %request.cx.request_id, model = %model.name, "{reject}");
                    last = Some(reject);
                }
                Err(reject) => return Err(reject.into()),
            }
        }
        Err(last.unwrap_or_else(|| Reject::internal(Fault::Operator, "no candidate")).into())
    }
}

impl TurnPlan {
    /// Starts the next turn on the same model.
    pub(crate) async fn generate(&self) -> Result<Source, Reject> {
        generate(&self.model, &self.request, &self.tools, &self.seeds).await
    }
}

/// Counting the tokens of a long history takes its time, and no other request's.
async fn shortened(model: &Arc<Model>, mut request: Request, tools: &[ServerTool]) -> Result<Request, Reject> {
    let (model, defs) = (Arc::clone(model), tools.iter().map(|tool| tool.def.clone()).collect::<Vec<_>>());
    let shortening = tokio::task::spawn_blocking(move || {
        let left_out = shorten(&model, &mut request.chat, &defs)?;
        request.left_out += left_out;
        Ok(request)
    });
    shortening.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?
}

async fn generate(
    model: &Arc<Model>,
    request: &Request,
    tools: &[ServerTool],
    seeds: &[u64],
) -> Result<Source, Reject> {
    let defs = tools.iter().map(|tool| tool.def.clone()).collect();
    source(model, &request.chat, &request.cx, defs, seeds, request.charge.as_ref()).await
}

/// Tokens of an answer that nobody bounds, for what is set aside before an upstream is asked.
const UNBOUNDED_OUTPUT: u64 = 4096;

/// Begins a turn of `chat`, with the server's tools `defs`, on `model`, billed to `charge`.
pub(crate) async fn source(
    model: &Arc<Model>,
    chat: &Chat,
    cx: &RequestContext,
    defs: Vec<ToolDef>,
    seeds: &[u64],
    charge: Option<&Arc<Charge>>,
) -> Result<Source, Reject> {
    let fitted = if text_bytes(chat) > LONG_TEXT_BYTES {
        let (model, chat, seeds) = (Arc::clone(model), chat.clone(), seeds.to_vec());
        let fit = tokio::task::spawn_blocking(move || fit::fit(&model, &chat, &defs, &seeds));
        fit.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))??
    } else {
        fit::fit(model, chat, &defs, seeds)?
    };
    match (fitted, &model.backend) {
        (Fitted::Engine(turn), ModelBackend::Engine(engine)) => {
            let output = u64::from(turn.max_tokens) * turn.sampling.len() as u64;
            let tally = reserved(charge, model, turn.prompt.len() as u64, output)?;
            let source = EngineSource::start(engine, turn, &cx.caller, tally);
            Ok(Source::Engine(Box::new(source.map_err(|reject| rename_param(reject, chat.form))?)))
        }
        (Fitted::Upstream(chat), ModelBackend::Upstream(upstream)) => {
            let input = (text_bytes(&chat) as u64).div_ceil(BYTES_PER_TOKEN);
            let output = chat.max_tokens.map_or(UNBOUNDED_OUTPUT, u64::from) * u64::from(chat.n);
            let tally = reserved(charge, model, input, output)?;
            let stream = upstream.generate(&chat, &cx.request_id, cx.hops + 1).await?;
            Ok(Source::Upstream(Box::new(UpstreamSource::new(stream, input, tally))))
        }
        _ => Err(Reject::internal(Fault::Operator, "fit and backend disagree")),
    }
}

/// A token of an upstream's prompt, until the upstream has counted.
const BYTES_PER_TOKEN: u64 = 4;

/// Sets aside what a turn may cost; gives where its tokens are counted.
fn reserved(
    charge: Option<&Arc<Charge>>,
    model: &Model,
    input: u64,
    output: u64,
) -> Result<Option<Arc<Tally>>, Reject> {
    let Some(charge) = charge else { return Ok(None) };
    charge.reserve(&model.name, input, output)?;
    Ok(Some(Arc::clone(charge.tally())))
}

/// The engine knows one prompt; callers of the older endpoint sent it under another name.
fn rename_param(mut reject: Reject, form: Form) -> Reject {
    if form != Form::Chat && reject.param.as_deref() == Some("messages") {
        reject.param = Some("prompt".into());
    }
    reject
}

pub(super) fn text_bytes(chat: &Chat) -> usize {
    let parts = chat.messages.iter().flat_map(|message| &message.parts);
    parts
        .map(|part| match part {
            Part::Text(text) | Part::Reasoning(text) | Part::Refusal(text) => text.len(),
            Part::ToolOutcome(outcome) => outcome.content.len(),
            Part::ToolCall(call) => call.arguments.len(),
            Part::Opaque { .. } => 0,
        })
        .sum()
}

/// Nothing has been said yet, and the next model may be better off.
fn may_try_another(reject: &Reject) -> bool {
    matches!(
        reject.kind,
        RejectKind::Unavailable | RejectKind::BadUpstream | RejectKind::UpstreamTimeout | RejectKind::RateLimited
    )
}
