//! Making an answer that is kept: the reply is read to its end, its events go to a log where somebody reads them, and
//! what was said is written to the store before the last event, which says whether it was. No token waits for that.
//!
//! Invariant: a log that was begun ends with a last event, and a response that was begun ends with a status, whatever
//! happens here.

use crate::backend::{BoxFuture, Reply, ReplyEvent, RequestContext};
use crate::behind;
use crate::error;
use crate::events::First;
use crate::generation::append;
use crate::kept::{store_failed, streams_of};
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use metrics::counter;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tidegate_store::conversations::{Made, MessageStatus, NewMessage, Put, Turn, Used};
use tidegate_store::{Conversations, StoreError};
use tidegate_streams::Writer;
use tidegate_types::clock::unix_s;
use tidegate_types::{Chat, FinishReason, Notebook, Reject, Report, TenantId, Usage};
use tidegate_wire::responses::{Ended, ResponseEncoder};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// One answer in the making.
pub(crate) struct Answering {
    pub(crate) api: Arc<Api>,
    pub(crate) encoder: ResponseEncoder,
    /// Where it is kept, where it is.
    pub(crate) keep: Option<Keep>,
    /// Where its events go, where somebody reads them.
    pub(crate) writer: Option<Writer>,
    /// Where what is known of it besides its words is noted.
    pub(crate) notebook: Notebook,
}

/// Where an answer is kept.
#[derive(Clone)]
pub(crate) struct Keep {
    pub(crate) conversations: Conversations,
    pub(crate) tenant: TenantId,
    /// Who asked for it.
    pub(crate) context: RequestContext,
    /// What is written at its end; without the answer yet.
    pub(crate) turn: Turn,
}

/// An answer that is asked for.
pub(crate) type Asking = BoxFuture<'static, Result<Reply, Reject>>;

/// Whose log under an answer's names nobody comes back to, where it was not kept.
enum Forgotten {
    /// Every gateway's: it was deleted.
    Everywhere(TenantId, Vec<String>),
    /// This one's: under the same names another gateway writes its own.
    Here(TenantId, Vec<String>),
}

/// An answer that was made.
pub(crate) struct Answered {
    /// The whole object.
    pub(crate) body: String,
    pub(crate) ended: Ended,
}

impl Answering {
    /// Asks for an answer; nothing happens before somebody waits for it. It needs nobody's request: who waits may change.
    pub(crate) fn asking(&self, chat: Chat, context: RequestContext) -> Asking {
        let (api, answers, aborted) = (Arc::clone(&self.api), Arc::clone(&context.answers), context.aborted.clone());
        let context = RequestContext { notebook: Some(self.notebook.clone()), ..context };
        Box::pin(async move {
            tokio::select! {
                reply = answers.chat(chat, context) => reply,
                reject = aborted.by_stopping(&api.phase.cutting) => Err(reject),
            }
        })
    }

    /// Makes the answer that is asked for; what refuses it is its end.
    pub(crate) async fn follow(mut self, asking: Asking) -> Answered {
        let mut out = BytesMut::new();
        self.begin(&mut out).await;
        let reply = tokio::select! {
            reply = asking => reply,
            () = stopped(&mut self.writer) => Err(Reject::cancelled()),
        };
        match reply {
            Ok(reply) => self.make(reply, None, out).await,
            Err(reject) => self.end(Err(reject), &mut out).await,
        }
    }

    /// Makes the answer that `reply` is.
    pub(crate) async fn run(mut self, reply: Reply, first: First) -> Answered {
        self.encoder.answered_by(&reply.model);
        let mut out = BytesMut::new();
        self.begin(&mut out).await;
        self.make(reply, first, out).await
    }

    async fn begin(&mut self, out: &mut BytesMut) {
        self.encoder.begin(out);
        self.flush(out).await;
    }

