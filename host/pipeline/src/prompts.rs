//! A completion of several prompts. Each takes the path as a request of its own would, with its own guards, route, model,
//! record and charge; together they have one place, and count as one request for the limits of their caller.
//!
//! Nothing is generated before every prompt has come past its guards and could begin (`prompts/together.rs`), and nothing
//! leaves before every answer has begun: where one is refused all are, and the refusal says which. What a model's limits never
//! let in at once is refused by `prompts/room.rs`. Read first: `chat.rs`, the path of each.

mod room;
pub(crate) mod together;

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::models::Model;
use crate::owed::Owed;
use crate::reply::{Reply, ReplyEvent};
use crate::states::{Admitted, Ended, Equipped, Routed, Screened, telling};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_trace as trace;
use tidegate_types::{Allowances, Chat, Delta, Message, Reject, Usage};
use together::Seat;
use tracing::{Instrument, debug_span};

/// The answers to all prompts, as one: choice `i` of prompt `p` is choice `p * n + i`. Dropping it cancels them all.
pub struct Replies {
    /// The model that answers the first prompt, as `model` in the response.
    pub model: String,
    /// Extra response headers of all.
    pub headers: Vec<(&'static str, String)>,
    /// What is left to a limited caller.
    pub allowances: Allowances,
    /// `None` where one has ended.
    replies: Vec<Option<Reply>>,
    /// Choices of each.
    n: u32,
    /// Which is polled first next time, so that none waits behind another.
    turn: usize,
    /// Of those that said it; taken when it is told.
    usage: Option<Usage>,
    /// How many have not said it.
    uncounted: usize,
}

/// How far a prompt has come.
enum Came {
    /// Past its guards; nothing is generated yet.
    Routed(Box<Routed>),
    /// To its answer, which a guard may give.
    Replied(Box<Reply>),
    /// It could begin, but another one is refused.
    GaveWay,
}

/// One is refused, so that all are.
struct Refused {
    /// How far each of the others has come.
    came: Vec<Option<Came>>,
    /// Of the first that is, in the order of the prompts.
    reject: Box<Reject>,
}

impl Pipeline {
    /// Takes each message of a completion through all stages, as a prompt of its own. The answers are made while the replies
    /// are read.
    pub async fn answer_each(self: &Arc<Self>, chat: Chat, cx: RequestContext) -> Result<Replies, Reject> {
        let (n, streamed) = (chat.n, chat.stream);
        let asked = apart(chat, &cx);
        let owed: Vec<Owed> = asked.iter().map(|(_, cx)| Owed::to(self, cx, streamed)).collect();
        match self.admit_together(asked).await {
            Ok(admitted) => Ok(Replies::new(self.begin_each(admitted, owed).await?, n)),
            Err(reject) => {
                owed.into_iter().for_each(|owed| owed.refused(&reject));
                Err(reject)
            }
        }
    }

    async fn begin_each(
        self: &Arc<Self>,
        mut admitted: Vec<Admitted>,
        mut owed: Vec<Owed>,
    ) -> Result<Vec<Reply>, Reject> {
        let allowances = admitted.first().map(|first| first.0.held.allowances()).unwrap_or_default();
        for (Admitted(request), owed) in admitted.iter_mut().zip(&mut owed) {
            owed.let_in(request);
        }
        let span = |index: usize| debug_span!("prompt", index = trace::whole(index));
        let spans: Vec<_> = (0..admitted.len()).map(span).collect();
        let paths = admitted.into_iter().zip(&mut owed).zip(spans.clone());
        let paths: Vec<_> = paths.map(|((one, owed), span)| self.routed(one, owed).instrument(span)).collect();
        let routed = stream::iter(paths).buffered(self.stages.screened_at_once()).collect::<Vec<_>>().await;
        let begun = match all_or_first(routed).and_then(|came| room::check(&self.gate, came)) {
            Ok(routed) => {
                let seats = together::seats(routed.len());
                let paths = routed.into_iter().zip(seats).zip(&mut owed).zip(spans);
                let begun = |(((one, seat), owed), span)| self.begun(one, seat, owed).instrument(span);
                let starts: Vec<_> = paths.map(begun).collect();
                all_or_first(join_all(starts).await)
            }
            refused => refused,
        };
        match begun {
            Ok(all) => Ok(all.into_iter().filter_map(Came::reply).collect()),
            Err(Refused { came, reject }) => {
                end_each(came, owed, &reject);
                Err(telling(*reject, allowances))
            }
        }
    }

