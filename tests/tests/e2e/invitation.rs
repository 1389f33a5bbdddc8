//! The request that a server offers to paste when it starts.

use tidegate_tests::{BARE, Gateway};

/// The line of a gateway with this config.
async fn offered(config: &str) -> String {
    let gateway = Gateway::start(config).await;
    let line = gateway.running.facts.iter().find_map(|fact| fact.strip_prefix("try       curl http://"));
    line.unwrap_or_else(|| panic!("{:?}", gateway.running.facts)).to_owned()
}

/// Models at a server that nobody asks.
fn models(names: &[&str]) -> String {
    let model = |name: &&str| format!("[[models]]\nname = \"{name}\"\nupstream = \"http://127.0.0.1:9/v1\"\n");
    names.iter().map(model).collect()
}

fn key(name: &str, more: &str) -> String {
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n{more}\n", blake3::hash(name.as_bytes()))
}

const ROUTER: &str = "[[pipeline.stage]]\nplugin = \"tier-router\"\nconfig = { rules = [{ models = [\"open\"] }] }\n";

/// Keys for a model that may not ask for anything, or no longer.
const READS: &str = "role = \"read-only\"\nmodels = [\"closed\"]";
const OVER: &str = "expires = 2020-01-31\nmodels = [\"closed\"]";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_offers_a_request_that_its_routers_take_and_the_most_keys_may_send() {
    let two = models(&["closed", "open"]);
    let vectors = crate::embeddings::model("");
    let (all, some) = (key("all", ""), key("some", "models = [\"open\"]"));
    for (config, path, model) in [
        (format!("{two}{BARE}"), "chat/completions", "closed"),
        (format!("{two}{ROUTER}"), "chat/completions", "auto"),
        (format!("{two}{all}{some}{BARE}"), "chat/completions", "open"),
        (format!("{two}{all}{some}{ROUTER}"), "chat/completions", "open"),
        (format!("{two}{all}{}{ROUTER}", key("routed", "models = [\"open\", \"auto\"]")), "chat/completions", "auto"),
        (format!("{vectors}{BARE}"), "embeddings", "embedding"),
        (format!("{vectors}{two}{BARE}"), "chat/completions", "closed"),
        (format!("{}{two}{BARE}", vectors.replace("\"embedding\"", "\"auto\"")), "chat/completions", "closed"),
        (format!("{two}{}{}{BARE}", key("a", "models = [\"open\"]"), key("b", READS)), "chat/completions", "open"),
        (format!("{two}{}{}{BARE}", key("a", "models = [\"open\"]"), key("b", OVER)), "chat/completions", "open"),
        (format!("{vectors}{two}{}{BARE}", key("chats", "endpoints = [\"chat\"]")), "chat/completions", "closed"),
    ] {
        let line = offered(&config).await;
        assert!(line.contains(&format!("/v1/{path} ")) && line.contains(&format!("{{\"model\":\"{model}\"")), "{line}");
        assert_eq!(line.contains("$TIDEGATE_API_KEY"), config.contains("[[keys]]"), "{line}");
    }
}
