//! The path, on one screen: [`Pipeline::answer`].

use crate::admission::Admission;
use crate::background::Background;
use crate::context::RequestContext;
use crate::gate::Gate;
use crate::models::Models;
use crate::owed::Owed;
use crate::reply::Reply;
use crate::stage::Stage;
use crate::stages::{OutputGuardStage, PricedTools};
use crate::states::{Admitted, Ended};
use std::sync::Arc;
use std::time::Duration;
use tidegate_ledger::Ledger;
use tidegate_types::{Chat, Reject};

/// The configured stages by kind, each kind in the config's order.
#[derive(Clone, Default)]
pub struct Stages {
    /// Decide on prompts, retrieved text and tool results.
    pub prompt_guards: Vec<Stage>,
    /// Prompt guards that only veto, asked while the model reads the prompt already.
    pub late_guards: Vec<Stage>,
    /// Bring passages.
    pub retrievers: Vec<RetrieverStage>,
    /// Bring tools.
    pub tools: Vec<Stage>,
    /// Which of those have prices of their own.
    pub priced: PricedTools,
    /// Order the candidates.
    pub routers: Vec<Stage>,
    /// The models that stand first among what routers are offered, and alone where no router has an opinion. Empty for all
    /// models in the order of the config.
    pub default_route: Vec<String>,
    /// Decide on generated text.
    pub stream_guards: Vec<Stage>,
    /// Decide on whole answers.
    pub output_guards: Vec<OutputGuardStage>,
    /// Remember callers between conversations.
    pub memories: Vec<MemoryStage>,
    /// Are told how requests ended.
    pub observers: Vec<Stage>,
}

impl Stages {
    /// Those that requests meet on their path, be it not each of them. Observers are told of its end, whatever comes of that;
    /// and where models have no turns for tools (`max_tool_turns`), nobody is asked for some.
    fn on_the_path(&self, max_tool_turns: u32) -> impl Iterator<Item = &Stage> {
        let guards = self.prompt_guards.iter().chain(&self.late_guards).chain(&self.stream_guards);
        let guards = guards.chain(self.output_guards.iter().map(|guard| &guard.stage));
        let retrievers = self.retrievers.iter().map(|retriever| &retriever.stage);
        let bringing = retrievers.chain(self.memories.iter().map(|memory| &memory.stage));
        let tools = self.tools.iter().filter(move |_| max_tool_turns > 0);
        guards.chain(bringing).chain(tools).chain(&self.routers)
    }
}

/// A memory, and how much it may bring.
#[derive(Clone)]
pub struct MemoryStage {
    /// The plugin.
    pub stage: Stage,
    /// Items for one question.
    pub top_k: u32,
}

/// A retriever, and how much it may bring.
#[derive(Clone)]
pub struct RetrieverStage {
    /// The plugin.
    pub stage: Stage,
    /// Passages for one question.
    pub top_k: u32,
    /// Passages that score lower are left out.
    pub min_score: f32,
}

/// Bounds of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests between admission and the end of their answer; past it only for tenants below their share of it.
    pub max_inflight: usize,
    /// What one answer may have of the server's tools.
    pub tools: ToolLimits,
    /// Numbers of all vectors that are being made or sent; past it only for tenants below their share of it. Each takes
    /// 4 bytes, and up to 15 more when it is written.
    pub max_vector_numbers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_inflight: 1024, tools: ToolLimits::default(), max_vector_numbers: 32 << 20 }
    }
}

/// Bounds of what one answer has of the server's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolLimits {
    /// Turns in which the model calls them; with 0 it is offered none.
    pub max_turns: u32,
    /// Bytes that they may say, in all turns. It is a prompt as one that a caller sends.
    pub max_bytes: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self { max_turns: 8, max_bytes: 10 << 20 }
    }
}

