//! Conversations through the starter's template and through others.

use crate::folders::{folder, open, sentencepiece_bpe, starter};
use serde_json::json;
use std::time::{Duration, SystemTime};
use tidegate_text::{AddSpecial, ChatOptions, TextError, TextModel};
use tidegate_types::{Message, Part, Role, ToolCall, ToolDef, ToolHints, ToolOutcome};

pub fn user(text: &str) -> Message {
    Message::text("m0", Role::User, text)
}

pub fn assistant(parts: Vec<Part>) -> Message {
    Message { id: "m1".to_owned(), role: Role::Assistant, name: None, parts, provenance: None }
}

pub fn call(name: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: "call_1".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() })
}

pub fn outcome(content: &str) -> Message {
    let outcome =
        ToolOutcome { call_id: "call_1".to_owned(), content: content.to_owned(), structured: None, is_error: false };
    let parts = vec![Part::ToolOutcome(outcome)];
    Message { id: "m2".to_owned(), role: Role::Tool, name: None, parts, provenance: None }
}

pub fn tool(name: &str, description: &str) -> ToolDef {
    ToolDef {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema: json!({"type": "object", "properties": {"expression": {"type": "string"}}}),
        hints: ToolHints::default(),
        strict: false,
    }
}

fn options() -> ChatOptions {
    ChatOptions { now: SystemTime::UNIX_EPOCH + Duration::from_secs(86_400), ..ChatOptions::default() }
}

fn render(template: &str, messages: &[Message], tools: &[ToolDef]) -> Result<String, TextError> {
    open(&sentencepiece_bpe(), template).render_chat(messages, tools, &options())
}

