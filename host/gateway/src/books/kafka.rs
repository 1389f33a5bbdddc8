//! Writes events to a Kafka topic. An event is taken when every replica in sync has it (`acks=all`); its id is in the header
//! `id`. Its key is its tenant, so that a tenant's events are in one partition, and in order there.
//!
//! Retries are the outbox's: after any failure, a moved leader too, all connections are dropped and the brokers of the
//! config are asked again. Messages are `kafka-protocol`'s, in versions that brokers know from 2.1 on to 4.
//! Read next: `kafka/connection.rs`.

mod connection;
mod record;

use super::events::ANSWER;
use crate::config::KafkaConfig;
use anyhow::{Context as _, bail};
use connection::{Connection, Entrance, succeeded};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::collections::HashMap;
use tidegate_store::Waiting;
use tokio::sync::Mutex;

const METADATA: i16 = 5;
const PRODUCE: i16 = 7;
/// Every replica in sync.
const ALL: i16 = -1;

/// Where events go.
pub(super) struct Kafka {
    brokers: Vec<String>,
    topic: String,
    entrance: Entrance,
    cluster: Mutex<Option<Cluster>>,
}

/// What a broker said of the topic, and the connections that were opened since.
struct Cluster {
    /// The address of each partition's leader, in the order of partitions.
    leaders: Vec<(i32, String)>,
    connections: HashMap<String, Connection>,
}

/// Refuses what can be seen without asking anybody; the password may be set elsewhere.
pub(super) fn check(config: &KafkaConfig) -> anyhow::Result<()> {
    Entrance::new(&KafkaConfig { password_env: None, ..config.clone() }).map(drop)
}

impl Kafka {
    /// Does not wait for the brokers: events wait in the outbox while they are away.
    pub(super) fn new(config: &KafkaConfig) -> anyhow::Result<Self> {
        Ok(Self {
            brokers: config.brokers.clone(),
            topic: config.topic.clone(),
            entrance: Entrance::new(config)?,
            cluster: Mutex::new(None),
        })
    }

    pub(super) async fn send(&self, event: &Waiting) -> anyhow::Result<()> {
        let mut held = self.cluster.lock().await;
        // Taken out: what is given up or fails leaves nothing behind.
        let mut cluster = held.take();
        let sent = tokio::time::timeout(ANSWER * 2, self.write(&mut cluster, event)).await;
        let sent = sent.map_err(|_| anyhow::anyhow!("no answer for {} s", 2 * ANSWER.as_secs())).flatten();
        sent.with_context(|| format!("Kafka's topic `{}` does not take events", self.topic))?;
        *held = cluster;
        Ok(())
    }

    async fn write(&self, cluster: &mut Option<Cluster>, event: &Waiting) -> anyhow::Result<()> {
        let cluster = match cluster {
            Some(cluster) => cluster,
            None => cluster.insert(self.find().await?),
        };
        let key = record::key(&event.payload);
        let at = record::place(key.as_bytes(), cluster.leaders.len()).context("it has no partition")?;
        let (partition, leader) = &cluster.leaders[at];
        if !cluster.connections.contains_key(leader) {
            let opened = Connection::open(leader, &self.entrance).await?;
            cluster.connections.insert(leader.clone(), opened);
        }
        let connection = cluster.connections.get_mut(leader).context("it was just opened")?;
        let data =
            PartitionProduceData::default().with_index(*partition).with_records(Some(record::batch(event, key)?));
        let topic = TopicProduceData::default().with_name(self.name()).with_partition_data(vec![data]);
        let timeout_ms = ANSWER.as_millis() as i32;
        let request = ProduceRequest::default().with_acks(ALL).with_timeout_ms(timeout_ms).with_topic_data(vec![topic]);
        let answer = connection.ask(&request, PRODUCE).await?;
        let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
        succeeded(partition.context("an answer without the partition")?.error_code)
    }

    fn name(&self) -> TopicName {
        TopicName(StrBytes::from_string(self.topic.clone()))
    }

    /// Asks one broker after the other, until one knows.
    async fn find(&self) -> anyhow::Result<Cluster> {
        let mut failure = anyhow::anyhow!("no broker is configured");
        for broker in &self.brokers {
            match tokio::time::timeout(ANSWER / 2, self.ask(broker)).await {
                Ok(Ok(cluster)) => return Ok(cluster),
                Ok(Err(error)) => failure = error.context(format!("broker {broker}")),
                Err(_) => failure = anyhow::anyhow!("broker {broker} does not answer"),
            }
        }
        Err(failure)
    }

    async fn ask(&self, broker: &str) -> anyhow::Result<Cluster> {
        let topic = MetadataRequestTopic::default().with_name(Some(self.name()));
        let request = MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(false);
        let answer = Connection::open(broker, &self.entrance).await?.ask(&request, METADATA).await?;
        Ok(Cluster { leaders: leaders(&answer)?, connections: HashMap::new() })
    }
}

fn leaders(answer: &MetadataResponse) -> anyhow::Result<Vec<(i32, String)>> {
    let address = |broker: &_| {
        let found = answer.brokers.iter().find(|known| known.node_id == *broker)?;
        Some(format!("{}:{}", found.host, found.port))
    };
    let Some(topic) = answer.topics.first() else { bail!("an answer without the topic") };
    succeeded(topic.error_code)?;
    let leader = |partition: &kafka_protocol::messages::metadata_response::MetadataResponsePartition| {
        let number = partition.partition_index;
        Ok((number, address(&partition.leader_id).with_context(|| format!("partition {number} has no leader"))?))
    };
    let mut leaders = topic.partitions.iter().map(leader).collect::<anyhow::Result<Vec<_>>>()?;
    leaders.sort();
    Ok(leaders)
}