/// Models and stages, assembled.
pub struct Pipeline {
    pub(crate) models: Models,
    pub(crate) stages: Stages,
    pub(crate) limits: Limits,
    pub(crate) admission: Admission,
    /// Room for the numbers of vectors.
    pub(crate) vectors: Admission,
    pub(crate) gate: Gate,
    pub(crate) background: Background,
    /// Where what is used is written down; `None` where nobody wants that.
    pub(crate) ledger: Option<Arc<Ledger>>,
}

impl Pipeline {
    /// Assembles a pipeline.
    pub fn new(models: Models, stages: Stages, limits: Limits, gate: Gate, ledger: Option<Arc<Ledger>>) -> Arc<Self> {
        let (admission, vectors) = (Admission::new(limits.max_inflight), Admission::new(limits.max_vector_numbers));
        Arc::new(Self { models, stages, limits, admission, vectors, gate, background: Background::default(), ledger })
    }

    /// A pipeline with other stages, and other bounds of their tools, that shares models, admission, the other limits and background
    /// work with this one, which goes on for the requests that it has.
    pub fn with_stages(&self, stages: Stages, tools: ToolLimits) -> Arc<Self> {
        Arc::new(Self {
            models: self.models.clone(),
            stages,
            limits: Limits { tools, ..self.limits.clone() },
            admission: self.admission.clone(),
            vectors: self.vectors.clone(),
            gate: self.gate.clone(),
            background: self.background.clone(),
            ledger: self.ledger.clone(),
        })
    }

    /// Refuses a default route that leads to no answer.
    pub fn check_default_route(&self, stages: &Stages) -> Result<(), Reject> {
        stages.default_route.iter().try_for_each(|name| self.models.get(name)?.check_answers())
    }

    /// Waits for what follows answers that have left, for at most `grace`; says whether all of it ended.
    pub async fn settle(&self, grace: Duration) -> bool {
        self.background.settle(grace).await
    }

    /// The models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Whether requests can get past the stages. Where one did not load and is closed, none can that meets it: why it did not load.
    pub fn check_stages(&self) -> Result<(), Arc<str>> {
        let mut stages = self.stages.on_the_path(self.limits.tools.max_turns);
        stages.find_map(Stage::refuses_all).map_or(Ok(()), Err)
    }

    /// Whether a router chooses a model for callers that ask for [`tidegate_types::ROUTED_MODEL`].
    pub fn routes(&self) -> bool {
        !self.stages.routers.is_empty()
    }

    /// Takes a request through all stages. The answer is made while the reply is read.
    pub async fn answer(self: &Arc<Self>, chat: Chat, cx: RequestContext) -> Result<Reply, Reject> {
        let mut owed = Owed::to(self, &cx, chat.stream);
        let reply = match self.path(chat, cx, &mut owed).await {
            Ok(reply) => reply,
            Err(Ended::Answered(reply)) => *reply,
            Err(Ended::Rejected(reject)) => {
                owed.refused(&reject);
                return Err(reject);
            }
        };
        owed.has_record();
        Ok(reply)
    }

    async fn path(self: &Arc<Self>, chat: Chat, cx: RequestContext, owed: &mut Owed) -> Result<Reply, Ended> {
        let mut admitted = self.admit(chat, cx).await?;
        owed.let_in(&mut admitted.0);
        let allowances = admitted.0.held.allowances();
        self.admitted(admitted).await.map_err(|ended| ended.with(allowances))
    }

    async fn admitted(self: &Arc<Self>, admitted: Admitted) -> Result<Reply, Ended> {
        let loaded = self.load(admitted).await?;
        let screened = self.screen_input(loaded).await?;
        let grounded = self.recall(screened).await?;
        let equipped = self.offer_tools(grounded).await?;
        let routed = self.route(equipped).await?;
        let started = self.start(routed).await?;
        Ok(self.converse(started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, F>(_: impl FnOnce(A) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    /// It is copied when it is boxed, and each stage's place in it is there whether the stage is configured or not.
    #[test]
    fn the_future_of_the_path_is_small() {
        let size = size_of_future(|(pipeline, chat, cx): (&'static Arc<Pipeline>, _, _)| pipeline.answer(chat, cx));
        assert!(size <= 6 << 10, "{size} bytes");
    }
}