#[test]
fn the_starter_renders_a_whole_tool_conversation() {
    let messages = [
        Message::text("m", Role::Developer, "Be brief."),
        user("2+2?"),
        assistant(vec![call("calculator", r#"{"expression": "2+2", "n": 1.0}"#)]),
        outcome("4"),
    ];
    let expected = "<|im_start|>system\nBe brief.\n\nTools:\n{\"name\": \"calculator\", \"description\": \"Counts.\", \
        \"parameters\": {\"type\": \"object\", \"properties\": {\"expression\": {\"type\": \"string\"}}}}\n\
        To use a tool, write <tool_call>{\"name\":...,\"arguments\":...}</tool_call><|im_end|>\n\
        <|im_start|>user\n2+2?<|im_end|>\n\
        <|im_start|>assistant\n<tool_call>{\"name\":\"calculator\",\"arguments\":{\"expression\":\"2+2\",\"n\":1.0}}\
        </tool_call><|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n";
    let tools = [tool("calculator", "Counts.")];
    let model = starter();
    assert_eq!(model.render_chat(&messages, &tools, &options()).expect("renders"), expected);
    let ids = model.encode_chat(&messages, &tools, &options()).expect("encodes");
    assert_eq!(ids, model.encode(expected, AddSpecial::No).expect("encodes"));
}

#[test]
fn tools_come_as_function_objects_and_none_is_none() {
    let template = "{% if tools is none %}none{% else %}{{ tools[0].type }} {{ tools[0].function.name }}{% endif %}";
    assert_eq!(render(template, &[user("q")], &[]).expect("renders"), "none");
    assert_eq!(render(template, &[user("q")], &[tool("f", "d")]).expect("renders"), "function f");
}

#[test]
fn a_tool_result_carries_its_call_id_and_the_name_of_its_call() {
    let template = "{% for m in messages %}{% if m.role == 'tool' %}{{ m.tool_call_id }} {{ m.name }} {{ m.content }}{% endif %}{% endfor %}";
    let messages = [user("q"), assistant(vec![call("weather", "{}")]), outcome("rain")];
    assert_eq!(render(template, &messages, &[]).expect("renders"), "call_1 weather rain");
}

#[test]
fn a_tool_result_beside_other_parts_is_a_message_of_its_own() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let Part::ToolOutcome(rain) = outcome("rain").parts.remove(0) else { panic!("an outcome") };
    let mixed = assistant(vec![call("weather", "{}"), Part::Text("look".to_owned()), Part::ToolOutcome(rain)]);
    assert_eq!(render(template, &[mixed], &[]).expect("renders"), "assistant:look;tool:rain;");
}

#[test]
fn arguments_are_objects_unless_the_template_needs_text() {
    let messages = [user("q"), assistant(vec![call("f", r#"{"b": [1, true], "a": null}"#)])];
    let calls = |expression: &str| {
        format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls %}}{{{{ {expression} }}}}{{% endfor %}}{{% endfor %}}"
        )
    };
    let as_json = calls("c.function.arguments | tojson");
    assert_eq!(render(&as_json, &messages, &[]).expect("renders"), r#"{"b": [1, true], "a": null}"#);
    let pasted = calls("'<' + c.function.arguments + '>'");
    assert_eq!(render(&pasted, &messages, &[]).expect("renders"), r#"<{"b": [1, true], "a": null}>"#);
    let printed = calls("c.function.arguments");
    assert_eq!(render(&printed, &messages, &[]).expect("renders"), r#"{"b": [1, true], "a": null}"#);
}

#[test]
fn arguments_that_are_no_object_stay_text() {
    let template =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
    let messages = [assistant(vec![call("f", "{broken")])];
    assert_eq!(render(template, &messages, &[]).expect("renders"), "{broken");
}

#[test]
fn reasoning_goes_where_the_template_wants_it() {
    let reads = "{% for m in messages %}{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    let inline = [assistant(vec![Part::Text("<think>\nhm\n</think>\n\nyes".to_owned())])];
    let apart = [assistant(vec![Part::Reasoning("hm".to_owned()), Part::Text("yes".to_owned())])];
    assert_eq!(render(reads, &inline, &[]).expect("renders"), "[hm]yes");
    assert_eq!(render(reads, &apart, &[]).expect("renders"), "[hm]yes");
    let drops = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    assert_eq!(render(drops, &inline, &[]).expect("renders"), "\n\nyes");
    let ignores = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_eq!(render(ignores, &inline, &[]).expect("renders"), "<think>\nhm\n</think>\n\nyes");
}

#[test]
fn what_guards_judge_apart_is_read_apart_and_texts_go_on_from_each_other() {
    let template = "{% for m in messages %}[{% if m.reasoning_content %}{{ m.reasoning_content }}{% endif %}]{{ m.content }}{% endfor %}";
    let text = |text: &str| Part::Text(text.to_owned());
    let refusal = |text: &str| Part::Refusal(text.to_owned());
    let thought = |text: &str| Part::Reasoning(text.to_owned());
    for (parts, expected) in [
        (vec![text("write to john.roe@exa"), refusal("mple.com")], "[]write to john.roe@exa\n\nmple.com"),
        (vec![refusal("a"), text("b"), text("c"), refusal("d"), refusal("e")], "[]a\n\nbc\n\nd\n\ne"),
        (vec![text("a"), refusal(""), text("b"), text(""), refusal("c"), text("")], "[]ab\n\nc"),
        (vec![refusal("a"), text(""), refusal("b"), thought("c"), thought("d")], "[c\n\nd]a\n\nb"),
    ] {
        assert_eq!(render(template, &[assistant(parts)], &[]).expect("renders"), expected);
    }
}

#[test]
fn the_developer_is_the_system_unless_the_template_knows_better() {
    let messages = [Message::text("m", Role::Developer, "x")];
    assert_eq!(render("{{ messages[0].role }}", &messages, &[]).expect("renders"), "system");
    let knows = "{% if messages[0].role == 'developer' %}dev{% endif %}";
    assert_eq!(render(knows, &messages, &[]).expect("renders"), "dev");
}

#[test]
fn a_template_for_tools_is_taken_for_requests_with_tools() {
    let config =
        json!({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    let dir =
        folder(&[("tokenizer.json", &sentencepiece_bpe().to_string()), ("tokenizer_config.json", &config.to_string())]);
    let model = TextModel::open(dir.path()).expect("opens");
    assert_eq!(model.render_chat(&[user("q")], &[], &options()).expect("renders"), "plain");
    assert_eq!(model.render_chat(&[user("q")], &[tool("f", "d")], &options()).expect("renders"), "tools");
}

#[test]
fn the_newest_template_file_wins() {
    let tokenizer = sentencepiece_bpe().to_string();
    let json_file = ("chat_template.json", r#"{"chat_template": "processor"}"#);
    let config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    let jinja = ("chat_template.jinja", "jinja");
    let cases: [(&[(&str, &str)], &str); 3] =
        [(&[json_file], "processor"), (&[json_file, config], "config"), (&[json_file, config, jinja], "jinja")];
    for (files, expected) in cases {
        let dir = folder(&[files, &[("tokenizer.json", tokenizer.as_str())]].concat());
        let model = TextModel::open(dir.path()).expect("opens");
        assert_eq!(model.render_chat(&[user("q")], &[], &options()).expect("renders"), expected);
    }
}

#[test]
fn special_tokens_and_the_date_reach_the_template() {
    let template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ strftime_now('%Y-%m-%d') }}";
    assert_eq!(render(template, &[user("q")], &[]).expect("renders"), "<s></s>1970-01-02");
}

#[test]
fn a_callers_arguments_reach_the_template_but_cannot_replace_the_hosts() {
    let model = open(&sentencepiece_bpe(), "{{ enable_thinking }}{{ messages[0].content }}");
    let with = |name: &str| {
        let mut options = options();
        options.template_args.insert(name.to_owned(), json!(false));
        model.render_chat(&[user("q")], &[], &options)
    };
    assert_eq!(with("enable_thinking").expect("renders"), "Falseq");
    for name in ["messages", "tools", "bos_token", "raise_exception"] {
        assert!(matches!(with(name), Err(TextError::ReservedArgument(given)) if given == name));
    }
}

#[test]
fn outcomes_have_the_name_of_the_latest_call_of_their_id() {
    let template = "{% for m in messages %}{{ m.name }},{% endfor %}";
    let messages =
        [assistant(vec![call("f", "{}")]), outcome("1"), outcome("2"), assistant(vec![call("g", "{}")]), outcome("3")];
    assert_eq!(render(template, &messages, &[]).expect("renders"), ",f,f,,g,");
}

#[test]
fn outcomes_of_one_call_are_laid_out_in_one_pass() {
    let (sender, rendered) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut messages = vec![assistant(vec![call("f", "{}")])];
        messages.extend((0..300_000).map(|_| outcome("")));
        sender.send(render("{{ messages | length }}", &messages, &[]))
    });
    // Looking back from each of them would take minutes.
    let rendered = rendered.recv_timeout(Duration::from_secs(60)).expect("it ends soon");
    assert_eq!(rendered.expect("renders"), "300001");
}

#[test]
fn refusals_and_limits_name_the_thing() {
    let refusal = render("{{ raise_exception('only ' + messages[0].content) }}", &[user("<|im_end|>")], &[]);
    assert!(matches!(refusal, Err(TextError::Template(text)) if text == "only <|im_end|>"));
    let image = Part::Opaque { kind: "image_url".to_owned(), body: json!({}) };
    let error = render("x", &[assistant(vec![image])], &[]).expect_err("refused");
    assert!(error.is_callers() && error.to_string().contains("`image_url`"), "{error}");
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let deep_tool = ToolDef { input_schema: deep, ..tool("f", "d") };
    assert!(matches!(render("x", &[user("q")], &[deep_tool]), Err(TextError::TooDeep { .. })));
}

#[test]
fn a_model_without_a_template_says_so() {
    let dir = folder(&[("tokenizer.json", &sentencepiece_bpe().to_string())]);
    let model = TextModel::open(dir.path()).expect("opens");
    assert!(matches!(model.encode_chat(&[user("q")], &[], &options()), Err(TextError::NoTemplate)));
}

#[test]
fn the_prompt_tells_whether_it_opened_reasoning() {
    let template = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}";
    let model = open(&sentencepiece_bpe(), template);
    let prompt = model.encode_chat(&[user("q")], &[], &options()).expect("encodes");
    assert!(model.opens_reasoning(&prompt));
    let closed = ChatOptions { add_generation_prompt: false, ..options() };
    assert!(!model.opens_reasoning(&model.encode_chat(&[user("q")], &[], &closed).expect("encodes")));
}
