//! What is kept beside the words of a conversation: what is known of each answer, summaries of what no longer fits, titles;
//! and what is not. Each on SQLite, and on Postgres where there is a server.

mod forgotten;
mod kept;
mod referred;
mod summaries;
mod titles;
mod twice;
mod uncalled;

use crate::conversations::{ask, heard};
use crate::usage::clear_of_midnight;
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::Gateway;
use tidegate_tests::postgres::Database;
use tidegate_tests::stand_in::{Said, StandIn};
use tokio::time::{sleep, timeout};

/// Where a gateway of a test keeps things: more than one after another may.
pub struct Store {
    pub folder: tempfile::TempDir,
    postgres: Option<Database>,
}

/// Runs `test` on each store that is there, within one day. `name` is of the test alone.
pub async fn on_each<F: Future<Output = ()>>(name: &str, test: impl Fn(Store) -> F) {
    clear_of_midnight().await;
    Box::pin(test(Store { folder: tempfile::tempdir().unwrap(), postgres: None })).await;
    if let Some(database) = Database::new(name) {
        clear_of_midnight().await;
        Box::pin(test(Store { folder: tempfile::tempdir().unwrap(), postgres: Some(database) })).await;
    }
}

impl Store {
    /// A gateway with `top` before `[store]`, and `more` behind its path.
    pub async fn gateway(&self, top: &str, more: &str) -> Gateway {
        Gateway::start_with(self.config(top, more)).await
    }

    /// What that gateway is made of.
    pub fn config(&self, top: &str, more: &str) -> tidegate::config::Config {
        let path = self.folder.path().join("data");
        let text = format!("{top}\n[store]\npath = {:?}\n{more}", path.display().to_string());
        let mut config = tidegate::config::Config::parse(&text).unwrap();
        config.store.as_mut().unwrap().postgres = self.postgres.as_ref().map(Database::url);
        config
    }

    pub fn is_sqlite(&self) -> bool {
        self.postgres.is_none()
    }
}

/// Waits for what happens behind an answer; a look that never ends is one that found nothing.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), looking).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Asks by the simple pair, `chat` where the message names no model, and gives the last event of the answer.
pub async fn talk(gateway: &Gateway, conversation: &str, mut message: Value) -> Value {
    if message["model"].is_null() {
        message["model"] = "chat".into();
    }
    let accepted = ask(gateway, conversation, message).await;
    heard(gateway, &accepted["stream_id"], 0).await.pop().unwrap().1
}

/// What a model of a stand-in was asked, each request as one text.
pub fn asked(upstream: &StandIn, model: &str) -> Vec<String> {
    let asked = upstream.asked("/v1/chat/completions").into_iter().filter(|body| body["model"] == model);
    asked.map(|body| text_of(&body)).collect()
}

/// All that a chat request says.
pub fn text_of(body: &Value) -> String {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let text = |content: &Value| match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or_default().to_owned(),
    };
    messages.iter().map(|message| text(&message["content"]) + "\n").collect()
}

/// A completion that counts its tokens by the bytes of what it was asked.
pub fn said(body: &Value, text: &str) -> Said {
    let message = json!({"role": "assistant", "content": text});
    let (prompt, completion) = (text_of(body).len() / 3, text.len() / 3 + 1);
    Said::json(&json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }))
}
