//! Starts the first turn on the first candidate that takes it, so that a refusal has its own status.

use crate::bounds::LengthBounds;
use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::embed::Bill;
use crate::estimate::{estimated_input, rendered_bytes};
use crate::gate::{Hold, Kept};
use crate::models::{Model, ModelBackend};
use crate::prompts::together::Seat;
use crate::source::{EngineSource, Source, UpstreamSource};
use crate::stage::Stage;
use crate::stages::as_sent::{rename_param, rename_upstreams_param};
use crate::stages::fit::{self, Fitted};
use crate::stages::hold;
use crate::stages::run_tools::ToolRoom;
use crate::stages::sampling;
use crate::states::{Ended, Equipped, Request, Routed, ServerTool};
use metrics::counter;
use std::sync::Arc;
use tidegate_ledger::{Charge, Tally};
use tidegate_sandbox::stage::StageKind;
use tidegate_turns::{Waiting, in_turn};
use tidegate_types::{Chat, Fault, Finding, Reject, RejectKind, ToolDef};
use tidegate_upstream::Attempts;

/// Text that takes longer than this to encode (about 1 us a byte) would hold up the other requests of its thread.
pub(crate) const LONG_TEXT_BYTES: usize = 16 << 10;

/// A request whose first turn is being generated.
pub(crate) struct Started {
    pub(crate) turn: TurnPlan,
    pub(crate) source: Source,
}

/// What every turn of one answer needs.
pub(crate) struct TurnPlan {
    pub(crate) request: Box<Request>,
    pub(crate) tools: Vec<ServerTool>,
    pub(crate) model: Arc<Model>,
    pub(crate) seeds: Vec<u64>,
    /// As they were when it began: its turns are not refused by what a reload makes of the limits while tools run.
    bounds: LengthBounds,
    /// What the server's tools may say yet.
    pub(super) room: ToolRoom,
    /// Of the whole answer, however many turns it takes.
    max_tokens: Option<u32>,
}

/// What one turn is asked for with.
#[derive(Clone, Copy)]
struct Turn<'a> {
    model: &'a Arc<Model>,
    request: &'a Request,
    tools: &'a [ServerTool],
    seeds: &'a [u64],
    bounds: LengthBounds,
}

impl Pipeline {
    pub(crate) async fn start(self: &Arc<Self>, routed: Routed) -> Result<Started, Ended> {
        let Routed { equipped: Equipped { request, tools }, candidates } = routed;
        let mut request = self.check_guards_of_answers(request).await?;
        let seeds = sampling::seeds(request.chat.sampling.seed, request.chat.n);
        let (asked, mut last) = (candidates.first().map(|model| model.name.clone()), None);
        request.attempts = request.attempts.of_another();
        let mut candidates = candidates.into_iter().peekable();
        while let Some(model) = candidates.next() {
            if matches!(model.backend, ModelBackend::Upstream(_)) {
                request = self.settled(request).await?;
            }
            let bounds = LengthBounds::of_caller(&request.cx.caller.scope, &model.quota.load());
            if request.may_shorten {
                request = Box::pin(self.shortened(&model, request, &tools, bounds)).await?;
            }
            let mut findings = Vec::new();
            let (has_next, has_failed) = (candidates.peek().is_some(), last.is_some());
            let goes_on =
                move |reject: &Reject| has_next && !is_about_content(reject) && (has_failed || may_try_another(reject));
            let turn = Turn { model: &model, request: &request, tools: &tools, seeds: &seeds, bounds };
            let begun = self.begin(turn, &mut findings, goes_on).await;
            request.findings.append(&mut findings);
            match begun {
                Ok((mut source, hold)) => {
                    request.held.model = hold;
                    if let Some(first) = asked.filter(|first| *first != model.name) {
                        counter!("tidegate_fallbacks_total", "model" => first, "to" => model.name.clone()).increment(1);
                    }
                    // The engine reads the prompt meanwhile; a refusal drops `source`, which stops it.
                    request = self.settled_beside(request, &mut source).await?;
                    let max_tokens = request.chat.max_tokens.or(bounds.output.map(|bound| bound.tokens));
                    let room = ToolRoom::of(self.limits.tools.max_bytes);
                    let turn = TurnPlan { request, tools, model, seeds, bounds, room, max_tokens };
                    return Ok(Started { turn, source });
                }
                Err(reject) if may_try_another(&reject) => {
                    tracing::warn!(request = %request.cx.request_id, model = %model.name, "{reject}");
                    last = Some(told(last, reject));
                }
                // What a fallback cannot do, or may not be asked, is no news to a caller who asked for another model. What the
                // request says is for its caller to change, and each who comes again would have it refused again.
                Err(reject) if last.is_none() || is_about_content(&reject) => return Err(reject.into()),
                Err(_) => {}
            }
        }
        Err(last.unwrap_or_else(|| Reject::internal(Fault::Operator, "no candidate")).into())
    }

