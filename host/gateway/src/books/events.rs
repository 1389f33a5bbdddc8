//! Sends the outbox to whoever shall know what was used: a webhook, NATS JetStream, Kafka, or several of them. At least
//! once: an event leaves the outbox when it was taken, and its id stays the same however often it is sent.

use super::kafka::Kafka;
use super::nats::Nats;
use super::webhook::Webhook;
use crate::config::{EgressConfig, EventsConfig};
use metrics::{counter, gauge};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tidegate_store::{Db, Outbox, Waiting};

/// Sends what waits.
pub(crate) struct Sender {
    outbox: Outbox,
    webhook: Option<Webhook>,
    nats: Option<Nats>,
    kafka: Option<Kafka>,
    /// Of the events that wait, which receiver has taken which: it is not told again for another that has not.
    taken: HashSet<(Receiver, String)>,
    /// When those that wait were counted last.
    counted: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Receiver {
    Webhook,
    Nats,
    Kafka,
}

/// How often the outbox is looked at while it is empty.
const LOOK: Duration = Duration::from_millis(500);
/// The first pause after a failure, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
/// Events that are fetched at once.
const BATCH: u32 = 100;
/// How often those that wait are counted, while they are more.
const COUNT: Duration = Duration::from_secs(10);
/// For the receiver's answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Refuses receivers that no event could ever be sent to. Nobody is asked, and secrets are not looked for.
pub(crate) fn check(config: &EventsConfig, egress: &EgressConfig) -> anyhow::Result<()> {
    config.webhook.as_deref().map_or(Ok(()), |url| Webhook::new(url, None, egress).map(drop))?;
    config.nats.as_deref().map_or(Ok(()), super::nats::check)?;
    config.kafka.as_ref().map_or(Ok(()), super::kafka::check)
}

impl Sender {
    pub(crate) async fn new(config: &EventsConfig, egress: &EgressConfig, db: Db) -> anyhow::Result<Self> {
        let webhook = config.webhook.as_deref().map(|url| Webhook::new(url, config.secret_env.as_deref(), egress));
        let nats = match &config.nats {
            Some(url) => Some(Nats::new(url, &config.subject, config.token_env.as_deref()).await?),
            None => None,
        };
        let kafka = config.kafka.as_ref().map(Kafka::new).transpose()?;
        Ok(Self {
            outbox: Outbox::new(db),
            webhook: webhook.transpose()?,
            nats,
            kafka,
            taken: HashSet::new(),
            counted: None,
        })
    }

    pub(crate) async fn run(mut self) {
        let mut pause = PAUSES[0];
        loop {
            match self.send_waiting().await {
                Ok(0) => tokio::time::sleep(LOOK).await,
                Ok(_) => pause = PAUSES[0],
                Err(error) => {
                    tracing::warn!("events wait, since they are not taken: {error:#}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES[1]);
                }
            }
        }
    }

    /// Sends the oldest, in order; gives how many were taken.
    async fn send_waiting(&mut self) -> anyhow::Result<usize> {
        let waiting = self.outbox.oldest(BATCH).await?;
        self.show(waiting.len()).await?;
        // Another gateway may have done with the others.
        self.taken.retain(|(_, id)| waiting.iter().any(|event| event.id == *id));
        for event in &waiting {
            self.send(event).await.inspect_err(|_| counter!("tidegate_event_failures_total").increment(1))?;
            self.outbox.taken(&event.id).await?;
            counter!("tidegate_events_sent_total").increment(1);
        }
        Ok(waiting.len())
    }

    /// How many wait, of which `fetched` are the oldest: where there may be more, they are counted, now and then.
    async fn show(&mut self, fetched: usize) -> anyhow::Result<()> {
        let mut waiting = fetched as u64;
        if waiting >= u64::from(BATCH) {
            if self.counted.is_some_and(|counted| counted.elapsed() < COUNT) {
                return Ok(());
            }
            waiting = self.outbox.count().await?;
            self.counted = Some(Instant::now());
        }
        gauge!("tidegate_events_waiting").set(waiting as f64);
        Ok(())
    }

    /// To each receiver that has not taken it before.
    async fn send(&mut self, event: &Waiting) -> anyhow::Result<()> {
        for receiver in [Receiver::Webhook, Receiver::Nats, Receiver::Kafka] {
            let name = (receiver, event.id.clone());
            if self.taken.contains(&name) {
                continue;
            }
            match receiver {
                Receiver::Webhook => taken_by(self.webhook.as_ref().map(|webhook| webhook.send(event))).await?,
                Receiver::Nats => taken_by(self.nats.as_ref().map(|nats| nats.send(event))).await?,
                Receiver::Kafka => taken_by(self.kafka.as_ref().map(|kafka| kafka.send(event))).await?,
            }
            self.taken.insert(name);
        }
        Ok(())
    }
}

/// Waits for it, where there is such a receiver.
async fn taken_by(sending: Option<impl Future<Output = anyhow::Result<()>>>) -> anyhow::Result<()> {
    match sending {
        Some(sending) => sending.await,
        None => Ok(()),
    }
}
