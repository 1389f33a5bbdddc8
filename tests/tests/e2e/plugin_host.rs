//! What the host has for all plugins together (`[plugins]`), whose share that is, and how instances begin.

use crate::conversations::send;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::stand_in::{Said, StandIn, completion, last_text};
use tidegate_tests::{Answer, Gateway, ask};
use tokio::net::TcpStream;

fn keys(names: &[&str]) -> String {
    let key =
        |name: &&str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(name.as_bytes()));
    names.iter().map(key).collect()
}

async fn chat(gateway: &Gateway, key: &str, text: &str) -> Answer {
    let body = json!({"model": "tidegate-starter", "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    send(gateway, Method::POST, "/v1/chat/completions", key, Some(&body)).await
}

fn guest(name: &str, more: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{name}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\n{more}\n",
        file.display()
    )
}

/// The service answers nobody who says `hang`, and tenant `stuck` says it more often than there are places.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_service_hangs_takes_all_places_but_those_of_others() {
    let service = StandIn::start(|path, body: &Value| match path {
        "/check" => {
            let pause = if body.to_string().contains("hang") { 60 } else { 0 };
            Said::json(&json!({"verdict": "allow"})).after(Duration::from_secs(pause))
        }
        _ => completion(&last_text(body)),
    })
    .await;
    let config = format!(
        "{}{}[plugins]\nwaiting_instances = 2\n[[pipeline.stage]]\nplugin = \"webhook-guard\"\nstages = [\"prompt-guard\"]\n\
         config = {{ url = \"{}/check\", timeout_ms = 30000 }}\n[pipeline.stage.limits]\nwall_ms = 40000\n\
         [pipeline.stage.grants]\n{}\n",
        service.model("tidegate-starter"),
        keys(&["stuck", "other"]),
        service.origin(),
        service.http_grant()
    );
    let gateway = Arc::new(Gateway::start(&config).await);
    let hanging: Vec<_> = (0..4)
        .map(|_| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move { chat(&gateway, "stuck", "hang").await.status })
        })
        .collect();
    while service.asked("/check").len() < 2 {
        assert!(!hanging.iter().any(tokio::task::JoinHandle::is_finished), "{:?}", gateway.running.facts);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(chat(&gateway, "other", "Hello!").await.text(), "Hello!");
    assert_eq!(service.asked("/check").len(), 3, "two that hang, and the other one");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_may_have_more_memory_where_the_config_says_so() {
    let stage = guest("hoards", "[pipeline.stage.limits]\nmemory_mib = 128\nwall_ms = 20000\ncpu_ms = 5000");
    let gateway = Gateway::start(&format!("[plugins]\ninstance_memory_mib = 128\n{stage}")).await;
    assert_eq!(gateway.chat(ask("100")).await.status, 200);
    assert_eq!(gateway.chat(ask("130")).await.status, 503);
}

/// That of the bundled pipeline says nothing of memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_says_nothing_of_its_memory_loads_where_an_instance_may_have_less_than_the_default() {
    let gateway = Gateway::start("[plugins]\ninstance_memory_mib = 32").await;
    let facts = &gateway.running.facts;
    for plugin in ["pii-guard", "calculator"] {
        let is_it = |fact: &&String| fact.contains(plugin);
        assert!(facts.iter().find(is_it).is_some_and(|fact| !fact.contains("DID NOT LOAD")), "{facts:?}");
    }
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    let stage = guest("hoards", "[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000");
    let gateway = Gateway::start(&format!("[plugins]\ninstance_memory_mib = 32\n{stage}")).await;
    assert_eq!(gateway.chat(ask("16")).await.status, 200);
    assert_eq!(gateway.chat(ask("40")).await.status, 503);
}

fn begin_configured(gateway: &Gateway) -> bool {
    gateway.running.facts.iter().any(|fact| fact.ends_with("instances begin configured"))
}