    async fn make(mut self, mut reply: Reply, mut first: First, mut out: BytesMut) -> Answered {
        let api = Arc::clone(&self.api);
        self.encoder.answered_by(&reply.model);
        self.encoder.report(self.notebook.read());
        let outcome = loop {
            let event = match first.take() {
                Some(event) => event,
                None => tokio::select! {
                    event = reply.next() => event,
                    () = stopped(&mut self.writer) => Some(Err(Reject::cancelled())),
                    () = api.phase.cutting.cancelled() => Some(Err(error::stopping())),
                },
            };
            match event {
                Some(Ok(ReplyEvent::Delta(delta))) => {
                    if let Err(reject) = self.encoder.delta(&delta, &mut out) {
                        break Err(reject);
                    }
                }
                Some(Ok(ReplyEvent::Usage(usage))) => self.encoder.usage(usage),
                Some(Ok(ReplyEvent::Uncited)) => self.encoder.uncite(),
                Some(Err(reject)) => break Err(reject),
                None => break Ok(()),
            }
            self.flush(&mut out).await;
        };
        // What it holds is free before anything waits for the store.
        match &outcome {
            Ok(()) => drop(reply),
            Err(reject) => reply.fail(reject),
        }
        self.end(outcome, &mut out).await
    }

    async fn end(mut self, outcome: Result<(), Reject>, out: &mut BytesMut) -> Answered {
        let ended = self.encoder.end(outcome, out);
        self.encoder.report(self.notebook.read());
        // One time for what is kept and what is told.
        let at = unix_s();
        let (api, mut writer, said) = (Arc::clone(&self.api), self.writer.take(), out.split().freeze());
        let keep = self.keep.take();
        let keeping = async {
            match keep {
                Some(keep) => self.keep_it(keep, &ended, at).await,
                None => None,
            }
        };
        // What is said is kept, however slowly it is read.
        let ((), forgotten) = tokio::join!(tell(&mut writer, said, &api.phase.cutting), keeping);
        self.writer = writer;
        self.encoder.terminal(&ended, at, out);
        self.flush(out).await;
        if let Some(writer) = self.writer.take() {
            writer.end(match &ended {
                Ended::Finished(_) => Ok(()),
                Ended::Failed(reject) => Err(reject.clone()),
                Ended::Cancelled => Err(Reject::cancelled()),
            });
        }
        match forgotten {
            Some(Forgotten::Everywhere(tenant, names)) => self.api.streams.forget(&tenant, names),
            Some(Forgotten::Here(tenant, names)) => self.api.streams.forget_here(&tenant, &names),
            None => {}
        }
        Answered { body: self.encoder.object(&ended, at), ended }
    }

    /// In a task of its own, so that whoever waits may go away meanwhile. Of what is not this gateway's to keep nobody comes
    /// back to the log.
    async fn keep_it(&mut self, mut keep: Keep, ended: &Ended, at: u64) -> Option<Forgotten> {
        keep.turn.response.status = ended.status().to_owned();
        keep.turn.response.body = self.encoder.object(ended, at);
        keep.turn.response.used = self.encoder.counted().map(|usage| Used {
            generation: keep.context.generation.to_string(),
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        });
        keep.turn.output = output(&self.encoder, ended);
        let behind = self.behind(&keep, ended);
        let (tenant, names) = (keep.tenant.clone(), streams_of(&keep.turn.response.id).to_vec());
        let (conversations, id) = (keep.conversations.clone(), keep.turn.response.id.clone());
        let written = self.api.tasks.spawn(async move { keep.write().await }).await;
        let (why, forgotten) = match written {
            Ok(Ok(Put::Written)) => {
                behind.into_iter().for_each(|kept| behind::begin(&self.api, kept));
                return None;
            }
            Ok(Ok(Put::Deleted)) => {
                ("it was deleted while it was made".to_owned(), Some(Forgotten::Everywhere(tenant.clone(), names)))
            }
            Ok(Ok(Put::Taken)) => (
                "another gateway took it over while it was made".to_owned(),
                Some(Forgotten::Here(tenant.clone(), names)),
            ),
            Ok(Err(error)) => (store_failed(error).message, None),
            Err(_) => ("the server failed to write it".to_owned(), None),
        };
        if forgotten.is_none() {
            abandon(conversations, tenant, id);
        }
        self.encoder.not_kept(&why);
        forgotten
    }

    /// What follows an answer that is whole, once it is kept.
    fn behind(&self, keep: &Keep, ended: &Ended) -> Option<behind::Kept> {
        let Ended::Finished(_) = ended else { return None };
        let (known, used) = (self.encoder.known(), self.encoder.counted().unwrap_or_default());
        Some(behind::Kept {
            context: keep.context.clone(),
            conversation: keep.turn.conversation.clone(),
            listed: keep.turn.listed,
            leaf: keep.turn.output.last()?.id.clone(),
            model: self.encoder.head().model.clone(),
            tokens: used.input_tokens + used.output_tokens,
            unseen: known.unseen,
        })
    }

