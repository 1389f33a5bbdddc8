//! One question to one model, for plugins: past all stages, so that a guard that asks a model is not asked about its
//! own question. The model's own limits and queues hold as for everyone; the caller's limits count what the
//! caller asked for, not what the server asks besides.

use crate::bounds::LengthBounds;
use crate::context::RequestContext;
use crate::gate::Gate;
use crate::models::{Model, ModelBackend};
use crate::source::SourceEvent;
use crate::stages::{Ask, seeds, source, who};
use std::sync::Arc;
use tidegate_ledger::{Charge, Ledger, Tally};
use tidegate_types::{Chat, DeltaKind, Fault, FinishReason, Reject, RejectKind, Usage};
use tidegate_upstream::Attempts;

/// Bytes of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// What a model said.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The answer's text.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// What it cost, where somebody counted.
    pub usage: Option<Usage>,
}

/// Asks a model; dropping the future stops its work. What it costs is written down in `ledger` as the caller's.
pub async fn ask(
    model: &Arc<Model>,
    chat: &Chat,
    cx: &RequestContext,
    gate: &Gate,
    ledger: Option<&Arc<Ledger>>,
) -> Result<Asked, Reject> {
    let charge = ledger.map(|ledger| Arc::new(ledger.follow(who(chat, cx))));
    let tally = charge.as_ref().map_or_else(Arc::<Tally>::default, |charge| Arc::clone(charge.tally()));
    let hold = gate.enter(model, chat, [], &tally).await?;
    let asked = read(model, chat, cx, charge.as_ref(), &tally).await;
    drop(hold);
    if let Some(charge) = charge {
        charge.settle(if asked.is_ok() { "answered" } else { "failed" });
    }
    asked
}

async fn read(
    model: &Arc<Model>,
    chat: &Chat,
    cx: &RequestContext,
    charge: Option<&Arc<Charge>>,
    tally: &Arc<Tally>,
) -> Result<Asked, Reject> {
    let seeds = seeds(chat.sampling.seed, 1);
    let bounds = LengthBounds::of_model(&model.quota.load());
    let attempts = &Attempts::default();
    let ask = Ask { model, chat, cx, seeds: &seeds, bounds, charge, tally, attempts };
    let mut source = source(ask, Vec::new()).await?;
    let mut asked = Asked { text: String::new(), finish: FinishReason::Stop, usage: None };
    while let Some(event) = source.next().await {
        match event? {
            SourceEvent::Usage(usage) => asked.usage = Some(usage),
            SourceEvent::Delta(delta) => match delta.kind {
                DeltaKind::Text { text, .. } => asked.text.push_str(&text),
                DeltaKind::Finish(reason) => asked.finish = reason,
                DeltaKind::Reasoning(_) | DeltaKind::Refusal(_) | DeltaKind::ToolCall { .. } => {}
            },
        }
        if asked.text.len() > MAX_ANSWER_BYTES {
            return Err(Reject::internal(Fault::Engine, format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
        }
    }
    Ok(asked)
}

/// One vector for each text.
pub async fn embed(model: &Model, texts: &[String]) -> Result<Vec<Vec<f32>>, Reject> {
    match &model.backend {
        ModelBackend::Upstream(replicas) => replicas.embed(texts).await,
        ModelBackend::Engine(_) => Err(cannot(model, "makes no vectors")),
    }
}

/// The labels of each text, highest score first.
pub async fn classify(model: &Model, texts: &[String]) -> Result<Vec<Vec<(String, f32)>>, Reject> {
    match &model.backend {
        ModelBackend::Upstream(replicas) => replicas.classify(texts).await,
        ModelBackend::Engine(_) => Err(cannot(model, "gives no labels")),
    }
}

fn cannot(model: &Model, what: &str) -> Reject {
    let message = format!("model `{}` {what}; name one of an upstream that does", model.name);
    Reject::new(RejectKind::Invalid, Fault::Operator, message).code("unsupported_model")
}