/// Whether by default, because they shall, or because they shall not: what is decided is the same, for those too of whose
/// requests no instance is kept.
#[tokio::test(flavor = "multi_thread")]
async fn instances_begin_with_what_was_built_once_unless_they_shall_not() {
    for (more, configured) in [
        ("", true),
        ("snapshot = true", true),
        ("shared = true", true),
        ("snapshot = true\nshared = true", true),
        ("snapshot = false\nshared = true", false),
    ] {
        let stage = format!(
            "[[pipeline.stage]]\nplugin = \"word-guard\"\n{more}\nconfig = {{ words = [\"heron\"], action = \"block\" }}\n\
             [pipeline.stage.limits]\nwall_ms = 20000\n"
        );
        let config = keys(&["ann", "mute"]) + "[tenants.mute]\nzero_retention = true\n" + &stage;
        let gateway = Gateway::start(&config).await;
        assert_eq!(begin_configured(&gateway), configured, "{more}: {:?}", gateway.running.facts);
        for key in ["ann", "mute", "ann", "mute"] {
            assert_eq!(chat(&gateway, key, "a heron").await.status, 400, "{more}");
            assert_eq!(chat(&gateway, key, "an otter").await.status, 200, "{more}");
        }
    }
}

/// Capabilities, the clock and what is not deterministic make instances differ.
#[tokio::test(flavor = "multi_thread")]
async fn no_instances_are_made_alike_that_could_differ() {
    let webhook = "[[pipeline.stage]]\nplugin = \"webhook-guard\"\nstages = [\"prompt-guard\"]\n\
        config = { url = \"https://a.example/\" }\n\
        grants = { http = { origins = [\"https://a.example\"] }, content = true }\n";
    for stage in ["[[pipeline.stage]]\nplugin = \"audit-observer\"\n", webhook] {
        assert!(!begin_configured(&Gateway::start(stage).await), "{stage}");
    }
    for key in ["snapshot", "shared"] {
        let gateway = Gateway::start(&webhook.replace("stages", &format!("{key} = true\nstages"))).await;
        let facts = gateway.running.facts.join("\n");
        assert!(facts.contains("webhook-guard DID NOT LOAD") && facts.contains(&format!("`{key}` is for")), "{facts}");
        assert_eq!(gateway.chat(ask("Hello!")).await.status, 503);
    }
}

/// The guest says how many calls its instance has had.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_instances_where_the_config_says_so_only() {
    for (more, second) in [("shared = true", "2"), ("", "1")] {
        let stage = guest("honest", &format!("{more}\n[pipeline.stage.limits]\nwall_ms = 20000"));
        let gateway = Gateway::start(&format!("{}{stage}", keys(&["ann", "bob"]))).await;
        assert_eq!(chat(&gateway, "ann", "calls").await.text(), "1");
        assert_eq!(chat(&gateway, "bob", "calls").await.text(), second, "{more}");
    }
}

/// Room for thousands of stacks among it, of which a process cannot have any number.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_dropped_gives_back_all_that_it_held() {
    let (config, folder) = (guest("honest", ""), tempfile::tempdir().unwrap());
    let gateway = Gateway::start(&format!("{config}[store]\npath = {:?}\n", folder.path())).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    let (addr, pipeline) = (gateway.addr, Arc::downgrade(&gateway.running.pipeline()));
    drop(gateway);
    let until = Instant::now() + Duration::from_secs(60);
    while pipeline.upgrade().is_some() || TcpStream::connect(addr).await.is_ok() {
        assert!(Instant::now() < until, "it is there still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A memory behind HTTP, a webhook and audit lines know callers again.
#[tokio::test(flavor = "multi_thread")]
async fn plugins_know_a_caller_by_the_same_pseudonym_wherever_the_store_is_the_same() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let started = async |store: usize| {
        let store = format!("[store]\npath = {:?}\n", folders[store].path());
        Gateway::start(&format!("{store}{}{}", keys(&["ann", "bob"]), guest("honest", ""))).await
    };
    let known = async |gateway: &Gateway, key: &str| {
        let seen = chat(gateway, key, "context").await.text();
        seen.split(' ').nth(1).unwrap().to_owned()
    };
    let first = started(0).await;
    let (ann, bob) = (known(&first, "ann").await, known(&first, "bob").await);
    assert_ne!(ann, bob);
    first.running.stop(Duration::from_secs(5)).await;
    let again = started(0).await;
    assert_eq!((known(&again, "ann").await, known(&again, "bob").await), (ann.clone(), bob));
    again.running.stop(Duration::from_secs(5)).await;
    let elsewhere = started(1).await;
    assert_ne!(known(&elsewhere, "ann").await, ann, "the key is the store's");
}
