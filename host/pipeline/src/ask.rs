//! One question to one model, for plugins: past all stages, so that a guard that asks a model is not asked about its
//! own question. The model's own limits and queues hold as for everyone; the caller's limits count what the
//! caller asked for, not what the server asks besides.
//!
//! A question holds no place itself: it is asked for a request that holds one, or behind an answer, by work that does
//! (`background.rs`). Where that ends before a long text has been encoded, the work on it keeps its turn until it stops, as
//! its tenant's (`tidegate-turns`).

use crate::bounds::LengthBounds;
use crate::context::RequestContext;
use crate::embed::{Bill, Reading, Wanted, as_chat, vectors};
use crate::estimate::estimated_input;
use crate::figures::Outcome;
use crate::gate::{Gate, Hold};
pub use crate::labels::Labels;
use crate::labels::labels;
use crate::models::Model;
use crate::source::SourceEvent;
use crate::stages::{Ask, seeds, source, who};
use std::sync::Arc;
use tidegate_ledger::{Charge, Ledger, Tally};
use tidegate_types::{Chat, DeltaKind, EmbedInput, EmbedRequest, Fault, FinishReason, Reject, Usage};
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

/// Who asks, and where what that costs is counted and written down.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Who is asked.
    pub model: &'a Arc<Model>,
    /// On whose behalf.
    pub cx: &'a RequestContext,
    /// Counts for the model's limits.
    pub gate: &'a Gate,
    /// Has what it costs as the caller's.
    pub ledger: Option<&'a Arc<Ledger>>,
}

/// A question that was let in; what it costs is billed however it ends.
struct Question {
    charge: Option<Arc<Charge>>,
    tally: Arc<Tally>,
    hold: Hold,
}

impl Question {
    fn end<T>(self, answer: Result<T, Reject>) -> Result<T, Reject> {
        if let Some(charge) = self.charge {
            charge.settle(answer.as_ref().map_or_else(Outcome::of, |_| Outcome::Answered).as_str());
        }
        answer
    }
}

impl Asking<'_> {
    /// Asks for an answer; dropping the future stops its work.
    pub async fn complete(self, chat: &Arc<Chat>) -> Result<Asked, Reject> {
        self.model.check_answers()?;
        let question = self.begin(chat).await?;
        let asked = read(self, chat, &question).await;
        question.end(asked)
    }

    /// One vector for each text.
    pub async fn embed(self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, Reject> {
        let (asked, chat) = self.about(texts);
        let question = self.begin(&chat).await?;
        let made = self.vectors(&asked, &chat, &question).await;
        question.end(made)
    }

    /// The labels of each text, highest score first.
    pub async fn classify(self, texts: Vec<String>) -> Result<Vec<Labels>, Reject> {
        let (asked, chat) = self.about(texts);
        let question = self.begin(&chat).await?;
        let labels = self.labels(&asked, &chat, &question).await;
        question.end(labels)
    }

    async fn begin(self, chat: &Chat) -> Result<Question, Reject> {
        let charge = self.ledger.map(|ledger| Arc::new(ledger.follow(who(chat, self.cx))));
        let tally = charge.as_ref().map_or_else(Arc::<Tally>::default, |charge| Arc::clone(charge.tally()));
        let hold = self.gate.enter(self.model, chat, [], &tally).await?;
        Ok(Question { charge, tally, hold })
    }

    /// A question about texts, as models and as limits know it.
    fn about(self, texts: Vec<String>) -> (EmbedRequest, Chat) {
        let inputs = texts.into_iter().map(EmbedInput::Text).collect();
        let asked = EmbedRequest { model: self.model.name.clone(), inputs, dimensions: None, user: None };
        let chat = as_chat(&asked);
        (asked, chat)
    }

    async fn vectors(self, asked: &EmbedRequest, chat: &Chat, question: &Question) -> Result<Vec<Vec<f32>>, Reject> {
        let reading = self.reading(asked, Wanted::Vectors, chat, question).await?;
        let counted = (&*question.tally, &Attempts::default());
        Ok(vectors(self.model, asked, reading, self.cx, counted).await?.vectors)
    }

    async fn labels(self, asked: &EmbedRequest, chat: &Chat, question: &Question) -> Result<Vec<Labels>, Reject> {
        let reading = self.reading(asked, Wanted::Labels, chat, question).await?;
        labels(self.model, asked, reading, self.cx, (&question.tally, &Attempts::default())).await
    }

    /// What the model is to read, which is set aside.
    async fn reading(
        self,
        asked: &EmbedRequest,
        wanted: Wanted,
        chat: &Chat,
        question: &Question,
    ) -> Result<Reading, Reject> {
        let bounds = LengthBounds::of_model(&self.model.quota.load());
        let holds = (estimated_input(chat, []), question.hold.kept());
        let reading = Reading::of(self.model, asked, wanted, &bounds, &self.cx.caller, holds).await?;
        if let Some(charge) = &question.charge {
            charge.reserve(&self.model.name, reading.num_tokens, 0)?;
        }
        Ok(reading)
    }
}

async fn read(asking: Asking<'_>, chat: &Arc<Chat>, question: &Question) -> Result<Asked, Reject> {
    let Asking { model, cx, .. } = asking;
    let Question { charge, tally, .. } = question;
    let seeds = seeds(chat.sampling.seed, 1);
    let bounds = LengthBounds::of_model(&model.quota.load());
    let (charge, attempts) = (charge.as_ref(), &Attempts::default());
    let ask = Ask { model, chat, cx, seeds: &seeds, bounds, charge, tally, attempts, seat: None };
    let bill = Bill { tally, attempts, num_tokens: estimated_input(chat, []) };
    let mut source = source(ask, Vec::new(), question.hold.kept()).await?;
    bill.end(true);
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
