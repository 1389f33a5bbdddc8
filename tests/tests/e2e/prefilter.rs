//! A guard whose descriptor has the answer is not asked; about all else, and the end, it is.

use crate::halts::stage;
use crate::one_read::{model, texts};
use crate::stages::counted;
use http_body_util::BodyExt;
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::{Gateway, ask, with_model};
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread")]
async fn plain_words_and_numbers_are_not_asked_about_and_what_is_among_them_is_found() {
    // Each with what the client has read then.
    let pieces = [
        ("Words ", "Words "),
        ("and more", "Words and "),
        (" words (well-fed), to ", "Words and more words (well-fed), to "),
        ("john@example.com ", "Words and more words (well-fed), to [email] "),
        ("в 2024 ", "Words and more words (well-fed), to [email] в "),
        ("году, 你好", "Words and more words (well-fed), to [email] в 2024 году, 你好"),
        ("some!", "Words and more words (well-fed), to [email] в 2024 году, 你好some!"),
    ];
    let let_go = Arc::new(Semaphore::new(0));
    let reads = pieces.map(|(piece, _)| vec![piece.to_owned()]).to_vec();
    let model = model("tidegate-starter", reads, &let_go).await;
    // Under a name of its own: the figures are of all gateways of this process.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist/pii-guard.wasm");
    let gateway = Gateway::start(&format!("{model}{}", stage("prefiltered", &format!("file = {file:?}")))).await;
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let mut body = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await.into_body();
    let mut seen = Vec::new();
    for (_, read) in pieces {
        while texts(&seen).concat() != read {
            seen.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        let_go.add_permits(1);
    }
    body.collect().await.unwrap();
    counted(&gateway, "tidegate_plugin_prefiltered_total{plugin=\"prefiltered\"", 6).await;
    // The address and the end.
    let calls = "tidegate_plugin_call_seconds_count{plugin=\"prefiltered\",stage=\"stream-guard\"";
    counted(&gateway, calls, 2).await;
}
