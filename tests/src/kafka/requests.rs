//! What a broker answers to each kind of request.

use super::{Broker, Record, State};
use anyhow::{bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
    RequestHeader, ResponseHeader, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use kafka_protocol::records::RecordBatchDecoder;

const UNKNOWN_TOPIC: i16 = 3;
const NOT_THE_LEADER: i16 = 6;
const UNSUPPORTED_MECHANISM: i16 = 33;
const SIGN_IN_FAILED: i16 = 58;

/// As a Kafka of version 4 has them.
const VERSIONS: [(ApiKey, i16, i16); 5] = [
    (ApiKey::Produce, 3, 12),
    (ApiKey::Metadata, 0, 12),
    (ApiKey::SaslHandshake, 0, 1),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::SaslAuthenticate, 0, 2),
];

impl Broker {
    /// Whole, but for its length. An error cuts the connection.
    pub(super) fn answer(&self, mut request: Bytes, signed_in: &mut bool) -> anyhow::Result<BytesMut> {
        let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
        ensure!(request.len() > 4, "a request without a head");
        let (key, version) = (ApiKey::try_from(number(0)).map_err(|()| anyhow::anyhow!("no such request"))?, number(2));
        let header = RequestHeader::decode(&mut request, key.request_header_version(version))?;
        let mut out = BytesMut::new();
        let head = ResponseHeader::default().with_correlation_id(header.correlation_id);
        head.encode(&mut out, key.response_header_version(version))?;
        let before_it = [ApiKey::ApiVersions, ApiKey::SaslHandshake, ApiKey::SaslAuthenticate];
        ensure!(*signed_in || before_it.contains(&key), "nobody has signed in");
        match key {
            ApiKey::ApiVersions => versions().encode(&mut out, version)?,
            ApiKey::Metadata => {
                let request = MetadataRequest::decode(&mut request, version)?;
                metadata(&self.state.lock().unwrap(), &request).encode(&mut out, version)?;
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(&mut request, version)?;
                self.produce(&request)?.encode(&mut out, version)?;
            }
            ApiKey::SaslHandshake => {
                let request = SaslHandshakeRequest::decode(&mut request, version)?;
                let code = if request.mechanism.as_str() == "PLAIN" { 0 } else { UNSUPPORTED_MECHANISM };
                let plain = vec![StrBytes::from_static_str("PLAIN")];
                SaslHandshakeResponse::default()
                    .with_error_code(code)
                    .with_mechanisms(plain)
                    .encode(&mut out, version)?;
            }
            ApiKey::SaslAuthenticate => {
                let request = SaslAuthenticateRequest::decode(&mut request, version)?;
                *signed_in = self.is_signed_in(&request.auth_bytes);
                let code = if *signed_in { 0 } else { SIGN_IN_FAILED };
                SaslAuthenticateResponse::default().with_error_code(code).encode(&mut out, version)?;
            }
            other => bail!("{other:?} is nothing that a producer asks for"),
        }
        Ok(out)
    }

    fn is_signed_in(&self, shown: &[u8]) -> bool {
        self.entrance.sign_in.is_none_or(|(user, password)| shown == format!("\0{user}\0{password}").as_bytes())
    }

    fn produce(&self, request: &ProduceRequest) -> anyhow::Result<ProduceResponse> {
        ensure!(request.acks == -1, "not all replicas are waited for");
        let mut state = self.state.lock().unwrap();
        let mut topics = Vec::new();
        for topic in &request.topic_data {
            let mut partitions = Vec::new();
            for data in &topic.partition_data {
                let code = match state.leaders.get(data.index as usize) {
                    Some(leader) if *leader == self.number => 0,
                    Some(_) => NOT_THE_LEADER,
                    None => UNKNOWN_TOPIC,
                };
                if code == 0 {
                    let records = read(data.index, &mut data.records.clone().unwrap_or_default())?;
                    state.records.extend(records);
                }
                partitions.push(PartitionProduceResponse::default().with_index(data.index).with_error_code(code));
            }
            let answer = TopicProduceResponse::default().with_name(topic.name.clone());
            topics.push(answer.with_partition_responses(partitions));
        }
        if state.deaths > 0 {
            state.deaths -= 1;
            bail!("the connection dies");
        }
        Ok(ProduceResponse::default().with_responses(topics))
    }
}

fn read(partition: i32, batches: &mut Bytes) -> anyhow::Result<Vec<Record>> {
    let text =
        |bytes: &Option<Bytes>| Ok::<_, anyhow::Error>(String::from_utf8(bytes.clone().unwrap_or_default().into())?);
    let mut all = Vec::new();
    for record in RecordBatchDecoder::decode_all(batches)?.iter().flat_map(|set| &set.records) {
        let headers = record.headers.iter().map(|(name, value)| Ok((name.to_string(), text(value)?)));
        let headers = headers.collect::<anyhow::Result<_>>()?;
        all.push(Record { partition, key: text(&record.key)?, headers, value: text(&record.value)? });
    }
    Ok(all)
}

fn versions() -> ApiVersionsResponse {
    let one = |(key, least, most): (ApiKey, i16, i16)| {
        ApiVersion::default().with_api_key(key as i16).with_min_version(least).with_max_version(most)
    };
    ApiVersionsResponse::default().with_api_keys(VERSIONS.map(one).to_vec())
}

fn metadata(state: &State, request: &MetadataRequest) -> MetadataResponse {
    let brokers = state.addresses.iter().enumerate().map(|(number, address)| {
        let host = StrBytes::from_string(address.ip().to_string());
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(number as i32));
        broker.with_host(host).with_port(i32::from(address.port()))
    });
    let asked = |name: &str| match &request.topics {
        Some(topics) => topics.iter().any(|topic| topic.name.as_ref().is_some_and(|asked| asked.as_str() == name)),
        None => true,
    };
    let topics = state.topic.iter().filter(|name| asked(name)).map(|name| {
        let partitions = state.leaders.iter().enumerate().map(|(index, leader)| {
            let all: Vec<BrokerId> = (0..state.addresses.len() as i32).map(BrokerId).collect();
            let partition = MetadataResponsePartition::default().with_partition_index(index as i32);
            partition.with_leader_id(BrokerId(*leader)).with_replica_nodes(all.clone()).with_isr_nodes(all)
        });
        let topic = MetadataResponseTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.clone()))));
        topic.with_partitions(partitions.collect())
    });
    MetadataResponse::default().with_brokers(brokers.collect()).with_topics(topics.collect())
}
