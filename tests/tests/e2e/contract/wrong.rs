//! Requests that are wrong. Every operation is asked wrongly in each of the ways that there are for all of them, as the
//! document lists them, and then in ways of its own.

use super::{Ask, Contract, operations};
use hyper::Method;
use serde_json::{Value, json};

const NOTHING: &str = "00000000000000000000000000000000";

pub async fn everywhere(contract: &mut Contract<'_>) {
    let all: Vec<(String, Method, Value)> =
        operations(&contract.document).map(|(path, method, op)| (path.to_owned(), method, op.clone())).collect();
    for (path, method, operation) in all {
        // A path of the document lives as long as the test.
        let path: &'static str = path.leak();
        let words = vec![NOTHING; path.matches('{').count()];
        let ask = || Ask::new(method.clone(), path, &words);
        contract.ask(ask().with("content_length", "1")).await;
        contract.ask(ask().by("")).await;
        contract.ask(ask().by("nobody")).await;
        if path != "/admin/reload" {
            contract.ask(ask()).await;
        }
        contract.ask(ask().query("limit=0&grace_s=x&starting_after=x&order=x")).await;
        contract.ask(ask().by("reader")).await;
        if operation.get("requestBody").is_none() {
            continue;
        }
        for (body, kind) in
            [("{", "application/json"), ("[]", "application/json"), ("{}", "text/plain"), ("{}", "a+json")]
        {
            contract.ask(Ask { body: Some(body.into()), ..ask() }.with("content-type", kind)).await;
        }
        contract.ask(Ask { body: Some("{\"nobody\":1,\"model\":\"nobody\"}".into()), ..ask() }).await;
    }
}

pub async fn in_its_own_way(contract: &mut Contract<'_>) {
    let hasty = Ask::post("/v1/chat/completions", &[], super::good::chat("Hello!", json!({}))).by("hasty");
    contract.good(hasty.clone()).await;
    let chat = super::good::chat("Hello!", json!({"model": "nobody"}));
    let stream = super::good::chat("Hello!", json!({"stream": true}));
    let response = |id: &str| json!({"model": "tidegate-starter", "input": "x", "previous_response_id": id});
    for (ask, status) in [
        (hasty, 429),
        (Ask::post("/v1/chat/completions", &[], chat), 404),
        (Ask::post("/v1/chat/completions", &[], stream).with("x-tidegate-resumable", "x"), 400),
        (Ask::post("/v1/responses", &[], response("resp_0")), 404),
        (Ask::post("/v1/responses", &[], json!({"model": "tidegate-starter", "input": [{"id": "msg_0"}]})), 404),
        (Ask::post("/admin/keys", &[], json!({"name": "full"})), 409),
        (Ask::post("/admin/keys", &[], json!({"name": "root"})), 409),
        (Ask::get("/auth/login", &[]).by("").query("next=//evil.example"), 400),
        (Ask::get("/auth/callback", &[]).by("").query("state=x&code=y"), 400),
        (Ask::get("/auth/me", &[]).by("").with("cookie", "__Host-tidegate-session=x"), 401),
        (Ask::new(Method::POST, "/auth/logout", &[]).by(""), 403),
        (Ask::get("/v1/models/{model}", &["a/b"]), 404),
    ] {
        let what = format!("{} {}", ask.method, ask.url);
        assert_eq!(contract.ask(ask).await.status, status, "{what}");
    }
}