    /// Fails where a closed guard of the answer did not load: else it would once all of that is made, and billed.
    async fn check_guards_of_answers(self: &Arc<Self>, request: Box<Request>) -> Result<Box<Request>, Ended> {
        let Some((kind, guard)) = self.absent_guard(request.chat.stream) else { return Ok(request) };
        // A guard that is asked during the prefill may answer itself, and nobody judges that.
        let request = self.settled(request).await?;
        guard.check_loaded(kind)?;
        Ok(request)
    }

    /// A closed guard that would be asked about the answer, and did not load.
    fn absent_guard(&self, streaming: bool) -> Option<(StageKind, &Stage)> {
        let stream_guards = self.stages.stream_guards.iter().map(|stage| (StageKind::StreamGuard, stage));
        let output_guards = self.asked_of_answers(streaming).map(|stage| (StageKind::OutputGuard, stage));
        stream_guards.chain(output_guards).find(|(_, stage)| stage.refuses_all().is_some())
    }

    /// The first turn, counted for its model. A prompt that a server had without an answer, this one or one of another model before,
    /// is billed once: where no other model is asked behind a failure (`goes_on`).
    async fn begin(
        &self,
        turn: Turn<'_>,
        findings: &mut Vec<Finding>,
        goes_on: impl Fn(&Reject) -> bool + Send,
    ) -> Result<(Source, Hold), Reject> {
        let Turn { model, request, tools, .. } = turn;
        let early = Bill::of_turn(turn);
        let hold = match self.gate.enter(model, &request.chat, defs(tools), &request.tally).await {
            Ok(hold) => hold,
            Err(reject) => {
                early.end(goes_on(&reject));
                return Err(reject);
            }
        };
        // Dropped before `hold`, which gives back what was not used.
        let bill = early;
        let begun = self.generate(turn, hold.kept(), findings).await;
        bill.end(begun.as_ref().map_or_else(goes_on, |_| true));
        Ok((begun?, hold))
    }

    /// One turn. A server that was asked and refuses says why as the guards leave it; what they saw goes to `findings`.
    async fn generate(&self, turn: Turn<'_>, kept: Kept, findings: &mut Vec<Finding>) -> Result<Source, Reject> {
        let Turn { model, request, .. } = turn;
        let sent = request.attempts.count();
        match generate(turn, kept).await {
            Err(reject) if request.attempts.count() > sent => {
                Err(Box::pin(self.screen_refusal(request, &model.name, reject, findings)).await)
            }
            source => source,
        }
    }
}

impl TurnPlan {
    /// What is left of the answer's tokens; `None` where nobody bounds them.
    pub(crate) fn tokens_left(&self) -> Option<u32> {
        let said = u32::try_from(self.request.tally.tokens().output).unwrap_or(u32::MAX);
        self.max_tokens.map(|most| most.saturating_sub(said))
    }

