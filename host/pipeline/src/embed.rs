//! Vectors of a caller's texts: [`Pipeline::embed`]. The request is let in, counted and billed as any other. Prompt guards
//! see its texts as they see a prompt, before they are read by a model or leave; nothing else of the path has to do with
//! vectors. No other model stands in for the one that was asked: its vectors would mean something else. Read next:
//! `embed/make.rs`, the model's part.

mod jobs;
mod make;

use crate::account::Record;
use crate::admission::Place;
use crate::bounds::LengthBounds;
use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::estimate::estimated_input;
use crate::models::{Makes, Model, ModelBackend};
use crate::owed::Owed;
use crate::states::{Admitted, Ended, Loaded, Request, Screened};
pub(crate) use jobs::by_engine;
use jobs::place_of;
pub(crate) use make::{Bill, Reading, Wanted, vectors};
use std::sync::Arc;
use tidegate_types::{
    Allowances, Caller, Chat, EmbedInput, EmbedRequest, Embeddings, Fault, FieldNames, Form, Message, Reject,
    RejectKind, Role,
};

/// Of a vector of a server, which says so only with its answer: it may pass `dimensions` over.
const USUAL_DIMENSIONS: u32 = 4096;

/// The vectors of a request.
pub struct Embedded {
    /// The model that made them.
    pub model: String,
    /// The vectors.
    pub made: Embeddings,
    /// What is left to a limited caller.
    pub allowances: Allowances,
    /// What the vectors take of the room for all, until it is dropped: not before they have left.
    pub room: Room,
}

/// Room for the vectors of one answer.
pub struct Room(Place);

/// A request that its model can begin with.
struct Ready {
    /// Holds its places until it is dropped.
    request: Box<Request>,
    model: Arc<Model>,
    asked: EmbedRequest,
    reading: Reading,
    room: Room,
}

impl Pipeline {
    /// Makes vectors of texts, of at most so many numbers together. Dropping the future stops the work.
    pub async fn embed(
        self: &Arc<Self>,
        asked: EmbedRequest,
        most_numbers: usize,
        cx: RequestContext,
    ) -> Result<Embedded, Reject> {
        let mut owed = Owed::to(self, &cx, false);
        match self.let_in(asked, most_numbers, cx, &mut owed).await {
            Ok(ready) => {
                let record = self.record(&ready);
                owed.has_record();
                self.make(ready, record, most_numbers).await
            }
            Err(Ended::Rejected(reject)) => {
                owed.refused(&reject);
                Err(reject)
            }
            Err(answered) => {
                owed.has_record();
                Err(rejected(answered))
            }
        }
    }

    async fn let_in(
        self: &Arc<Self>,
        asked: EmbedRequest,
        most_numbers: usize,
        cx: RequestContext,
        owed: &mut Owed,
    ) -> Result<Ready, Ended> {
        let Admitted(mut request) = self.admit(as_chat(&asked), cx).await?;
        owed.let_in(&mut request);
        let allowances = request.held.allowances();
        self.prepare(asked, most_numbers, request).await.map_err(|ended| ended.with(allowances))
    }

    /// Has the guards decide, and everything counted that can be before the model is asked.
    async fn prepare(
        self: &Arc<Self>,
        asked: EmbedRequest,
        most_numbers: usize,
        request: Box<Request>,
    ) -> Result<Ready, Ended> {
        let guarded = !(self.stages.prompt_guards.is_empty() && self.stages.late_guards.is_empty());
        if guarded && asked.inputs.iter().any(|input| matches!(input, EmbedInput::Tokens(_))) {
            let message = "the guards of this server read text; send `input` as text, not as tokens";
            return Err(Reject::invalid("input", message).code("unsupported_parameter").into());
        }
        let Screened(request) = self.screen_texts(Loaded(request)).await?;
        let mut request = self.settled(request).await?;
        let asked = EmbedRequest { inputs: screened(asked.inputs, &request.chat)?, ..asked };
        let model = Arc::clone(self.models.allowed(&request.chat.model, &request.cx.caller.scope)?);
        request.held.model = self.gate.enter(&model, &request.chat, [], &request.tally).await?;
        let bounds = LengthBounds::of_caller(&request.cx.caller.scope, &model.quota.load());
        let estimate = estimated_input(&request.chat, []);
        let holds = (estimate, request.held.kept());
        let reading = Reading::of(&model, &asked, Wanted::Vectors, &bounds, &request.cx.caller, holds).await?;
        let room = self.room(&request.cx.caller, num_numbers(&model, &asked, most_numbers)?)?;
        if let Some(charge) = &request.charge {
            charge.reserve(&model.name, reading.num_tokens, 0)?;
        }
        Ok(Ready { request, model, asked, reading, room })
    }

