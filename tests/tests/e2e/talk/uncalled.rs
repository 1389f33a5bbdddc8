//! What tools said whose calls are not in a history, and calls of which nothing came: no model takes them, and nobody could mend
//! that by what they ask next.

use super::{on_each, said};
use crate::conversations::{get, items, post, send};
use hyper::Method;
use serde_json::{Value, json};
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Answer, Gateway};

const CHAT: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"})
}

fn output(id: &str) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": "3 boats"})
}

/// A conversation of these items, as many of which are sent at once as may be.
async fn conversation(gateway: &Gateway, items: &[Value]) -> String {
    let id = crate::conversations::new_conversation(gateway).await;
    add(gateway, &id, items).await;
    id
}

async fn add(gateway: &Gateway, id: &str, items: &[Value]) {
    for some in items.chunks(20) {
        post(gateway, &format!("/v1/conversations/{id}/items"), json!({"items": some})).await;
    }
}

/// Goes on from a conversation, which stays as it is.
async fn go_on(gateway: &Gateway, id: &str, input: Value, truncation: &str) -> Answer {
    let body = json!({"model": "chat", "input": input, "conversation": id, "store": false, "truncation": truncation});
    gateway.post("/v1/responses", &body).await
}

/// How many messages were left out, as the answer says it in both places.
fn left_out(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let left_out = answer.json()["context"]["left_out"].as_u64().unwrap_or_default();
    let header = answer.headers.get("x-tidegate-left-out").map(|value| value.to_str().unwrap().parse().unwrap());
    assert_eq!(header.unwrap_or(0_u64), left_out);
    left_out
}

/// The roles that the model was last shown.
fn shown(upstream: &StandIn) -> Vec<String> {
    let asked = upstream.asked(CHAT).pop().unwrap();
    asked["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_said_is_left_out_where_its_call_was_deleted_or_never_there_and_that_is_said() {
    on_each("uncalled", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, "Fine.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        let all = [user("How many?"), call("a"), output("a"), call("b"), output("b"), user("And?")];
        let id = conversation(&gateway, &all).await;
        let whole = go_on(&gateway, &id, json!("So?"), "disabled").await;
        assert_eq!((left_out(&whole), shown(&upstream).len()), (0, 7));
        without_item(&gateway, &upstream, &id, 1, 1).await;
        let lone = conversation(&gateway, &[output("never"), user("And?")]).await;
        assert_eq!(left_out(&go_on(&gateway, &lone, json!("So?"), "disabled").await), 1);
        // The caller's own is refused, which it can change.
        let refused = go_on(&gateway, &id, json!([output("a")]), "auto").await;
        assert_eq!((refused.status, refused.error().1), (400, json!("input")), "{:?}", refused.body);
        let answered = go_on(&gateway, &id, json!([output("b")]), "auto").await;
        assert_eq!(left_out(&answered), 1, "its call is there");
        gateway.running.stop(std::time::Duration::from_secs(5)).await;
    })
    .await;
}

/// Deletes the item at a place; `lone` items are then left out, whatever may be, and one turn with its tool is whole.
async fn without_item(gateway: &Gateway, upstream: &StandIn, id: &str, at: usize, lone: u64) {
    let item = items(gateway, id, "").await[at]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/conversations/{id}/items/{item}");
    assert_eq!(send(gateway, Method::DELETE, &path, "", None).await.status, 200);
    for truncation in ["disabled", "auto"] {
        let answer = go_on(gateway, id, json!("So?"), truncation).await;
        assert_eq!(left_out(&answer), lone, "{truncation}");
        assert_eq!(shown(upstream), ["user", "assistant", "tool", "user", "user"]);
    }
}

/// What a tool said may be deleted, and a caller may go on without having run it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_left_out_where_nothing_came_of_it_and_that_is_said() {
    on_each("unreturned", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, "Fine.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        let all = [user("How many?"), call("a"), output("a"), call("b"), output("b"), user("And?"), call("c")];
        let id = conversation(&gateway, &all).await;
        let answered = go_on(&gateway, &id, json!([output("c")]), "disabled").await;
        assert_eq!((left_out(&answered), shown(&upstream).len()), (0, 8), "it waits for its outcome");
        without_item(&gateway, &upstream, &id, 2, 2).await;
        gateway.running.stop(std::time::Duration::from_secs(5)).await;
    })
    .await;
}

/// As agents have them: a request reads the newest 1000 items, and begins between a call and what came of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_cut_between_a_call_and_its_outcome_is_answered() {
    on_each("cut_apart", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, "Fine.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        let many = |num: usize| vec![user("And?"); num];
        let id = conversation(&gateway, &[vec![user("How many?"), call("a"), output("a")], many(999)].concat()).await;
        let refused = go_on(&gateway, &id, json!("So?"), "disabled").await;
        assert_eq!((refused.status, refused.error().1), (400, json!("truncation")), "{:?}", refused.body);
        let answer = go_on(&gateway, &id, json!("So?"), "auto").await;
        assert_eq!((left_out(&answer), shown(&upstream)), (3, vec!["user".to_owned(); 1000]));
        // What is pinned is read besides, and its call is not.
        let listed = get(&gateway, &format!("/v1/conversations/{id}/items?order=asc&limit=3")).await;
        let outcome = listed["data"][2]["id"].as_str().unwrap();
        post(&gateway, &format!("/v1/conversations/{id}/items/{outcome}"), json!({"pinned": true})).await;
        add(&gateway, &id, &many(5)).await;
        let answer = go_on(&gateway, &id, json!("So?"), "auto").await;
        assert_eq!((left_out(&answer), shown(&upstream)), (7, vec!["user".to_owned(); 1001]));
        // The same the other way around.
        let call = listed["data"][1]["id"].as_str().unwrap();
        for (item, pinned) in [(outcome, false), (call, true)] {
            post(&gateway, &format!("/v1/conversations/{id}/items/{item}"), json!({"pinned": pinned})).await;
        }
        let answer = go_on(&gateway, &id, json!("So?"), "auto").await;
        assert_eq!((left_out(&answer), shown(&upstream)), (7, vec!["user".to_owned(); 1001]));
        gateway.running.stop(std::time::Duration::from_secs(5)).await;
    })
    .await;
}
