//! Many clients at once.

use serde_json::json;
use std::sync::Arc;
use tidegate_tests::{BARE, Gateway, joined};

/// 200 streams at once: each complete, none garbled (each equals what the same question gets alone).
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_streams_are_all_complete_and_none_is_garbled() {
    let gateway = Arc::new(Gateway::start(BARE).await);
    let questions = ["What is Tidegate?", "Hello!", "What is a stream guard?", "Tell me a joke.", "Who are you?"];
    let request =
        |i: usize| json!({"messages": [{"role": "user", "content": questions[i % questions.len()]}], "max_tokens": 24});
    let mut alone = Vec::new();
    for i in 0..questions.len() {
        alone.push(gateway.chat(request(i)).await.text());
    }
    let streams: Vec<_> = (0..200)
        .map(|i| {
            let gateway = Arc::clone(&gateway);
            let request = request(i);
            tokio::spawn(async move { gateway.stream(request).await })
        })
        .collect();
    for (i, stream) in streams.into_iter().enumerate() {
        let events = stream.await.unwrap();
        assert_eq!(joined(&events, 0), alone[i % questions.len()], "stream {i}");
    }
}
