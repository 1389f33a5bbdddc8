//! Tool calls of own models in the formats of their families, through each family's own template: the server's loop, and the
//! histories that callers send.

use crate::tool_turns::find;
use serde_json::{Value, json};
use tidegate::config::Config;
use tidegate_tests::scripted::Scripted;
use tidegate_tests::{Answer, Gateway, ask, with_model};

const STAGES: &str =
    "[[pipeline.stage]]\nplugin = \"calculator\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
const NAME: &str = "tidegate-starter";

/// A model with Mistral's template: it says this of a question, and of what a tool has answered.
fn mistral(called: &str, answer: &str) -> Scripted {
    let follows = [("[/INST]", "[TOOL_CALLS]"), ("[TOOL_CALLS]", called), ("[/TOOL_RESULTS]", answer)];
    Scripted::new("mistral", &follows)
}

/// A model with Llama's template, whose prompts all end in a line's end: it always says this.
fn llama(called: &str) -> Scripted {
    Scripted::new("llama", &[("\u{10a}", called)])
}

const SUMS: &str = r#"[{"name": "calculator", "arguments": {"expression": "17*23"}}, {"name": "calculator", "arguments": {"expression": "2+2"}}]"#;
const FINDS: &str = r#"[{"name": "find", "arguments": {}}, {"name": "find", "arguments": {"more": true}}]"#;
const LLAMA_SUMS: &str = r#"{"name": "calculator", "parameters": {"expression": "17*23"}}; {"name": "calculator", "parameters": {"expression": "2+2"}}"#;
const LLAMA_FINDS: &str = r#"{"name": "find", "parameters": {}}; {"name": "find", "parameters": {"more": true}}"#;

async fn gateway(model: &Scripted, more: &str) -> Gateway {
    Gateway::start(&format!("{}{more}", model.model(NAME))).await
}

/// The ids of the calls in an answer.
fn call_ids(answer: &Answer) -> Vec<String> {
    let answer = answer.json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
    calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()).collect()
}

/// A question, a turn that called `find` once for each id, and what the caller found.
fn found(ids: &[String]) -> Value {
    let call = |id: &String| json!({"id": id, "type": "function", "function": {"name": "find", "arguments": "{}"}});
    let calls: Vec<Value> = ids.iter().map(call).collect();
    let told = ids.iter().map(|id| json!({"role": "tool", "tool_call_id": id, "content": "a boat"}));
    let mut messages = vec![
        json!({"role": "user", "content": "Find it."}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
    ];
    messages.extend(told);
    let mut request = find();
    request["messages"] = messages.into();
    request
}

fn asked_to_find() -> Value {
    let mut request = find();
    request["messages"] = json!([{"role": "user", "content": "Find it."}]);
    request
}

/// Two calls in a turn; the second turn's prompt has both, with the ids that the server made.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_mistrals_template_goes_through_the_servers_tool_loop() {
    let model = mistral(SUMS, "It is 391.");
    let gateway = gateway(&model, STAGES).await;
    assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "It is 391.");
    let events = gateway.stream(ask("What is 17*23?")).await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "It is 391.");
}

/// What a client gets, sends back and reads again is one id, be it ours or another provider's.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_mistrals_template_takes_back_its_calls_and_those_of_others() {
    let model = mistral(FINDS, "A boat.");
    let gateway = gateway(&model, "[pipeline]\n").await;
    let ours = call_ids(&gateway.chat(asked_to_find()).await);
    assert_eq!(ours.len(), 2);
    for id in &ours {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
    let foreign = ["call_0123456789abcdef01234567", "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-5ffc", "1"];
    let foreign = foreign.map(str::to_owned);
    for ids in [&ours[..], &foreign, &[foreign[0].clone(), ours[0].clone()]] {
        assert_eq!(gateway.chat(found(ids)).await.text(), "A boat.", "{ids:?}");
    }
}

