//! What the server writes behind an answer that was kept: a title after the first one, and a summary once a conversation
//! nears the end of its model's window. Nobody waits for it. What fails is logged and counted and changes nothing; the next
//! answer behind a pause is the next chance.
//!
//! Invariants: nothing is written for a tenant of whom nothing is kept; what is written is billed to the conversation's
//! tenant, as a kind of its own; a server that stops does not wait for it.
//!
//! Parts: `behind/desk.rs` (what is written at once), `behind/pauses.rs` (what failed), `behind/summary.rs`,
//! `behind/title.rs`.

mod desk;
mod pauses;
mod summary;
mod title;

pub(crate) use desk::Desk;

use crate::backend::{Aborted, RequestContext};
use crate::ids;
use crate::server::Api;
use desk::{NotNow, Place};
use metrics::counter;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_store::conversations::StoredMessage;
use tidegate_types::{Caller, CallerRole, Chat, Class, Fault, Message, Part, Reject, RejectKind, Role, Scope};
use tracing::{Instrument, Span};

/// What is written behind answers, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Titles of conversations that nobody has named.
    pub titles: Option<Titles>,
    /// Summaries of what no longer fits a model.
    pub summaries: Option<Summaries>,
}

/// Who finds titles.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Titles {
    /// A model of this server.
    pub model: String,
    /// Tokens of a title.
    #[serde(default = "title_tokens")]
    pub max_tokens: u32,
}

fn title_tokens() -> u32 {
    24
}

/// Who sums up, and when.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Summaries {
    /// A model of this server.
    pub model: String,
    /// Tokens of a summary.
    #[serde(default = "summary_tokens")]
    pub max_tokens: u32,
    /// Turns at the end of a branch that are not summed up.
    #[serde(default = "two")]
    pub recent_turns: usize,
    /// Percent of the window of the model that answered: from there on there is a summary.
    #[serde(default = "half")]
    pub from_percent: u32,
}

fn summary_tokens() -> u32 {
    256
}

fn two() -> usize {
    2
}

fn half() -> u32 {
    50
}

/// An answer that was kept.
pub(crate) struct Kept {
    pub(crate) context: RequestContext,
    pub(crate) conversation: String,
    /// A caller's own, which has a title.
    pub(crate) listed: bool,
    /// Its last message.
    pub(crate) leaf: String,
    /// Who answered.
    pub(crate) model: String,
    /// What prompt and answer took.
    pub(crate) tokens: u64,
    /// Messages that were left out, that a summary could have stood for, and that none did.
    pub(crate) unseen: u64,
}

/// For one text, with all that it takes.
const LONGEST: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
enum Task {
    Title(Titles),
    Summary(Summaries),
}

impl Task {
    /// The kind of use that it is billed as.
    fn kind(&self) -> &'static str {
        match self {
            Self::Title(_) => "title",
            Self::Summary(_) => "summary",
        }
    }

    fn model(&self) -> &str {
        match self {
            Self::Title(Titles { model, .. }) | Self::Summary(Summaries { model, .. }) => model,
        }
    }
}

/// Begins what there is to be written behind an answer.
pub(crate) fn begin(api: &Arc<Api>, kept: Kept) {
    let Some(settings) = api.kept.as_ref().map(|kept| &kept.behind) else { return };
    let title = settings.titles.clone().filter(|_| kept.listed).map(Task::Title);
    let summary =
        settings.summaries.clone().filter(|settings| summary::is_due(api, settings, &kept)).map(Task::Summary);
    let kept = Arc::new(kept);
    for task in title.into_iter().chain(summary) {
        start(api, task, Arc::clone(&kept));
    }
}

fn start(api: &Arc<Api>, task: Task, kept: Arc<Kept>) {
    let kind = task.kind();
    let text = format!("{kind}/{}/{}", kept.context.caller.owner(), kept.conversation);
    let place = match api.desk.take(text, task.model(), Instant::now()) {
        Ok(place) => place,
        Err(NotNow::Busy) => return,
        Err(NotNow::Full) => return count(kind, "dropped"),
        Err(NotNow::Paused) => return count(kind, "paused"),
    };
    let (api, tasks) = (Arc::clone(api), api.tasks.clone());
    // Of the request whose answer it is behind.
    let span = tidegate_trace::behind(&Span::current(), kind);
    let work = async move {
        let written = tokio::select! {
            written = tokio::time::timeout(LONGEST, write(&api, &task, &kept)) => written.unwrap_or_else(|_| Err(too_long())),
            // What is not there yet is made behind the next answer.
            () = api.phase.draining.cancelled() => Ok(false),
        };
        let outcome = match written {
            Ok(true) => {
                place.written();
                "written"
            }
            Ok(false) => "nothing",
            Err(reject) => {
                note_failure(&place, kind, &kept.context, &reject);
                "failed"
            }
        };
        count(kind, outcome);
    };
    tasks.spawn(work.instrument(span));
}

