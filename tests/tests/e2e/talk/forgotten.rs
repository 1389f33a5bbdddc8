//! What is deleted is gone with all that repeats it, and what is refused or fails leaves nothing behind.

use super::{on_each, said, talk, until};
use crate::conversations::{ask, get, heard, in_files, new_conversation, post, send};
use http_body_util::BodyExt;
use hyper::{Method, Request};
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::stalling::Stalling;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Gateway, collect};

const CANARY: &str = "canary2c8d40";

async fn delete(gateway: &Gateway, path: &str) -> Value {
    let deleted = send(gateway, Method::DELETE, path, "", None).await;
    assert_eq!(deleted.status, 200, "{path}: {:?}", deleted.body);
    deleted.json()
}

/// The body may be one without an end.
async fn status(gateway: &Gateway, path: &str) -> u16 {
    let request = Request::get(gateway.url(path)).body(Default::default()).unwrap();
    gateway.send(request).await.status().as_u16()
}

/// The words of an item are in its response, in the title that a model found, and in what people said of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_words_of_a_deleted_item_are_gone_wherever_they_were_repeated() {
    on_each("forgotten", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, CANARY)).await;
        let more = "purge_after_days = 0\n[store.titles]\nmodel = \"chat\"\n[pipeline]\n";
        let gateway = store.gateway(&upstream.model("chat"), more).await;
        let id = new_conversation(&gateway).await;
        let path = format!("/v1/conversations/{id}");
        let question = json!({"model": "chat", "input": "Hello!", "conversation": id});
        let response = post(&gateway, "/v1/responses", question.clone()).await;
        until("a title", async || (get(&gateway, &path).await["title"] == CANARY).then_some(())).await;
        let item = format!("{path}/items/{}", response["output"][0]["id"].as_str().unwrap());
        post(&gateway, &format!("{item}/feedback"), json!({"rating": 1, "reason": CANARY})).await;
        let other = post(&gateway, "/v1/responses", json!({"model": "chat", "input": "Hello!"})).await;

        assert_eq!(delete(&gateway, &item).await["title"], "");
        let response = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        let found = get(&gateway, &response).await;
        assert_eq!((&found["status"], &found["output"]), (&json!("completed"), &json!([])));
        let export = gateway.get(&format!("{path}/export")).await;
        for body in [found.to_string(), String::from_utf8_lossy(&export.body).into_owned()] {
            assert!(!body.contains(CANARY), "{body}");
        }
        assert_eq!(get(&gateway, &format!("/v1/conversations?q={CANARY}")).await["data"], json!([]));
        let kept = get(&gateway, &format!("/v1/responses/{}", other["id"].as_str().unwrap())).await;
        assert_eq!(kept, other, "others stay as they were");

        delete(&gateway, &format!("/v1/responses/{}", other["id"].as_str().unwrap())).await;
        gateway.running.stop(Duration::from_secs(5)).await;
        if store.is_sqlite() {
            assert!(in_files(store.folder.path(), CANARY) > 0, "not purged yet");
            let gateway = store.gateway(&upstream.model("chat"), "purge_after_days = 0\n[pipeline]\n").await;
            until("a purge", async || (in_files(store.folder.path(), CANARY) == 0).then_some(())).await;
            gateway.running.stop(Duration::from_secs(5)).await;
        }
    })
    .await;
}