    /// Starts the next turn on the same model.
    pub(crate) async fn go_on(&mut self, pipeline: &Pipeline, findings: &mut Vec<Finding>) -> Result<Source, Reject> {
        Arc::make_mut(&mut self.request.chat).max_tokens = self.tokens_left();
        let input = estimated_input(&self.request.chat, defs(&self.tools));
        self.request.held.go_on(input);
        self.request.attempts = self.request.attempts.of_another();
        let Self { request, tools, model, seeds, bounds, .. } = self;
        let turn = Turn { model, request, tools, seeds, bounds: *bounds };
        let bill = Bill::of_turn(turn);
        let source = pipeline.generate(turn, Kept::new(), findings).await;
        let source = source.map_err(|reject| fit::refused_later(model, reject, &request.cx))?;
        bill.end(true);
        Ok(source)
    }
}

impl<'a> Bill<'a> {
    /// Of the prompt of a turn.
    fn of_turn(Turn { model, request, tools, .. }: Turn<'a>) -> Self {
        // An engine counts as it reads; where it does not, another model's server may have had the prompt.
        let is_counted = matches!(model.backend, ModelBackend::Engine(_)) && !request.attempts.may_be_billed();
        let num_tokens = if is_counted { 0 } else { estimated_input(&request.chat, defs(tools)) };
        Self { tally: &request.tally, attempts: &request.attempts, num_tokens }
    }
}

fn defs(tools: &[ServerTool]) -> impl Iterator<Item = &ToolDef> {
    tools.iter().map(|tool| &tool.def)
}

/// `kept` is held beside what the request holds itself.
async fn generate(turn: Turn<'_>, mut kept: Kept) -> Result<Source, Reject> {
    let Turn { model, request, tools, seeds, bounds } = turn;
    let defs = defs(tools).cloned().collect();
    kept.extend(request.held.kept());
    let ask = Ask {
        model,
        chat: &request.chat,
        cx: &request.cx,
        seeds,
        bounds,
        charge: request.charge.as_ref(),
        tally: &request.tally,
        attempts: &request.attempts,
        seat: request.seat.as_ref(),
    };
    source(ask, defs, kept).await
}

/// Tokens of an answer that nobody bounds, for what is set aside before an upstream is asked.
const UNBOUNDED_OUTPUT: u64 = 4096;

/// One turn that a model is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) model: &'a Arc<Model>,
    pub(crate) chat: &'a Arc<Chat>,
    pub(crate) cx: &'a RequestContext,
    pub(crate) seeds: &'a [u64],
    pub(crate) bounds: LengthBounds,
    /// What it is billed to.
    pub(crate) charge: Option<&'a Arc<Charge>>,
    /// Where its tokens are counted: the charge's, where there is one.
    pub(crate) tally: &'a Arc<Tally>,
    /// How often upstreams were asked.
    pub(crate) attempts: &'a Attempts,
    /// Among the prompts that begin together with it.
    pub(crate) seat: Option<&'a Seat>,
}

impl Ask<'_> {
    /// Sets aside what the turn may cost; it could begin then, and waits for those that begin with it.
    async fn reserve(&self, input: u64, output: u64) -> Result<(), Reject> {
        self.charge.map_or(Ok(()), |charge| charge.reserve(&self.model.name, input, output))?;
        match self.seat {
            Some(seat) => Box::pin(seat.ready()).await,
            None => Ok(()),
        }
    }
}