fn note_failure(place: &Place, kind: &'static str, context: &RequestContext, reject: &Reject) {
    let (whose, pause) = place.failed(kind, reject);
    tracing::warn!(
        request = %context.request_id,
        tenant = %context.caller.tenant,
        kind,
        paused = whose.as_str(),
        pause_ms = pause.as_millis() as u64,
        "not written: {reject}"
    );
}

fn count(kind: &'static str, outcome: &'static str) {
    counter!("tidegate_behind_total", "kind" => kind, "outcome" => outcome).increment(1);
}

/// Says whether something was written.
async fn write(api: &Api, task: &Task, kept: &Kept) -> Result<bool, Reject> {
    match task {
        Task::Title(settings) => title::write(api, settings, kept).await,
        Task::Summary(settings) => summary::write(api, settings, kept).await,
    }
}

fn too_long() -> Reject {
    let message = format!("it took longer than {} s", LONGEST.as_secs());
    Reject::new(RejectKind::UpstreamTimeout, Fault::Upstream, message)
}

/// Has a model write, in the name of the conversation's tenant.
async fn ask(api: &Api, kept: &Kept, task: Ask<'_>) -> Result<String, Reject> {
    let Ask { kind, model, max_tokens, instructions, text } = task;
    let messages = vec![Message::text("m0", Role::System, instructions), Message::text("m1", Role::User, text)];
    let chat = Chat { max_tokens: Some(max_tokens), stream: true, ..Chat::new(model, messages) };
    let context = RequestContext {
        generation: format!("{kind}-{}", ids::secret()?).into(),
        caller: Arc::new(server_for(&kept.context.caller)),
        answers: api.auth.answers(),
        history: None,
        notebook: None,
        aborted: Aborted::default(),
        ..kept.context.clone()
    };
    let answers = Arc::clone(&context.answers);
    Ok(answers.write_aside(chat, context).await?.trim().to_owned())
}

/// What a model is to write.
struct Ask<'a> {
    kind: &'static str,
    model: &'a str,
    max_tokens: u32,
    instructions: &'static str,
    text: String,
}

/// The server, in the name of a caller: the caller's tenant pays, but its limits count what it asked for itself, and
/// whoever waits for an answer goes first.
fn server_for(caller: &Caller) -> Caller {
    Caller {
        role: CallerRole::Service,
        admin: false,
        class: Class::Batch,
        scope: Arc::new(Scope::default()),
        ..caller.clone()
    }
}

/// The window of a model that says none.
const COMMON_WINDOW: u32 = 8192;
/// Of a window, for instructions and the template.
const FRAME_TOKENS: u32 = 160;
/// A token is seldom less.
const TOKEN_BYTES: u32 = 2;

/// Tokens of a model's window, where it says.
fn window(api: &Api, caller: &Caller, model: &str) -> Option<u32> {
    let cards = api.service.models(&server_for(caller));
    cards.into_iter().find(|card| card.id == model)?.context_tokens
}

/// Bytes of text that a model takes for sure, beside so many tokens.
fn room_bytes(api: &Api, caller: &Caller, model: &str, beside_tokens: u32) -> usize {
    let window = window(api, caller, model).unwrap_or(COMMON_WINDOW);
    let tokens = window.saturating_sub(beside_tokens + FRAME_TOKENS);
    (tokens * TOKEN_BYTES).max(256) as usize
}

/// What was said, for a model that is to say something about it.
fn transcript(messages: &[StoredMessage]) -> String {
    let mut text = String::new();
    for StoredMessage { message, .. } in messages {
        let who = match message.role {
            Role::System | Role::Developer => "Instructions",
            Role::User => "User",
            Role::Assistant => "Assistant",
            Role::Tool => "Tool",
        };
        for part in &message.parts {
            let said = match part {
                Part::Text(said) | Part::Refusal(said) => said.clone(),
                Part::Reasoning(_) => continue,
                Part::ToolCall(call) => format!("calls {} with {}", call.name, call.arguments),
                Part::ToolOutcome(outcome) => outcome.content.clone(),
                Part::Opaque { kind, .. } => format!("[{kind}]"),
            };
            text.push_str(&format!("{who}: {}\n", said.trim()));
        }
    }
    text
}