/// The answer stays where its question is deleted, and cannot be made anew: there is nothing to answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_question_is_gone_says_so_when_it_is_asked_for_again() {
    on_each("unanswerable", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        let id = new_conversation(&gateway).await;
        let question = json!({"model": "chat", "input": "When?", "conversation": id});
        let response = post(&gateway, "/v1/responses", question).await;
        let path = format!("/v1/conversations/{id}/items");
        let listed = get(&gateway, &format!("{path}?order=asc")).await;
        delete(&gateway, &format!("{path}/{}", listed["data"][0]["id"].as_str().unwrap())).await;
        let item = format!("{path}/{}", response["output"][0]["id"].as_str().unwrap());
        assert_eq!(status(&gateway, &item).await, 200);
        let model = json!({"model": "chat"});
        let refused = send(&gateway, Method::POST, &format!("{item}/regenerate"), "", Some(&model)).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["code"]), (404, &json!("item_not_found")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("was deleted"), "{error}");
        assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_streamed_no_more_and_made_no_further() {
    on_each("streamed_no_more", |store| async move {
        let Stalling { model: slow, mut gone } = Stalling::start().await;
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let gateway = store.gateway(&format!("{slow}{}", upstream.model("chat")), "[pipeline]\n").await;
        let message = json!({"message_id": "1", "content": "When?", "model": "slow"});
        let stream_of = |accepted: &Value| format!("/v1/streams/{}", accepted["stream_id"].as_str().unwrap());

        // While it is made.
        let id = new_conversation(&gateway).await;
        let running = stream_of(&ask(&gateway, &id, message).await);
        let request = Request::get(gateway.url(&running)).body(Default::default()).unwrap();
        let mut reading = gateway.send(request).await.into_body();
        let first = reading.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(String::from_utf8_lossy(&first).contains("word"), "{first:?}");
        delete(&gateway, &format!("/v1/conversations/{id}")).await;
        tokio::time::timeout(Duration::from_secs(20), gone.recv()).await.expect("the model is let go");
        assert_eq!(status(&gateway, &running).await, 404);
        tokio::time::timeout(Duration::from_secs(20), reading.collect()).await.expect("an end").unwrap();
        assert_eq!(status(&gateway, &running).await, 404);

        // Once it has ended, by its conversation, and by its response.
        for by_response in [false, true] {
            let id = new_conversation(&gateway).await;
            let accepted = ask(&gateway, &id, json!({"message_id": "1", "content": "When?", "model": "chat"})).await;
            let done = heard(&gateway, &accepted["stream_id"], 0).await.pop().unwrap().1;
            let response = format!("/v1/responses/{}", done["response_id"].as_str().unwrap());
            let path = if by_response { response.clone() } else { format!("/v1/conversations/{id}") };
            assert_eq!(status(&gateway, &stream_of(&accepted)).await, 200);
            delete(&gateway, &path).await;
            for gone in [stream_of(&accepted), response.clone(), format!("{response}?stream=true")] {
                assert_eq!(status(&gateway, &gone).await, 404, "{gone}");
            }
        }

        // A stream of a response that ends after its conversation.
        let id = new_conversation(&gateway).await;
        let body = json!({"model": "slow", "input": "When?", "conversation": id, "stream": true});
        let mut reading = gateway.send(gateway.json_request("/v1/responses", &body)).await.into_body();
        let first = reading.frame().await.unwrap().unwrap().into_data().unwrap();
        let first = String::from_utf8_lossy(&first).into_owned();
        let response = &first[first.find("resp_").unwrap()..][..37];
        delete(&gateway, &format!("/v1/conversations/{id}")).await;
        assert_eq!(status(&gateway, &format!("/v1/streams/{response}")).await, 200, "who asked still listens");
        let cancel = gateway.post(&format!("/v1/streams/{response}/cancel"), &json!({})).await;
        assert_eq!(cancel.status, 200);
        tokio::time::timeout(Duration::from_secs(20), reading.collect()).await.expect("an end").unwrap();
        until("it is forgotten", async || {
            (status(&gateway, &format!("/v1/streams/{response}")).await == 404).then_some(())
        })
        .await;
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// The answer to a message, and one more to the same, go with it while they are made; an answer that is there stays.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_message_go_the_answers_that_are_being_made_for_it() {
    on_each("unanswered", |store| async move {
        let Stalling { model: slow, mut gone } = Stalling::start().await;
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let gateway = store.gateway(&format!("{slow}{}", upstream.model("chat")), "[pipeline]\n").await;
        for is_new in [true, false] {
            let id = new_conversation(&gateway).await;
            let path = format!("/v1/conversations/{id}/items");
            let message = json!({"message_id": "1", "content": "When?", "model": if is_new { "slow" } else { "chat" }});
            let mut accepted = ask(&gateway, &id, message.clone()).await;
            let item = format!("{path}/{}", accepted["item_id"].as_str().unwrap());
            if !is_new {
                heard(&gateway, &accepted["stream_id"], 0).await;
                accepted = post(&gateway, &format!("{item}/regenerate"), json!({"model": "slow"})).await;
            }
            let running = format!("/v1/streams/{}", accepted["stream_id"].as_str().unwrap());
            let request = Request::get(gateway.url(&running)).body(Default::default()).unwrap();
            let mut reading = gateway.send(request).await.into_body();
            let first = reading.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(String::from_utf8_lossy(&first).contains("word"), "{first:?}");
            delete(&gateway, &item).await;
            tokio::time::timeout(Duration::from_secs(20), gone.recv()).await.expect("the model is let go");
            tokio::time::timeout(Duration::from_secs(20), reading.collect()).await.expect("an end").unwrap();
            assert_eq!(status(&gateway, &running).await, 404);
            let left = get(&gateway, &format!("{path}?branch=all")).await;
            assert_eq!(left["data"].as_array().unwrap().len(), usize::from(!is_new), "{left}");
            if is_new {
                let again = gateway.post(&format!("/v1/conversations/{id}/messages"), &message).await;
                assert_eq!((again.status, again.error().2), (404, json!("item_not_found")));
            }
        }
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// Two places for logs, and many requests: what was refused takes none, and what has ended gives its own up.
#[tokio::test(flavor = "multi_thread")]
async fn refused_and_ended_streams_are_in_nobodys_way() {
    on_each("in_nobodys_way", |store| async move {
        let slow = Stalling::start().await.model;
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let top = format!("[server.streams]\nper_tenant = 2\n{slow}{}", upstream.model("chat"));
        let gateway = store.gateway(&top, "[pipeline]\n").await;
        let stream = async |model: &str| {
            let body = json!({"model": model, "input": "When?", "stream": true});
            let answer = gateway.post("/v1/responses", &body).await;
            (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
        };
        for _ in 0..3 {
            assert_eq!(stream("nobody").await.0, 404);
        }
        for _ in 0..3 {
            let (status, text) = stream("chat").await;
            assert!(status == 200 && text.contains("response.completed"), "{text}");
        }
        // Those that run do not, and whoever comes then is not told of what it did not send.
        let body = json!({"model": "slow", "input": "When?", "background": true});
        for _ in 0..2 {
            post(&gateway, "/v1/responses", body.clone()).await;
        }
        let (status, text) = stream("chat").await;
        assert!(status == 503 && text.contains("streams_full") && !text.contains("resumable"), "{text}");
        gateway.running.stop(Duration::from_millis(100)).await;
    })
    .await;
}

/// The first try breaks off where the store does not take that the answer is begun. Only Postgres can be made to refuse
/// that one write from outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_answer_could_not_be_begun_has_one_when_it_is_sent_again() {
    on_each("sent_again", |store| async move {
        let Some(database) = &store.postgres else { return };
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        let id = new_conversation(&gateway).await;
        let message = json!({"message_id": "1", "content": "When?", "model": "chat"});
        database.inside(
            "CREATE FUNCTION no() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no'; END $$ LANGUAGE plpgsql; \
             CREATE TRIGGER no BEFORE INSERT ON responses FOR EACH ROW EXECUTE FUNCTION no()",
        );
        let path = format!("/v1/conversations/{id}/messages");
        assert_eq!(gateway.post(&path, &message).await.status, 500);
        database.inside("DROP TRIGGER no ON responses");
        let done = talk(&gateway, &id, message).await;
        assert_eq!((&done["type"], &done["stored"]), (&json!("done"), &json!(true)), "{done}");
        let listed = get(&gateway, &format!("/v1/conversations/{id}/items")).await;
        assert_eq!(listed["data"].as_array().unwrap().len(), 2, "{listed}");
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// A refusal that others wait for elsewhere reaches them, and the key is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_under_a_key_can_be_asked_again() {
    on_each("asked_again", |store| async move {
        let upstream = StandIn::start(|_, body| said(body, "At noon.")).await;
        let gateway = store.gateway(&upstream.model("chat"), "[pipeline]\n").await;
        for (model, status) in [("nobody", 404), ("nobody", 404), ("chat", 200)] {
            let body = json!({"model": model, "input": "When?", "stream": true});
            let mut request = gateway.json_request("/v1/responses", &body);
            request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
            assert_eq!(collect(gateway.send(request).await).await.status, status, "{model}");
        }
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}
