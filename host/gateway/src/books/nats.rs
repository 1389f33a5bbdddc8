//! Publishes events to NATS JetStream. An event is taken when the stream has acknowledged it; its id is the message's, so
//! that a stream drops what it is sent twice within its window of duplicates.

use super::events::ANSWER;
use crate::config::variable;
use anyhow::Context as _;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Subject, ToServerAddrs as _};
use tidegate_store::Waiting;

/// A connection that comes back by itself, and the subject that events are published to.
pub(super) struct Nats {
    stream: Context,
    subject: Subject,
}

/// Refuses what is no address of a server.
pub(super) fn check(url: &str) -> anyhow::Result<()> {
    url.to_server_addrs().map(drop).context("in store.events.nats")
}

impl Nats {
    /// Does not wait for the server: events wait in the outbox while it is away. `token` names the variable that holds
    /// it.
    pub(super) async fn new(url: &str, subject: &str, token: Option<&str>) -> anyhow::Result<Self> {
        let mut options = ConnectOptions::new().name("tidegate").retry_on_initial_connect();
        if let Some(name) = token {
            options = options.token(variable(name).context("in store.events.token_env")?);
        }
        let client = options.connect(url).await.context("in store.events.nats")?;
        let mut stream = jetstream::new(client);
        stream.set_timeout(ANSWER);
        Ok(Self { stream, subject: subject.into() })
    }

    pub(super) async fn send(&self, event: &Waiting) -> anyhow::Result<()> {
        let message = PublishMessage::build().message_id(&event.id).payload(event.payload.clone().into());
        let unanswered = || format!("no stream of the NATS server acknowledges `{}`", self.subject);
        let sent = self.stream.send_publish(self.subject.clone(), message).await.with_context(unanswered)?;
        // Past the context's own limit, should the connection hang while it is written to.
        let taken = tokio::time::timeout(ANSWER * 2, sent).await.with_context(unanswered)?;
        taken.with_context(unanswered)?;
        Ok(())
    }
}
