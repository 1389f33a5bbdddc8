//! Where requests to `auto` go that no router has an opinion about.

use crate::conversations::send;
use hyper::Method;
use serde_json::json;
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::stand_in::{Said, StandIn, completion};
use tidegate_tests::{Answer, Gateway, ask};

/// A router that turns the order around, or traps.
fn router(config: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    format!(
        "[[pipeline.stage]]\nplugin = \"honest\"\nfile = {file:?}\nstages = [\"router\"]\nconfig = {{ {config} }}\n\
         limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
    )
}

/// A gateway whose models, in this order, are one that makes vectors, and `zeta`, `alpha` and `beta` of a server.
async fn gateway(server: &StandIn, pipeline: &str) -> Gateway {
    // The guest leaves out what is too small.
    let answering = ["zeta", "alpha", "beta"].map(|name| server.model(name) + "context_tokens = 1000\n").concat();
    Gateway::start(&format!("{}{answering}{pipeline}", crate::embeddings::model(""))).await
}

async fn routed(gateway: &Gateway) -> Answer {
    let mut request = ask("Hello!");
    request["model"] = "auto".into();
    gateway.chat(request).await
}

const TRAPS: &str = "trap = \"router\"";

#[tokio::test(flavor = "multi_thread")]
async fn without_a_default_the_order_is_the_configs_and_what_makes_vectors_is_left_out() {
    let server = StandIn::start(|_, _| completion("Hello.")).await;
    let gateway = gateway(&server, &router(TRAPS)).await;
    assert_eq!(routed(&gateway).await.json()["model"], "zeta");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_answers_where_no_router_does_and_nobody_else() {
    let server = StandIn::start(|_, body| match body["model"].as_str() {
        Some("beta") => Said::raw(503, "busy"),
        _ => completion("Hello."),
    })
    .await;
    let pipeline = format!("[pipeline]\ndefault = [\"beta\", \"alpha\"]\n{}", router(TRAPS));
    let both = gateway(&server, &pipeline).await;
    assert_eq!(routed(&both).await.json()["model"], "alpha", "the second, since the first is busy");
    let alone = gateway(&server, &pipeline.replace(", \"alpha\"", "")).await;
    let refused = routed(&alone).await;
    assert!(refused.status >= 500, "{}: {:?}", refused.status, refused.body);
    assert!(server.asked("/v1/chat/completions").iter().all(|body| body["model"] != "zeta"));
}

/// It turns the order around: what the default names was offered first.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_may_choose_what_the_default_does_not_name() {
    let server = StandIn::start(|_, _| completion("Hello.")).await;
    let gateway = gateway(&server, &format!("[pipeline]\ndefault = [\"beta\"]\n{}", router(""))).await;
    assert_eq!(routed(&gateway).await.json()["model"], "alpha");
}

/// Why a gateway with these models does not start; the pipeline has a router where `routes` says so.
async fn refused(default: &str, routes: bool) -> String {
    let routes = if routes { router("") } else { String::new() };
    let models = "[[models]]\nname = \"alpha\"\nupstream = \"http://127.0.0.1:9/v1\"\n";
    let text = format!("{}{models}[pipeline]\ndefault = {default}\n{routes}", crate::embeddings::model(""));
    let mut config = match Config::parse(&text) {
        Ok(config) => config,
        Err(why) => return format!("{why:#}"),
    };
    config.server.listen.set_port(0);
    config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
    let checked = tidegate::assemble::check(&config).err().map(|why| format!("{why:#}")).unwrap_or_default();
    assert!(checked.contains("pipeline.default"), "`tidegate check` says nothing of {default}: {checked}");
    tidegate::start(config).await.err().map(|why| format!("{why:#}")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_that_leads_nowhere_is_refused() {
    for (default, routes, expected) in [
        (json!(["alfa"]), true, "pipeline.default names `alfa`, which is no model; there are: embedding, alpha"),
        (json!(["alpha", "alpha"]), true, "pipeline.default names `alpha` twice"),
        (json!(["alpha", "embedding"]), true, "makes vectors and no answers"),
        (json!(["alpha"]), false, "no stage is a router; leave it out"),
    ] {
        let why = refused(&default.to_string(), routes).await;
        assert!(why.contains("pipeline.default") && why.contains(expected), "{default}: {why}");
    }
}

/// Its key names one model, and its project another. Routers that are asked about nothing fail, and would be left out.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_use_no_model_is_told_so_and_no_router_is_asked() {
    let server = StandIn::start(|_, _| completion("Hello.")).await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist/tier-router.wasm");
    let key = |name: &str, model: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!(
            "[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\ntenant = \"acme\"\nproject = \"web\"\nmodels = [\"auto\", \"{model}\"]\n"
        )
    };
    let pipeline = format!(
        "{}{}[tenants.acme.projects.web]\nmodels = [\"auto\", \"alpha\"]\n[[pipeline.stage]]\nplugin = \"tier-of-none\"\n\
         file = {file:?}\non_error = \"closed\"\nconfig = {{ default = [\"alpha\"] }}\n",
        key("none", "zeta"),
        key("some", "alpha")
    );
    let gateway = gateway(&server, &pipeline).await;
    let asked = async |key: &str| {
        let mut request = ask("Hello!");
        request["model"] = "auto".into();
        send(&gateway, Method::POST, "/v1/chat/completions", key, Some(&request)).await
    };
    for _ in 0..6 {
        let answer = asked("none").await;
        let (message, param, code) = answer.error();
        assert_eq!((answer.status, param, code), (403, json!("model"), json!("insufficient_permissions")), "{message}");
        assert!(message.contains("`models`") && !message.contains("zeta"), "{message}");
    }
    assert_eq!(asked("some").await.json()["model"], "alpha", "no router was paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_that_a_key_may_not_use_is_no_reason_to_ask_again() {
    let server = StandIn::start(|_, _| completion("Hello.")).await;
    let hash = blake3::hash(b"some");
    let key = format!("[[keys]]\nname = \"some\"\nhash = \"blake3:{hash}\"\nmodels = [\"auto\", \"alpha\"]\n");
    let gateway = gateway(&server, &format!("{key}[pipeline]\ndefault = [\"beta\"]\n{}", router(TRAPS))).await;
    let mut request = ask("Hello!");
    request["model"] = "auto".into();
    let answer = send(&gateway, Method::POST, "/v1/chat/completions", "some", Some(&request)).await;
    assert_eq!((answer.status, answer.error().2), (403, json!("insufficient_permissions")), "{:?}", answer.error());
}