    async fn flush(&mut self, out: &mut BytesMut) {
        if !out.is_empty() {
            tell(&mut self.writer, out.split().freeze(), &self.api.phase.cutting).await;
        }
    }
}

/// Appends whole events to the log, where there is one, once the reader that they are made for has room for them; nobody waits
/// for it who was asked for the end, or whose server stops.
async fn tell(writer: &mut Option<Writer>, events: Bytes, cutting: &CancellationToken) {
    let Some(writer) = writer.as_mut().filter(|_| !events.is_empty()) else { return };
    tokio::select! {
        biased;
        () = poll_fn(|cx| match writer.poll_room(events.len(), cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => writer.poll_stopped(cx),
        }) => {}
        () = cutting.cancelled() => {}
    }
    append(writer, events);
}

/// Responses that were begun and could not be written at their end, each a task that waits for the database.
static LATE: Semaphore = Semaphore::const_new(10_000);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Has a response that was begun end as failed once the database is there again: it would say that it is made for as long as
/// this gateway runs.
fn abandon(conversations: Conversations, tenant: TenantId, id: String) {
    let Ok(place) = LATE.try_acquire() else {
        return tracing::error!(response = id, %tenant, "it stays as it is: too many wait for the database");
    };
    tokio::spawn(async move {
        let _place = place;
        let mut pause = PAUSES[1];
        while let Err(error) = conversations.abandon(&tenant, &id).await {
            tracing::warn!(response = id, "it is not closed yet: {error}");
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    });
}

/// Once somebody asks for the end; never without a log.
async fn stopped(writer: &mut Option<Writer>) {
    match writer {
        Some(writer) => poll_fn(|cx| writer.poll_stopped(cx)).await,
        None => std::future::pending().await,
    }
}

/// Pauses before a write that the database did not take is tried again.
pub(crate) const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

impl Keep {
    /// Writes the turn, where that is still this gateway's to do. A failure is logged and counted here.
    pub(crate) async fn write(&self) -> Result<Put, StoreError> {
        let mut pauses = PAUSES.iter();
        loop {
            let written = self.conversations.put(&self.tenant, &self.turn).await;
            let label = match &written {
                Ok(Put::Written) => "written",
                Ok(Put::Deleted) => "deleted",
                Ok(Put::Taken) => "taken",
                Err(_) => "failed",
            };
            counter!("tidegate_store_writes_total", "outcome" => label).increment(1);
            match (written, pauses.next()) {
                (Err(error @ StoreError::Unavailable(_)), Some(pause)) => {
                    tracing::warn!(response = self.turn.response.id, "not written yet: {error}");
                    tokio::time::sleep(*pause).await;
                }
                (Err(error), _) => {
                    tracing::error!(response = self.turn.response.id, tenant = %self.tenant, "not written: {error}");
                    return Err(error);
                }
                (Ok(written), _) => return Ok(written),
            }
        }
    }
}

/// What was said, as it is kept.
fn output(encoder: &ResponseEncoder, ended: &Ended) -> Vec<NewMessage> {
    let finish = match ended {
        Ended::Finished(reason) => reason.as_str(),
        Ended::Failed(_) => "error",
        Ended::Cancelled => "cancelled",
    };
    let cut = !matches!(ended, Ended::Finished(FinishReason::Stop | FinishReason::ToolCalls));
    let (last, cited) = (encoder.output().count(), encoder.cited_item());
    let new = |(i, (id, message, whole)): (usize, (&str, &tidegate_types::Message, bool))| {
        let is_last = i + 1 == last;
        let status = if whole && !(is_last && cut) { MessageStatus::Completed } else { MessageStatus::Incomplete };
        let usage = if is_last { encoder.counted().unwrap_or_default() } else { Usage::default() };
        let mut report = match is_last {
            true => encoder.known().clone(),
            false => Report { model_version: encoder.known().model_version.clone(), ..Report::default() },
        };
        report.citations = if cited == Some(i) { encoder.known().citations.clone() } else { Vec::new() };
        let made = Made { model: encoder.head().model.clone(), finish: finish.to_owned(), usage, report };
        NewMessage { id: id.to_owned(), client_id: String::new(), message: message.clone(), status, made }
    };
    encoder.output().enumerate().map(new).collect()
}