    /// Room for vectors of so many numbers.
    fn room(&self, caller: &Caller, num_numbers: usize) -> Result<Room, Reject> {
        self.vectors.take(caller, num_numbers).map(Room).ok_or_else(|| {
            let most = self.limits.max_vector_numbers;
            let message = format!("vectors of {most} numbers, the server's limit, are being made or sent; try again");
            Reject::unavailable(Fault::Operator, message, 1).code("overloaded")
        })
    }

    fn record(self: &Arc<Self>, Ready { request, model, .. }: &Ready) -> Record {
        let mut record = Record::new(&request.cx, model.name.clone(), false, &request.tally);
        record.observe(self, &request.findings);
        record.bill(request.charge.clone());
        record.count_attempts(&request.attempts);
        record
    }

    async fn make(&self, ready: Ready, mut record: Record, most_numbers: usize) -> Result<Embedded, Reject> {
        let Ready { request, model, asked, reading, mut room } = ready;
        let counted = (&*request.tally, &request.attempts);
        let made = vectors(&model, &asked, reading, &request.cx, counted).await;
        match made.and_then(|made| fits(&made, most_numbers).map(|numbers| (made, numbers))) {
            Ok((made, numbers)) => {
                room.0.correct(numbers);
                record.used(made.usage);
                record.ended();
                Ok(Embedded { model: model.name.clone(), made, allowances: request.held.allowances(), room })
            }
            Err(reject) => {
                record.failed(&reject);
                Err(rejected(Ended::Rejected(reject).with(request.held.allowances())))
            }
        }
    }
}

/// The texts as guards and limits know prompts: a raw one each. Tokens stand there as they are written, which is about as
/// long as their text.
pub(crate) fn as_chat(asked: &EmbedRequest) -> Chat {
    let message = |(i, input): (usize, &EmbedInput)| {
        let text = match input {
            EmbedInput::Text(text) => text.clone(),
            EmbedInput::Tokens(tokens) => tokens.iter().map(|token| format!("{token},")).collect(),
        };
        Message::text(format!("m{i}"), Role::User, text)
    };
    let messages = asked.inputs.iter().enumerate().map(message).collect();
    let mut chat = Chat {
        form: Form::Completion { echo: false },
        max_tokens: Some(0),
        fields: FieldNames { messages: "input", ..FieldNames::default() },
        ..Chat::new(asked.model.clone(), messages)
    };
    chat.extra.extend(asked.user.iter().map(|user| ("user".to_owned(), user.as_str().into())));
    chat
}

/// The inputs as the guards left them: each of them is still one text. A guard that leaves nothing of one has decided about
/// it, and so it is refused.
fn screened(inputs: Vec<EmbedInput>, chat: &Chat) -> Result<Vec<EmbedInput>, Reject> {
    let num_texts = inputs.len();
    let is_its = |(i, message): (usize, &Message)| message.id == format!("m{i}");
    if chat.messages.len() != num_texts || !chat.messages.iter().enumerate().all(is_its) {
        let cause = "other messages were left of a request for vectors than its texts";
        return Err(Reject::internal(Fault::Operator, cause));
    }
    let left = |(i, (input, message)): (usize, (EmbedInput, &Message))| match (input, message.joined_text()) {
        (EmbedInput::Text(_), text) if text.is_empty() => Err(nothing_left(place_of(i, num_texts))),
        (EmbedInput::Text(_), text) => Ok(EmbedInput::Text(text)),
        (tokens @ EmbedInput::Tokens(_), _) => Ok(tokens),
    };
    inputs.into_iter().zip(&chat.messages).enumerate().map(left).collect()
}

fn nothing_left(at: String) -> Reject {
    let message =
        "the guards of this server leave nothing of this text, and there is no vector of an empty one; leave it out";
    Reject::new(RejectKind::ContentFilter, Fault::Client, message).at(at).code("content_filter")
}