/// Its script calls in every turn: that the loop is left for having too many, and not at the second, says that the template
/// has taken the calls and outcomes of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_llamas_template_goes_on_after_two_calls_in_one_turn() {
    let model = llama(LLAMA_SUMS);
    let gateway = gateway(&model, &format!("[pipeline]\nmax_tool_turns = 2\n{STAGES}")).await;
    let answer = gateway.chat(ask("What is 17*23?")).await;
    assert_eq!((answer.status, answer.error().2), (500, json!("tool_loop")), "{:?}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_llamas_template_takes_back_two_calls_of_one_turn() {
    let model = llama(LLAMA_FINDS);
    let gateway = gateway(&model, "[pipeline]\n").await;
    let ids = call_ids(&gateway.chat(asked_to_find()).await);
    assert_eq!(ids.len(), 2);
    let again = gateway.chat(found(&ids)).await;
    assert_eq!((again.status, call_ids(&again).len()), (200, 2));
}

/// A template that takes no tool's outcome: of a caller's it says so, of the server's the server is at fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_refuses_what_the_server_added_is_no_fault_of_the_callers() {
    let model = mistral(SUMS, "It is 391.");
    let template = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no outcomes here') }}{% endif %}\
                    {{ m.content }}{% endfor %}[/INST]";
    let file = model.path().join("stubborn.jinja");
    std::fs::write(&file, template).unwrap();
    let config = format!("{}tool_format = \"mistral\"\nchat_template = {file:?}\n{STAGES}", model.model(NAME));
    let gateway = Gateway::start(&config).await;
    let answer = gateway.chat(ask("What is 17*23?")).await;
    let (message, param, code) = answer.error();
    assert_eq!((answer.status, code, param), (500, json!("template_error"), Value::Null), "{message}");
    assert!(
        message.contains(NAME) && message.contains("server's tools") && message.contains("tool_choice"),
        "{message}"
    );
    let answer = gateway.chat(found(&["a".to_owned()])).await;
    let (message, param, code) = answer.error();
    assert_eq!((answer.status, code, param), (400, json!("template_error"), json!("messages")), "{message}");
    assert!(message.contains("no outcomes here"), "{message}");
}

/// Its template shows Mistral's format; it was trained on to write another.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_format_of_the_config_counts_in_place_of_the_templates() {
    const CALL: &str = "<tool_call>{\"name\": \"find\", \"arguments\": {}}</tool_call>";
    let model = Scripted::new("mistral", &[("[/INST]", CALL)]);
    let with = async |format: &str| Gateway::start(&format!("{}{format}[pipeline]\n", model.model(NAME))).await;
    let gateway = with("").await;
    assert_eq!(gateway.chat(asked_to_find()).await.text(), CALL, "it is text to Mistral's format");
    let gateway = with("tool_format = \"hermes\"\n").await;
    assert_eq!(call_ids(&gateway.chat(asked_to_find()).await).len(), 1);
    let gateway = with("tool_format = \"none\"\n").await;
    let refused = gateway.chat(asked_to_find()).await;
    assert_eq!((refused.status, refused.error().1), (400, json!("tools")));
    assert!(refused.error().0.contains("knows no format for tool calls"), "{:?}", refused.error());
}

/// Found beside the config that names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_template_of_the_config_counts_in_place_of_the_folders() {
    let model = Scripted::new("mistral", &[("[/INST]", "Hello."), ("[/TOOL_RESULTS]", "Good day.")]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own.jinja"), "{{ messages[-1].content }}[/TOOL_RESULTS]").unwrap();
    for (more, expected) in [("", "Hello."), ("chat_template = \"own.jinja\"\n", "Good day.")] {
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, format!("{}{more}[pipeline]\n", model.model(NAME))).unwrap();
        let gateway = Gateway::start_with(Config::load(&file).unwrap()).await;
        assert_eq!(gateway.post("/v1/chat/completions", &with_model(ask("Hi."))).await.text(), expected);
    }
}
