//! Events of usage in a Kafka topic, through brokers that are away, die, or hand over.

use super::mtls::pem;
use super::talk::until;
use super::usage::{chat, config};
use rcgen::generate_simple_self_signed;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::Gateway;
use tidegate_tests::kafka::{Cluster, Entrance, Record};

const TOPIC: &str = "billing.usage";

/// All records, once they are of `count` events. What comes twice comes soon after.
async fn taken(cluster: &Cluster, count: usize) -> Vec<Record> {
    let arrived = tokio::time::timeout(Duration::from_secs(60), async {
        while ids(&cluster.records()).len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    arrived.await.unwrap_or_else(|_| panic!("{count} events did not arrive: {:?}", cluster.records()));
    tokio::time::sleep(Duration::from_millis(700)).await;
    cluster.records()
}

fn ids(records: &[Record]) -> BTreeSet<String> {
    records.iter().map(|record| record.headers["id"].clone()).collect()
}

async fn gateway(cluster: &Cluster, folder: &Path, more: &str) -> Gateway {
    let brokers = cluster.addresses();
    let events = format!("events = {{ kafka = {{ brokers = {brokers:?}, topic = \"{TOPIC}\"{more} }} }}");
    Gateway::start(&config(folder, &events)).await
}

/// The id of the event that will tell of an answer.
async fn used(gateway: &Gateway, key: &str) -> String {
    let answer = chat(gateway, key, 5).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().rsplit('-').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_use_is_in_the_topic_by_tenant_and_under_its_id_once_there_is_a_topic() {
    let cluster = Cluster::start(3, Entrance::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(&cluster, folder.path(), "").await;
    let mut expected = BTreeSet::new();
    for key in ["alpha", "root", "alpha"] {
        expected.insert(used(&gateway, key).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.make_topic(TOPIC, 6);
    let all = taken(&cluster, 3).await;
    assert_eq!((ids(&all), all.len()), (expected, 3), "{all:?}");
    let of_a: Vec<&Record> = all.iter().filter(|record| record.key == "a").collect();
    assert!(of_a.len() == 2 && of_a[0].partition == of_a[1].partition, "{all:?}");
    for record in &all {
        let event: Value = serde_json::from_str(&record.value).unwrap();
        assert_eq!((&event["type"], &event["id"]), (&json!("usage.recorded"), &json!(record.headers["id"])));
        assert_eq!(event["data"]["tenant"], record.key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_to_brokers_that_are_away_die_or_hand_over() {
    let mut cluster = Cluster::start(3, Entrance::default()).await;
    cluster.make_topic(TOPIC, 3);
    let folder = tempfile::tempdir().unwrap();
    let first = gateway(&cluster, folder.path(), "").await;
    let mut expected = BTreeSet::from([used(&first, "alpha").await]);
    assert_eq!(ids(&taken(&cluster, 1).await), expected);

    // All of them are away, and the gateway is started again meanwhile.
    (0..3).for_each(|broker| cluster.kill(broker));
    expected.insert(used(&first, "alpha").await);
    first.running.stop(Duration::ZERO).await;
    let gateway = gateway(&cluster, folder.path(), "").await;
    expected.insert(used(&gateway, "alpha").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for broker in 0..3 {
        cluster.revive(broker).await;
    }
    let before = taken(&cluster, 3).await;
    assert_eq!((ids(&before), before.len()), (expected.clone(), 3), "{before:?}");

    // The record is taken and the answer lost: it comes again, under the same id.
    cluster.cut_answers(1);
    expected.insert(used(&gateway, "alpha").await);
    until("it comes again", async || (cluster.records().len() >= 5).then_some(())).await;
    let twice = taken(&cluster, 4).await;
    assert_eq!((ids(&twice), twice.len()), (expected.clone(), 5), "{twice:?}");

    // Each partition gets another leader, while the last one dies.
    for leader in [1, 2, 0] {
        cluster.lead(leader);
        let dead = (leader + 1) % 3;
        cluster.kill(dead);
        expected.insert(used(&gateway, "alpha").await);
        assert_eq!(ids(&taken(&cluster, expected.len()).await), expected, "leader {leader}");
        cluster.revive(dead).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_ask_for_tls_and_a_password_get_both() {
    let made = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, pem("CERTIFICATE", made.cert.der())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let tls = server.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    // The password is a variable that every process has.
    let password = std::env::var("PATH").unwrap();
    let sign_in = Some(("books", &*password.leak()));
    let cluster = Cluster::start(2, Entrance { tls: Some(Arc::new(tls)), sign_in }).await;
    cluster.make_topic(TOPIC, 2);
    let more = format!(", tls = true, ca = {ca:?}, user = \"books\", password_env = \"PATH\"");
    let gateway = gateway(&cluster, folder.path(), &more).await;
    let expected = BTreeSet::from([used(&gateway, "alpha").await]);
    assert_eq!(ids(&taken(&cluster, 1).await), expected);
}

#[test]
fn what_cannot_be_a_cluster_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (kafka, why) in [
        ("brokers = []", "brokers is empty"),
        ("brokers = [\"kafka.example\"]", "`kafka.example` is not `host:port`"),
        ("brokers = [\"kafka://a:9092\"]", "is not `host:port`"),
        ("brokers = [\"a:9092\"], user = \"u\"", "both `user` and `password_env`"),
        ("brokers = [\"a:9092\"], ca = \"a.pem\"", "`ca` without `tls = true`"),
    ] {
        let text = config(folder.path(), &format!("events = {{ kafka = {{ {kafka} }} }}"));
        let refused = format!("{:#}", tidegate::config::Config::parse(&text).unwrap_err());
        assert!(refused.contains(why), "{kafka}: {refused}");
    }
}
