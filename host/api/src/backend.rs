//! What the HTTP side asks of the rest of the program.

use crate::administration::Administration;
use crate::error;
use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tidegate_store::{UsageQuery, UsageSum};
use tidegate_types::{
    Allowances, Caller, Chat, Citation, Delta, EmbedRequest, Embeddings, Fault, Memory, Message, Notebook, Reject,
    RejectKind, RequestId, Retention, Transcript, Usage,
};
use tidegate_wire::ModelCard;
use tokio_util::sync::CancellationToken;

/// A future that is not named.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What answers requests: the models and the stages of one config. Who asks something of it may do so for as long as it has it,
/// whatever is configured meanwhile.
pub trait Answers: fmt::Debug + Send + Sync + 'static {
    /// Begins an answer. An error here has its own HTTP status; one within the reply may have to travel in a
    /// stream that has begun. Dropping the future stops the work.
    fn chat(&self, chat: Chat, cx: RequestContext) -> BoxFuture<'_, Result<Reply, Reject>>;

    /// Makes vectors of texts, of at most so many numbers together. Dropping the future stops the work.
    fn embed(
        &self,
        _asked: EmbedRequest,
        _most_numbers: usize,
        _cx: RequestContext,
    ) -> BoxFuture<'_, Result<Embedded, Reject>> {
        let reject = Reject::internal(Fault::Operator, "this service makes no vectors");
        Box::pin(std::future::ready(Err(reject)))
    }

    /// Has a model write a text for the server itself, behind an answer. Guards judge it, and the caller's tenant pays
    /// for it, as the kind of use that the context's generation begins with.
    fn write_aside(&self, _chat: Chat, _cx: RequestContext) -> BoxFuture<'_, Result<String, Reject>> {
        let reject = Reject::internal(Fault::Operator, "this service writes nothing for the server");
        Box::pin(std::future::ready(Err(reject)))
    }

    /// What each memory knows of the caller about a question, at most `limit` of each.
    fn memories<'a>(
        &'a self,
        _question: &'a str,
        _limit: u32,
        _cx: RequestContext,
    ) -> BoxFuture<'a, Result<Vec<Memory>, Reject>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Makes memories of the caller forget, by the ids that [`Answers::memories`] gave; says how many were there.
    fn forget<'a>(&'a self, _ids: &'a [String], _cx: RequestContext) -> BoxFuture<'a, Result<u32, Reject>> {
        Box::pin(std::future::ready(Ok(0)))
    }
}

/// Stands where something will answer, before anybody is let in.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Answers for Nothing {
    fn chat(&self, _chat: Chat, _cx: RequestContext) -> BoxFuture<'_, Result<Reply, Reject>> {
        let reject = Reject::unavailable(Fault::Operator, "the server starts; try again in a second", 1);
        Box::pin(std::future::ready(Err(reject)))
    }
}

/// What requests are not answered by, and what is about the server itself.
pub trait Service: Send + Sync + 'static {
    /// The models that `caller` may name.
    fn models(&self, caller: &Caller) -> Vec<ModelCard>;

    /// Whether requests will be answered: ready means that tokens are moving, not that the process runs. The
    /// error says what is missing.
    fn ready(&self) -> Result<(), String>;

    /// Takes config and plugins anew; one line for each part that runs then. A refusal has changed nothing.
    fn reload(&self) -> BoxFuture<'_, Result<Vec<String>, Reject>> {
        let message = "this server has nothing to reload";
        let reject = Reject::new(RejectKind::Invalid, Fault::Client, message).code("reload_refused");
        Box::pin(std::future::ready(Err(reject)))
    }

    /// What a reload that is under way is at, and since when.
    fn reloading(&self) -> Option<String> {
        None
    }

    /// Shows or does what is asked for, as far as `by` may see and change it; the answer is JSON.
    fn administer<'a>(&'a self, _what: Administration, _by: &'a Caller) -> BoxFuture<'a, Result<Bytes, Reject>> {
        Box::pin(std::future::ready(Err(no_store())))
    }

    /// What was used, found when it is the turn of `by`.
    fn usage(&self, _query: UsageQuery, _by: &Caller) -> BoxFuture<'_, Result<Vec<UsageSum>, Reject>> {
        Box::pin(std::future::ready(Err(no_store())))
    }

    /// What amounts of money are in.
    fn currency(&self) -> String {
        "usd".into()
    }

    /// All metrics, in Prometheus' text format.
    fn metrics(&self) -> String;
}

