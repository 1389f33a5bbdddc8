//! Answers of several turns and the guards of their text: it is one text to them, as to who reads it.

use super::{CHAT, STAGES, SUM, calculates, calls, gateway, is_told, says, whole, with};
use serde_json::{Value, json};
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, ask, events, joined};

/// `word-guard` on answers alone. Names of answers are hexadecimal: a number alone may be part of one.
fn guarded(more: &str) -> String {
    format!(
        "{STAGES}[[pipeline.stage]]\nplugin = \"word-guard\"\nstages = [\"stream-guard\"]\n\
         config = {{ words = [\"9.99\"], {more} }}\n"
    )
}

/// A client reads the text of all turns as one: what a guard holds at the end of a turn goes on with the next one's.
#[tokio::test(flavor = "multi_thread")]
async fn words_of_which_two_turns_say_a_part_each_are_one_to_the_guards() {
    let said = ["A harbour ", "seal and a harbour ", "pilot."];
    let guard = |config: &str| {
        format!(
            "{STAGES}[[pipeline.stage]]\nplugin = \"word-guard\"\nstages = [\"stream-guard\"]\n\
             config = {{ words = [\"harbour seal\"], {config} }}\n[pipeline.stage.limits]\nwall_ms = 20000\n"
        )
    };
    let turn = move |body: &Value| {
        body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count()
    };
    for stream in [false, true] {
        let upstream = StandIn::start(move |_, body| match turn(body) {
            2 => says(said[2]),
            turn => whole(&with(calls("calculator", SUM), json!({ "content": said[turn] })), "tool_calls", 10, 8),
        })
        .await;
        let request = with(ask("What is it?"), json!({ "stream": stream }));
        let text = |answer: &Answer| match stream {
            false => answer.text(),
            true => joined(&events(&answer.body), 0),
        };
        let redacting = gateway(&upstream, &guard("replacement = \"[bird]\"")).await;
        assert_eq!(text(&redacting.chat(request.clone()).await), "A [bird] and a harbour pilot.");
        let asked = upstream.asked(CHAT).pop().unwrap();
        let spoken = asked["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
        let spoken: Vec<&Value> = spoken.map(|message| &message["content"]).collect();
        assert_eq!(spoken, ["A harbour ", "[bird] and a harbour "], "the model knows what it has said, once");

        let blocking = gateway(&upstream, &guard("action = \"block\"")).await;
        let answer = blocking.chat(request).await;
        assert_eq!(text(&answer), "A ");
        assert!(String::from_utf8_lossy(&answer.body).contains("content_filter"), "{:?}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_a_call_that_a_guard_stops_is_said() {
    let turn = with(calls("calculator", "{\"expression\": \"17*9.99\"}"), json!({"content": "A harbour "}));
    let upstream = StandIn::start(move |_, _| whole(&turn, "tool_calls", 10, 8)).await;
    let guard = guarded("action = \"block\"").replace("[\"9.99\"]", "[\"9.99\", \"harbour seal\"]");
    let answer = gateway(&upstream, &guard).await.chat(ask("What is it?")).await;
    assert_eq!(answer.text(), "A harbour ");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "content_filter");
}

/// Each turn counts where its tokens end from its own beginning.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_each_turn_leave_with_its_text_past_a_guard() {
    let token = |text: &str| json!({"token": text, "logprob": -0.5, "bytes": text.as_bytes(), "top_logprobs": []});
    let said = move |message: Value, text: &str, finish: &str| {
        let choice =
            json!({"index": 0, "message": message, "finish_reason": finish, "logprobs": {"content": [token(text)]}});
        Said::json(&json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}))
    };
    let upstream = StandIn::start(move |_, body| match is_told(body) {
        true => said(json!({"role": "assistant", "content": "seals."}), "seals.", "stop"),
        false => said(with(calls("calculator", SUM), json!({"content": "A harbour "})), "A harbour ", "tool_calls"),
    })
    .await;
    let guard = "[[pipeline.stage]]\nplugin = \"word-guard\"\nstages = [\"stream-guard\"]\n\
                 config = { words = [\"harbour seal\"] }\n[pipeline.stage.limits]\nwall_ms = 20000\n";
    let gateway = gateway(&upstream, &format!("{STAGES}{guard}")).await;
    let answer = gateway.chat(with(ask("What is it?"), json!({"logprobs": true}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "A harbour seals.");
    let tokens = choice["logprobs"]["content"].as_array().unwrap().iter().map(|token| &token["token"]);
    assert_eq!(tokens.collect::<Vec<_>>(), ["A harbour ", "seals."]);
}

/// A call of the server's own tool is words of the model as any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_server_runs_on_what_guards_leave_of_its_arguments_and_not_before() {
    let upstream = calculates("{\"expression\": \"17*9.99\"}", "So it is.").await;
    for stream in [false, true] {
        let request = with(ask("What is it?"), json!({ "stream": stream }));
        let asked_before = upstream.asked(CHAT).len();
        let blocking = gateway(&upstream, &guarded("action = \"block\"")).await;
        let answer = blocking.chat(request.clone()).await;
        let said = String::from_utf8_lossy(&answer.body);
        assert!(said.contains("\"finish_reason\":\"content_filter\"") && !said.contains("9.99"), "{said}");
        assert_eq!(upstream.asked(CHAT).len(), asked_before + 1, "no tool ran");

        let redacting = gateway(&upstream, &guarded("replacement = \"2\"")).await;
        let answer = redacting.chat(request).await;
        assert!(String::from_utf8_lossy(&answer.body).contains("So it is."), "{:?}", answer.body);
        let messages = upstream.asked(CHAT).pop().unwrap()["messages"].clone();
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{\"expression\": \"17*2\"}");
        assert_eq!(messages[2]["content"], "34", "{messages}");
    }
}
