//! What every chunk and the whole answer of one request have in common.

use tidegate_types::{Chat, Citation, Form};

/// Identity of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// Which endpoint's shape the answer has.
    pub form: Form,
    /// `chatcmpl-...` or `cmpl-...`; see [`Head::new`].
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// Of the passages that the model was given; chats tell them with their text.
    pub citations: Vec<Citation>,
}

impl Head {
    /// The head of the answer to `chat`. `unique` becomes part of the id; `model` is who answers.
    pub fn new(chat: &Chat, unique: &str, created: u64, model: impl Into<String>) -> Self {
        let prefix = match chat.form {
            Form::Chat => "chatcmpl",
            Form::Completion { .. } => "cmpl",
        };
        let (id, citations) = ([prefix, "-", unique].concat(), Vec::new());
        Self { form: chat.form, id, created, model: model.into(), citations }
    }

    /// The value of `object` for a whole answer, or for a chunk of one.
    pub(crate) fn object(&self, streamed: bool) -> &'static str {
        match (self.form, streamed) {
            (Form::Chat, false) => "chat.completion",
            (Form::Chat, true) => "chat.completion.chunk",
            (Form::Completion { .. }, _) => "text_completion",
        }
    }
}