/// Begins a turn, with the server's tools `defs`. `kept` is what the request holds.
pub(crate) async fn source(ask: Ask<'_>, defs: Vec<ToolDef>, kept: Kept) -> Result<Source, Reject> {
    let Ask { model, chat, cx, seeds, bounds, tally, .. } = ask;
    let encodes = matches!(model.backend, ModelBackend::Engine(_));
    let num_bytes = if encodes { rendered_bytes(chat, &defs) } else { 0 };
    // What an answer is held to is compiled, which takes longer than most prompts.
    let is_long = num_bytes > LONG_TEXT_BYTES || (encodes && hold::is_wanted(chat));
    let tenant = cx.caller.tenant.clone();
    let fitted = if is_long {
        let (model, chat, seeds) = (Arc::clone(model), Arc::clone(chat), seeds.to_vec());
        let num_bytes = num_bytes.max(LONG_TEXT_BYTES);
        let work = move |waiting: &Waiting| fit::fit(&model, &chat, &defs, (&seeds, bounds), (&tenant, waiting));
        Box::pin(in_turn((&cx.caller, num_bytes), kept, work)).await
    } else {
        fit::fit(model, chat, &defs, (seeds, bounds), (&tenant, &Waiting::default()))
    };
    let fitted = fitted.map_err(|reject| rename_param(reject, chat.fields))?;
    let tally = Some(Arc::clone(tally));
    match (fitted, &model.backend) {
        (Fitted::Engine(turn), ModelBackend::Engine(engine)) => {
            let output = u64::from(turn.max_tokens) * turn.sampling.len() as u64;
            ask.reserve(turn.prompt.len() as u64, output).await?;
            let source = EngineSource::start(engine, turn, &cx.caller, tally);
            Ok(Source::Engine(Box::new(source.map_err(|reject| rename_param(reject, chat.fields))?)))
        }
        (Fitted::Upstream(chat), ModelBackend::Upstream(replicas)) => {
            let input = estimated_input(&chat, []);
            let output = chat.max_tokens.map_or(UNBOUNDED_OUTPUT, u64::from) * u64::from(chat.n);
            ask.reserve(input, output).await?;
            let answer = Box::pin(replicas.generate(chat, cx.sending(), ask.attempts)).await;
            let answer = answer.map_err(|reject| rename_upstreams_param(reject, ask.chat))?;
            Ok(Source::Upstream(Box::new(UpstreamSource::new(answer, input, tally))))
        }
        _ => Err(Reject::internal(Fault::Operator, "fit and backend disagree")),
    }
}

/// It is refused for what it says: that goes to no other server.
fn is_about_content(reject: &Reject) -> bool {
    reject.kind == RejectKind::ContentFilter
}

/// Whenever it comes again, it is refused again. An answer that came too late or is too long is final since it may be billed each
/// time, be there other models or not.
fn is_closed(reject: &Reject) -> bool {
    let exceeded = reject.limited.as_ref().and_then(|limited| limited.exceeded);
    let is_refused = reject.is_final && reject.fault == Fault::Operator;
    is_refused || exceeded.is_some_and(|exceeded| exceeded.retry_after.is_none())
}

/// Which of two models' failures the caller is told. While one of them may answer later, nobody is told that it is no use to come
/// back; but for where an answer was made, which each that comes behind it would be again.
fn told(last: Option<Reject>, next: Reject) -> Reject {
    match last {
        Some(last) if (last.is_final || is_closed(&next)) && !is_closed(&last) => last,
        _ => next,
    }
}

/// Nothing has been said yet, and the next model may be better off.
fn may_try_another(reject: &Reject) -> bool {
    matches!(
        reject.kind,
        RejectKind::Unavailable | RejectKind::BadUpstream | RejectKind::UpstreamTimeout | RejectKind::RateLimited
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_be_answered_later_comes_back_unless_an_answer_was_made() {
        let reject =
            |name: &str, kind, fault, is_final| Reject { is_final, ..Reject::new(kind, fault, name.to_owned()) };
        let sick = || reject("sick", RejectKind::Unavailable, Fault::Upstream, false);
        let closed = || reject("closed", RejectKind::BadUpstream, Fault::Operator, true);
        let late = || reject("late", RejectKind::UpstreamTimeout, Fault::Upstream, true);
        let long = || reject("long", RejectKind::BadUpstream, Fault::Upstream, true);
        for (models, expected) in [
            (vec![sick(), closed()], "sick"),
            (vec![closed(), sick()], "sick"),
            (vec![closed(), closed()], "closed"),
            (vec![late(), sick(), closed()], "late"),
            (vec![sick(), late()], "late"),
            (vec![closed(), long(), sick()], "long"),
            (vec![sick(), long(), closed()], "long"),
        ] {
            let last = models.into_iter().fold(None, |last, next| Some(told(last, next))).unwrap();
            assert_eq!(last.message, expected);
        }
    }
}