    /// Past the guards, the late ones too: of a request that is refused for one prompt nothing is generated for another.
    async fn routed(self: &Arc<Self>, admitted: Admitted, owed: &mut Owed) -> Result<Came, Reject> {
        let routed = self.past_guards(admitted).await;
        routed.map(|routed| Came::Routed(Box::new(routed))).or_else(|ended| Came::ended(ended, owed))
    }

    async fn past_guards(self: &Arc<Self>, admitted: Admitted) -> Result<Routed, Ended> {
        let loaded = self.load(admitted).await?;
        let Screened(request) = self.screen_input(loaded).await?;
        let screened = Screened(self.settled(request).await?);
        let grounded = self.recall(screened).await?;
        let equipped = self.offer_tools(grounded).await?;
        self.route(equipped).await
    }

    async fn begun(self: &Arc<Self>, came: Came, seat: Seat, owed: &mut Owed) -> Result<Came, Reject> {
        let begun = match came {
            Came::Routed(mut routed) => {
                routed.equipped.request.seat = Some(seat.clone());
                let started = self.start(*routed).await;
                let replied = started.map(|started| Came::replied(self.converse(started), owed));
                replied.or_else(|ended| Came::ended(ended, owed))
            }
            other => Ok(other),
        };
        seat.count(begun.is_err());
        match begun {
            Err(reject) if together::has_given_way(&reject) => Ok(Came::GaveWay),
            begun => begun,
        }
    }
}

/// Ends each prompt of a refused request: in its own record where it has one, and for observers else.
fn end_each(came: Vec<Option<Came>>, owed: Vec<Owed>, reject: &Reject) {
    for (came, owed) in came.into_iter().zip(owed) {
        match came {
            Some(Came::Replied(reply)) => reply.fail(reject),
            // Dropped, it leaves what its guards saw.
            Some(Came::Routed(_) | Came::GaveWay) | None => {
                drop(came);
                owed.refused(reject);
            }
        }
    }
}

/// One request for each prompt. The context says which: no two have the same name in the books.
fn apart(mut chat: Chat, cx: &RequestContext) -> Vec<(Chat, RequestContext)> {
    let prompts = std::mem::take(&mut chat.messages);
    let alone = |(i, prompt): (usize, Message)| {
        let messages = vec![Message { id: "m0".into(), ..prompt }];
        let generation = format!("{}-{i}", cx.generation).into();
        (Chat { messages, ..chat.clone() }, RequestContext { generation, ..cx.clone() })
    };
    prompts.into_iter().enumerate().map(alone).collect()
}

fn all_or_first(came: Vec<Result<Came, Reject>>) -> Result<Vec<Came>, Refused> {
    let mut first = None;
    let came = came.into_iter().enumerate().map(|(i, came)| match came {
        Ok(came) => Some(came),
        Err(reject) => {
            first.get_or_insert_with(|| of_prompt(reject, i));
            None
        }
    });
    let came: Vec<Option<Came>> = came.collect();
    match first {
        None => Ok(came.into_iter().flatten().collect()),
        Some(reject) => Err(Refused { came, reject: Box::new(reject) }),
    }
}

/// Names the prompt that is refused by its place in the list.
fn of_prompt(reject: Reject, i: usize) -> Reject {
    match reject.param.as_deref() {
        Some(param) if param == "prompt" || param.starts_with("prompt[") => reject.at(format!("prompt[{i}]")),
        _ => reject,
    }
}

impl Came {
    /// From here on its record says how it ends.
    fn replied(reply: Reply, owed: &mut Owed) -> Self {
        owed.has_record();
        Self::Replied(Box::new(reply))
    }