/// What is asked for lasts longer than a request, and nothing was configured to keep it.
pub fn no_store() -> Reject {
    let message = "this server keeps nothing; its operator can change that by `path` in [store] of its config";
    Reject::new(RejectKind::NotFound, Fault::Operator, message).code("store_not_configured")
}

/// Who asks, under which id.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Names the request everywhere.
    pub request_id: RequestId,
    /// Names what is generated for it: part of the answer's own id. No other request has it.
    pub generation: Arc<str>,
    /// The authenticated caller.
    pub caller: Arc<Caller>,
    /// What answers it: of the config by which its caller was let in.
    pub answers: Arc<dyn Answers>,
    /// Whether something of its content may be kept.
    pub retention: Retention,
    /// Gateways of this kind that the request came through before.
    pub hops: u8,
    /// What is done once the request was let in: what was said before is read, where it is part of a conversation that is kept, and
    /// of a response in the background the store is asked whether it takes it.
    pub history: Option<History>,
    /// Where what is known of the answer is noted, where it is kept.
    pub notebook: Option<Notebook>,
    /// Where the server says why it ends the request, before that is dropped.
    pub aborted: Aborted,
}

/// Why the server itself ends a request: it stops, or the answer is longer than any may be. Who answers finds it when the
/// request is dropped; one that is dropped without it has lost its client, which is another outcome in the books.
#[derive(Clone, Debug, Default)]
pub struct Aborted(Arc<OnceLock<Reject>>);

impl Aborted {
    /// As who answers keeps it.
    pub fn shared(self) -> Arc<OnceLock<Reject>> {
        self.0
    }

    /// The first reason is it. That somebody asked for the end is none of the server's.
    pub(crate) fn by(&self, reject: &Reject) {
        if !reject.is_cancelled() {
            // Said once.
            let _ = self.0.set(reject.clone());
        }
    }

    /// Once the server stops: said before whatever waits beside it is dropped.
    pub(crate) async fn by_stopping(self, cutting: &CancellationToken) -> Reject {
        cutting.cancelled().await;
        let reject = error::stopping();
        self.by(&reject);
        reject
    }
}

/// Puts what was said before in front of what is asked now, when the request has been let in.
#[derive(Clone)]
pub struct History(pub LoadHistory);

/// Takes the messages of a request and gives them with those before.
pub type LoadHistory = Arc<dyn Fn(Vec<Message>) -> BoxFuture<'static, Result<Transcript, Reject>> + Send + Sync>;

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("History")
    }
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// Part of an answer.
    Delta(Delta),
    /// What all turns cost, once, after the last delta; absent where nobody counted.
    Usage(Usage),
    /// No passage is cited for what leaves; before any delta.
    Uncited,
}

/// The events of a reply. Polled by the connection itself, so nothing here needs a task.
pub trait Events: Send {
    /// The next event; an error is the last, `None` is the end of a complete answer.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>>;
}

/// Vectors, and who made them.
pub struct Embedded {
    /// `model` in the response.
    pub model: String,
    /// The vectors.
    pub made: Embeddings,
    /// What is left to a limited caller.
    pub allowances: Allowances,
    /// What is held for the vectors, until they have left.
    pub held: Box<dyn Any + Send>,
}

/// An answer being made. Dropping it stops the work.
pub struct Reply {
    /// Who answers: `model` in the response.
    pub model: String,
    /// Extra response headers; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// What is left to a limited caller.
    pub allowances: Allowances,
    /// Of the passages that the model was given.
    pub citations: Vec<Citation>,
    /// Of the request's context.
    pub aborted: Aborted,
    /// What it says.
    pub events: Box<dyn Events>,
}

impl Reply {
    /// The next event.
    pub(crate) async fn next(&mut self) -> Option<Result<ReplyEvent, Reject>> {
        poll_fn(|cx| self.events.poll_next(cx)).await
    }

    /// Ends it for this reason, where it has not ended.
    pub(crate) fn fail(self, reject: &Reject) {
        self.aborted.by(reject);
    }
}
