//! What `/v1/completions` takes and refuses.

use super::*;
use tidegate_types::Form;

fn completion_with(key: &str, value: Value) -> Result<ParsedRequest, Reject> {
    let mut body = json!({"model": "m", "prompt": "hi"});
    body[key] = value;
    parse_completion(&serde_json::to_vec(&body).unwrap())
}

#[test]
fn completions_are_read() {
    let parsed = completion_with("echo", json!(true)).unwrap();
    assert_eq!(parsed.chat.form, Form::Completion { echo: true });
    assert_eq!(parsed.chat.max_tokens, Some(16));
    for prompts in [vec!["a"], vec!["a", "", "b"]] {
        let chat = completion_with("prompt", json!(prompts)).unwrap().chat;
        assert_eq!(chat.messages.iter().map(Message::joined_text).collect::<Vec<_>>(), prompts);
        assert_eq!((chat.num_prompts(), chat.num_choices()), (prompts.len(), prompts.len() as u32));
    }
    let most = br#"{"model":"m","n":4,"prompt":["a","b","c","d"]}"#;
    assert_eq!(parse_completion(most).unwrap().chat.num_choices(), 16);
    assert_eq!(completion_with("logprobs", json!(5)).unwrap().chat.sampling.logprobs, Some(5));
    assert!(completion_with("best_of", json!(1)).is_ok() && completion_with("suffix", json!("")).is_ok());
}

#[test]
fn wrong_completions_are_refused() {
    refused(completion_with("prompt", json!([])), "prompt", "must have a prompt");
    refused(completion_with("prompt", json!(vec!["a"; 17])), "prompt", "at most 16 prompts");
    let five = br#"{"model":"m","n":4,"prompt":["a","b","c","d","e"]}"#;
    refused(parse_completion(five), "prompt", "5 prompts with 4 answers each (`n`); one request may have 16");
    refused(completion_with("prompt", json!(["a", [1, 2]])), "prompt", "token ids");
    refused(completion_with("prompt", json!(["a", null])), "prompt[1]", "a string");
    refused(completion_with("prompt", json!([1, 2, 3])), "prompt", "token ids");
    refused(completion_with("prompt", json!([[1, 2]])), "prompt", "token ids");
    refused(completion_with("prompt", json!(7)), "prompt", "a string");
    refused(completion_with("prompt", json!([true])), "prompt[0]", "a string");
    refused(completion_with("logprobs", json!(6)), "logprobs", "between 0 and 5");
    refused(completion_with("logprobs", json!(true)), "logprobs", "an integer");
    refused(completion_with("best_of", json!(2)), "best_of", "`n`");
    refused(completion_with("suffix", json!("x")), "suffix", "suffix");
    refused(completion_with("messages", json!([])), "messages", "/v1/chat/completions");
    let both = br#"{"model":"m","prompt":"x","echo":true,"logprobs":1}"#;
    refused(parse_completion(both), "echo", "log-probabilities");
}
