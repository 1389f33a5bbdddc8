//! An event as a record, and the partition that it belongs to.

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use tidegate_store::Waiting;
use tidegate_types::clock::unix_ms;

/// The tenant of a use; of a budget, whose it is.
pub(super) fn key(payload: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(payload).unwrap_or_default();
    let data = &event["data"];
    data["tenant"].as_str().or(data["name"].as_str()).unwrap_or_default().to_owned()
}

/// Which of so many partitions a key is in, as Kafka's own producers place it; `None` where there is none.
pub(super) fn place(key: &[u8], partitions: usize) -> Option<usize> {
    ((murmur2(key) & 0x7fff_ffff) as usize).checked_rem(partitions)
}

/// A batch of one.
pub(super) fn batch(event: &Waiting, key: String) -> anyhow::Result<Bytes> {
    let record = Record {
        transactional: false,
        control: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: NO_SEQUENCE,
        timestamp: i64::try_from(unix_ms())?,
        key: Some(key.into()),
        value: Some(event.payload.clone().into()),
        headers: [(StrBytes::from_static_str("id"), Some(event.id.clone().into()))].into_iter().collect(),
    };
    let mut batch = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut batch, [&record], &options)?;
    Ok(batch.freeze())
}

/// MurmurHash2 with Kafka's seed (`Utils.murmur2` of Kafka's clients).
fn murmur2(data: &[u8]) -> u32 {
    const MIX: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mixed = u32::from_le_bytes(*word).wrapping_mul(MIX);
        hash = hash.wrapping_mul(MIX) ^ (mixed ^ (mixed >> 24)).wrapping_mul(MIX);
    }
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = hash.wrapping_mul(MIX);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of Kafka's own test, `UtilsTest.testMurmur2`.
    #[test]
    fn keys_are_placed_as_by_kafkas_own_producers() {
        let cases = [
            ("21", -973932308),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
            assert!(place(key.as_bytes(), 7).unwrap() < 7);
        }
        assert_eq!(place(b"a", 0), None);
    }

    #[test]
    fn a_use_goes_by_its_tenant_and_an_alert_by_whose_budget_it_is() {
        assert_eq!(key(r#"{"id": "x", "data": {"tenant": "a", "key": "k"}}"#), "a");
        assert_eq!(key(r#"{"id": "x", "data": {"scope": "key", "name": "k"}}"#), "k");
        assert_eq!(key("no JSON"), "");
    }
}