    /// Before generation: a guard may have answered.
    fn ended(ended: Ended, owed: &mut Owed) -> Result<Self, Reject> {
        match ended {
            Ended::Answered(reply) => Ok(Self::replied(*reply, owed)),
            Ended::Rejected(reject) => Err(reject),
        }
    }

    /// What is asked, and the model that it will be made by, where that is no guard and there is no other.
    fn for_one_model(&self) -> Option<(&Arc<Model>, &Equipped)> {
        match self {
            Self::Routed(routed) => match routed.candidates.as_slice() {
                [model] => Some((model, &routed.equipped)),
                _ => None,
            },
            Self::Replied(_) | Self::GaveWay => None,
        }
    }

    fn reply(self) -> Option<Reply> {
        match self {
            Self::Replied(reply) => Some(*reply),
            Self::Routed(_) | Self::GaveWay => None,
        }
    }
}

impl Replies {
    fn new(mut replies: Vec<Reply>, n: u32) -> Self {
        let model = replies.first().map(|reply| reply.model.clone()).unwrap_or_default();
        let mut headers: Vec<(&'static str, String)> = Vec::new();
        for header in replies.iter_mut().flat_map(|reply| std::mem::take(&mut reply.headers)) {
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let tighter = |all: Allowances, reply: &Reply| all.tighter(reply.allowances);
        let allowances = replies.iter().fold(Allowances::default(), tighter);
        let (uncounted, usage) = (replies.len(), Some(Usage::default()));
        Self {
            model,
            headers,
            allowances,
            replies: replies.into_iter().map(Some).collect(),
            n,
            turn: 0,
            usage,
            uncounted,
        }
    }

    /// The next event of any of them; an error is the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        let (count, first) = (self.replies.len(), self.turn);
        for at in (0..count).map(|offset| (first + offset) % count) {
            while let Some(reply) = &mut self.replies[at] {
                match reply.poll_next(cx) {
                    Poll::Pending => break,
                    Poll::Ready(None) => self.replies[at] = None,
                    Poll::Ready(Some(Err(reject))) => return Poll::Ready(Some(Err(self.fail(at, reject)))),
                    Poll::Ready(Some(Ok(event))) => {
                        if let Some(delta) = self.take(at, event) {
                            self.turn = (at + 1) % count;
                            return Poll::Ready(Some(Ok(ReplyEvent::Delta(delta))));
                        }
                    }
                }
            }
        }
        if self.replies.iter().any(Option::is_some) {
            return Poll::Pending;
        }
        // A sum of some would be too little.
        let usage = self.usage.take().filter(|_| self.uncounted == 0);
        Poll::Ready(usage.map(|usage| Ok(ReplyEvent::Usage(usage))))
    }

    /// Adds up what they cost. Completions cite nothing.
    fn take(&mut self, at: usize, event: ReplyEvent) -> Option<Delta> {
        match event {
            ReplyEvent::Delta(Delta { choice, kind }) => Some(Delta { choice: at as u32 * self.n + choice, kind }),
            ReplyEvent::Usage(usage) => {
                self.usage.iter_mut().for_each(|sum| *sum += usage);
                self.uncounted = self.uncounted.saturating_sub(1);
                None
            }
            ReplyEvent::Uncited => None,
        }
    }

    /// Ends all of them with what one of them ended with.
    fn fail(&mut self, at: usize, reject: Reject) -> Reject {
        let reject = of_prompt(reject, at);
        for reply in self.replies.iter_mut().filter_map(Option::take) {
            reply.fail(&reject);
        }
        self.usage = None;
        reject
    }
}
