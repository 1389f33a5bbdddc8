use super::*;
use serde_json::{Value, json};
use tidegate_types::Citation;

fn head(form: Form) -> Head {
    Head { form, id: "x".into(), created: 9, model: "m".into(), citations: Vec::new() }
}

fn text(choice: u32, text: &str) -> Delta {
    Delta { choice, kind: DeltaKind::Text { text: text.into(), logprobs: Vec::new() } }
}

fn finish(choice: u32, reason: FinishReason) -> Delta {
    Delta { choice, kind: DeltaKind::Finish(reason) }
}

fn render(head: &Head, n: u32, deltas: Vec<Delta>) -> Result<Value, Reject> {
    let mut answer = Answer::new(n, 1000);
    for delta in deltas {
        answer.push(delta)?;
    }
    let usage = Usage { input_tokens: 1, cached_tokens: 0, output_tokens: 2, ..Default::default() };
    answer.render(head, Some(&usage)).map(|body| serde_json::from_slice(&body).unwrap())
}

#[test]
fn a_chat_answer_is_openais() {
    let deltas =
        vec![text(0, "a"), text(1, "z"), text(0, "b"), finish(1, FinishReason::Length), finish(0, FinishReason::Stop)];
    let choice = |index: u32, content: &str, reason: &str| {
        json!({"index": index, "message": {"role": "assistant", "content": content, "refusal": null},
            "logprobs": null, "finish_reason": reason})
    };
    let expected = json!({"id": "x", "object": "chat.completion", "created": 9, "model": "m",
        "choices": [choice(0, "ab", "stop"), choice(1, "z", "length")],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 0}}});
    assert_eq!(render(&head(Form::Chat), 2, deltas).unwrap(), expected);
}

#[test]
fn a_text_says_what_it_was_made_from() {
    let citation = Citation { source: "folder".into(), file: "a.md".into(), title: Some("A".into()), bytes: None };
    let head = Head { citations: vec![citation], ..head(Form::Chat) };
    let deltas = vec![text(0, "a"), finish(0, FinishReason::Stop), finish(1, FinishReason::Stop)];
    let body = render(&head, 2, deltas).unwrap();
    let cited = json!([{"type": "file_citation", "index": 0, "file_id": "a.md", "filename": "a.md",
        "source": "folder", "title": "A"}]);
    assert_eq!(body["choices"][0]["message"]["citations"], cited);
    assert_eq!(body["choices"][1]["message"].get("citations"), None);
}

#[test]
fn tool_calls_refusal_and_reasoning_have_their_fields() {
    let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let calls =
        vec![Delta { choice: 0, kind: DeltaKind::ToolCall { index: 0, call } }, finish(0, FinishReason::ToolCalls)];
    let body = render(&head(Form::Chat), 1, calls).unwrap();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(
        message["tool_calls"],
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
    );
    let refused = vec![
        Delta { choice: 0, kind: DeltaKind::Reasoning("hm".into()) },
        Delta { choice: 0, kind: DeltaKind::Refusal("no".into()) },
        finish(0, FinishReason::ContentFilter),
    ];
    let body = render(&head(Form::Chat), 1, refused).unwrap();
    let expected = json!({"role": "assistant", "content": null, "refusal": "no", "reasoning_content": "hm"});
    assert_eq!(body["choices"][0]["message"], expected);
}

#[test]
fn a_completion_is_one_text() {
    let head = head(Form::Completion { echo: true });
    let body = render(&head, 1, vec![text(0, "p"), text(0, "a"), finish(0, FinishReason::Stop)]).unwrap();
    let expected = json!([{"index": 0, "text": "pa", "logprobs": null, "finish_reason": "stop"}]);
    assert_eq!((&body["choices"], &body["object"]), (&expected, &json!("text_completion")));
}

#[test]
fn an_answer_without_an_end_or_over_the_limit_is_an_error() {
    assert_eq!(render(&head(Form::Chat), 1, vec![text(0, "a")]).unwrap_err().kind, RejectKind::Internal);
    let long = vec![text(0, &"x".repeat(1001))];
    assert_eq!(render(&head(Form::Chat), 1, long).unwrap_err().code.as_deref(), Some("answer_too_long"));
    assert!(render(&head(Form::Chat), 1, vec![text(1, "a")]).is_err());
}
