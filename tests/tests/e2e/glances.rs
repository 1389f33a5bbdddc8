//! A guard that says at a glance how much may leave is asked about what its glance has no answer for, and about ends.

use crate::halts::stage;
use crate::one_read::{model, texts};
use crate::stages::counted;
use http_body_util::BodyExt;
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::{Gateway, ask, with_model};
use tokio::sync::Semaphore;

/// What the guard is asked about it puts `asked` in the place of.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_glance_lets_go_leaves_as_it_is_and_the_guard_is_asked_about_all_else() {
    // Each with what the client has read then.
    let pieces = [
        // There is no instance yet.
        ("One ", "asked"),
        ("two ", "askedtwo "),
        ("unsure", "askedtwo asked"),
        ("more", "askedtwo askedmore"),
        // A byte would wait, and none may.
        ("half", "askedtwo askedmoreasked"),
        ("end", "askedtwo askedmoreaskedend"),
    ];
    let let_go = Arc::new(Semaphore::new(0));
    let reads = pieces.map(|(piece, _)| vec![piece.to_owned()]).to_vec();
    let model = model("tidegate-starter", reads, &let_go).await;
    // Under a name of its own: the figures are of all gateways of this process.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/glances.wasm");
    let guard = format!("{}holdback_bytes = 0\n", stage("glanced", &format!("file = {file:?}")));
    let gateway = Gateway::start(&format!("{model}{guard}")).await;
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
    // Three glances; three windows, and the end.
    let calls = "tidegate_plugin_call_seconds_count{plugin=\"glanced\",stage=\"stream-guard\"";
    counted(&gateway, calls, 7).await;
    counted(&gateway, "tidegate_plugin_verdicts_total{plugin=\"glanced\",stage=\"stream-guard\",verdict=\"redact\"", 3)
        .await;
}