/// Of how many numbers the vectors that are asked for will be, or may be; more than `most` are refused.
fn num_numbers(model: &Model, asked: &EmbedRequest, most: usize) -> Result<usize, Reject> {
    let (each, at_least) = match &model.backend {
        ModelBackend::Engine(engine) => match engine.makes {
            Makes::Vectors { dimensions } => (asked.dimensions.unwrap_or(dimensions), 0),
            // These were refused before.
            Makes::Text | Makes::Labels(_) => (0, 0),
        },
        ModelBackend::Upstream(_) => (asked.dimensions.unwrap_or(0), USUAL_DIMENSIONS),
    };
    let all = |each: u32| asked.inputs.len().saturating_mul(each as usize);
    if all(each) > most { Err(too_many(all(each), most)) } else { Ok(all(each.max(at_least)).min(most)) }
}

/// How many numbers they are, where an answer may have as many.
fn fits(made: &Embeddings, most: usize) -> Result<usize, Reject> {
    let all = made.vectors.iter().map(Vec::len).sum();
    if all > most { Err(too_many(all, most)) } else { Ok(all) }
}

fn too_many(all: usize, most: usize) -> Reject {
    let message = format!(
        "the vectors have {all} numbers together; an answer in this `encoding_format` has at most {most}: ask about \
         fewer texts at once, for fewer `dimensions`, or for base64"
    );
    Reject::invalid("input", message).code("answer_too_long")
}

/// A guard may answer in a model's place, but not with a vector.
fn rejected(ended: Ended) -> Reject {
    match ended {
        Ended::Rejected(reject) => reject,
        Ended::Answered(reply) => {
            let message = "a guard of this server answers this text itself; there is no vector of it";
            let reject =
                Reject::new(RejectKind::ContentFilter, Fault::Client, message).at("input").code("content_filter");
            reply.fail(&reject);
            reject
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arc_swap::ArcSwap;
    use tidegate_types::{Part, Quota};
    use tidegate_upstream::{BreakerConfig, Replicas, RetryConfig, UpstreamConfig};

    #[test]
    fn a_server_may_pass_dimensions_over_and_has_the_room_for_that() {
        let server = UpstreamConfig::new("u", "http://127.0.0.1:1/v1", "m");
        let replicas = Replicas::new("m", vec![server], RetryConfig::default(), &BreakerConfig::default()).unwrap();
        let model = Model {
            name: "m".into(),
            created: 0,
            context_tokens: 0,
            quota: ArcSwap::from_pointee(Quota::default()),
            fallbacks: Vec::new(),
            backend: ModelBackend::Upstream(replicas),
        };
        let numbers = |texts: usize, dimensions| {
            let inputs = vec![EmbedInput::Text("x".into()); texts];
            num_numbers(&model, &EmbedRequest { model: "m".into(), inputs, dimensions, user: None }, 10_000).ok()
        };
        assert_eq!([numbers(2, None), numbers(2, Some(1)), numbers(2, Some(5_000))], [8_192, 8_192, 10_000].map(Some));
        assert_eq!([numbers(3, None), numbers(3, Some(1))], [Some(10_000); 2], "no answer may have more");
        assert_eq!(numbers(3, Some(5_000)), None);
    }

    #[test]
    fn what_guards_left_is_taken_and_what_is_no_text_for_each_is_refused() {
        let asked = EmbedRequest {
            model: "m".into(),
            inputs: vec![EmbedInput::Text("a".into()), EmbedInput::Tokens(vec![1, 2])],
            dimensions: None,
            user: Some("u".into()),
        };
        let mut chat = as_chat(&asked);
        assert_eq!((chat.extra["user"].as_str(), chat.messages[1].joined_text().as_str()), (Some("u"), "1,2,"));
        chat.messages[0].parts = vec![Part::Text("b".into())];
        let left = screened(asked.inputs.clone(), &chat).unwrap();
        assert_eq!(left, [EmbedInput::Text("b".into()), EmbedInput::Tokens(vec![1, 2])]);
        chat.messages[0].parts = vec![Part::Text(String::new())];
        let refused = screened(asked.inputs.clone(), &chat).unwrap_err();
        assert_eq!((refused.kind, refused.param.as_deref()), (RejectKind::ContentFilter, Some("input[0]")));
        chat.messages.swap(0, 1);
        assert!(screened(asked.inputs.clone(), &chat).is_err());
        chat.messages.pop();
        assert!(screened(asked.inputs, &chat).is_err());
    }
}
