//! The load by which a release is built (`cargo xtask release`) has requests of each kind; a gateway answers all of them.

use serde_json::Value;
use tidegate_tests::Gateway;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_release_is_built_by_is_answered_whole() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        format!("[[models]]\nname = \"m\"\npath = \"bundled\"\n[store]\npath = {:?}\n", folder.path().join("data"));
    let gateway = Gateway::start(&config).await;
    let tour: Vec<Value> = serde_json::from_str(include_str!("../../../xtask/bench/tour.json")).unwrap();
    for asked in &tour {
        let answer = gateway.post(asked["path"].as_str().unwrap(), &asked["body"]).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 200, "{asked}: {text}");
        let streamed = asked["body"]["stream"] == true;
        let ends = ["data: [DONE]", "event: response.completed", "event: response.incomplete"];
        assert_eq!(ends.iter().any(|end| text.contains(end)), streamed, "{asked}: {text}");
    }
    assert!(tour.len() > 8, "{tour:?}");
}
