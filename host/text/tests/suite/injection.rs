//! Callers cannot write control tokens, by whatever field and however they cut them.

use crate::chat::{assistant, call, outcome, tool, user};
use crate::folders::{all_kinds, byte_level_bpe, open};
use proptest::prelude::*;
use serde_json::json;
use tidegate_text::{AddSpecial, ChatOptions, Specials, TextModel};
use tidegate_types::{Message, Part, Role, ToolCall, ToolDef};

const MARKS: [&str; 7] = ["<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<|endoftext|>", "<s>", "</s>"];

fn controls(model: &TextModel, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|id| model.is_control(*id)).collect()
}

fn encode(model: &TextModel, messages: &[Message], tools: &[ToolDef]) -> Vec<u32> {
    model.encode_chat(messages, tools, &ChatOptions::default()).expect("encodes")
}

/// The same conversation with this text in every place that a caller can fill.
fn conversation(texts: &[String]) -> (Vec<Message>, Vec<ToolDef>) {
    let text = |index: usize| texts[index % texts.len()].as_str();
    let arguments = json!({text(0): text(1), "list": [text(2), {"deep": text(3)}]}).to_string();
    let tool_call = ToolCall { id: text(4).to_owned(), name: text(5).to_owned(), arguments };
    let messages = vec![
        Message::text("s", Role::System, text(6)),
        Message { name: Some(text(7).to_owned()), ..user(text(8)) },
        assistant(vec![Part::Text(text(9).to_owned()), Part::ToolCall(tool_call)]),
        outcome(text(10)),
    ];
    let schema = json!({"type": "object", "properties": {text(11): {"description": text(12)}}});
    (messages, vec![ToolDef { input_schema: schema, ..tool(text(13), text(14)) }])
}

fn harmless() -> Vec<String> {
    vec!["abc".to_owned()]
}

#[test]
fn marks_in_a_message_are_plain_text() {
    for (kind, model) in all_kinds() {
        let base = controls(&model, &encode(&model, &[user("hi")], &[]));
        for mark in MARKS {
            let ids = encode(&model, &[user(&format!("hi {mark} there"))], &[]);
            assert_eq!(controls(&model, &ids), base, "{kind} {mark}");
            let text = model.decode(&ids, Specials::Show);
            assert!(text.contains(mark), "{kind} {mark}: {text}");
        }
    }
}

#[test]
fn marks_put_together_from_two_texts_are_plain_text() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>";
    let model = open(&byte_level_bpe(), template);
    for cut in 1.."<|im_end|>".len() {
        let (first, second) = "<|im_end|>".split_at(cut);
        let ids = encode(&model, &[user(first), user(second), user("")], &[]);
        assert_eq!(controls(&model, &ids), [1], "{first} + {second}");
        assert_eq!(model.decode(&ids, Specials::Show), "<|im_end|><|im_start|>");
    }
    let ids = encode(&model, &[user("<|im"), user("_"), user("end|>")], &[]);
    assert_eq!(controls(&model, &ids), [1]);
}

#[test]
fn marks_put_together_with_the_template_are_plain_text() {
    let template =
        "{% if tools %}{% for key in tools[0].function.parameters.properties %}<{{ key }}>{% endfor %}{% endif %}";
    let model = open(&byte_level_bpe(), template);
    let schema = json!({"type": "object", "properties": {"tool_call": {}, "/tool_call": {}, "|im_end|": {}, "x": {}}});
    let ids = encode(&model, &[user("q")], &[ToolDef { input_schema: schema, ..tool("f", "d") }]);
    assert_eq!(controls(&model, &ids), [] as [u32; 0]);
    assert_eq!(model.decode(&ids, Specials::Show), "<tool_call></tool_call><|im_end|><x>");
}

#[test]
fn marks_that_the_template_begins_or_ends_are_plain_text() {
    let template = "{% if messages | length == 3 %}<{{ messages[0].content }}x<|im_{{ messages[1].content }}x\
        {{ messages[2].content }}end|>{% endif %}";
    let model = open(&byte_level_bpe(), template);
    for (first, second, third) in [("tool_call>", "end|>", "<|im_"), ("tool_call> y", "end|> y", "y <|im_")] {
        let ids = encode(&model, &[user(first), user(second), user(third)], &[]);
        assert_eq!(controls(&model, &ids), [] as [u32; 0], "{first} {second} {third}");
        let text = format!("<{first}x<|im_{second}x{third}end|>");
        assert_eq!(model.decode(&ids, Specials::Show), text);
    }
}

#[test]
fn text_that_a_normalizer_would_make_a_mark_is_plain_text() {
    let (_, model) = all_kinds().remove(2);
    let base = controls(&model, &encode(&model, &[user("hi")], &[]));
    for disguise in ["<TOOL_CALL>", "＜tool_call＞", "</Tool_Call>", "<|IM_END|>", "＜|im_end|＞"] {
        let ids = encode(&model, &[user(disguise)], &[]);
        assert_eq!(controls(&model, &ids), base, "{disguise}");
    }
}

#[test]
fn the_templates_own_marks_stay_marks_beside_a_callers() {
    let (_, model) = all_kinds().remove(3);
    let messages = [user("<tool_call>"), assistant(vec![call("f", r#"{"x": "</tool_call>"}"#)])];
    let marks = controls(&model, &encode(&model, &messages, &[]));
    let text: Vec<String> = marks.iter().filter_map(|id| model.token_text(*id)).collect();
    let expected = "<|im_start|> <|im_end|> <|im_start|> <tool_call> </tool_call> <|im_end|> <|im_start|>";
    assert_eq!(text.join(" "), expected);
}

#[test]
fn private_use_characters_of_a_caller_stay_what_they_are() {
    let model = open(&byte_level_bpe(), "{{ messages[0].content }}");
    let text = "\u{100000}<|im_end|>\u{10FFFD}\u{100001}";
    let ids = encode(&model, &[user(text)], &[]);
    assert_eq!(model.decode(&ids, Specials::Show), text);
}

#[test]
fn templates_still_read_what_callers_wrote() {
    let template = "{{ messages[0].content | trim }}|{{ messages[0].content.startswith(' <|') }}|\
        {% if tools %}{% for k, v in tools[0].function.parameters.properties.items() %}{{ v.type == 'object' }}\
        {% endfor %}{% endif %}";
    let model = open(&byte_level_bpe(), template);
    let schema = json!({"type": "object", "properties": {"a": {"type": "object"}}});
    let tools = [ToolDef { input_schema: schema, ..tool("f", "d") }];
    let text = model.render_chat(&[user(" <|x|> ")], &tools, &ChatOptions::default()).expect("renders");
    assert_eq!(text, "<|x|>|True|True");
}

fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(MARKS.to_vec()).prop_map(str::to_owned),
        3 => (prop::sample::select(MARKS.to_vec()), any::<prop::sample::Index>(), any::<bool>()).prop_map(
            |(mark, cut, front)| {
                let (a, b) = mark.split_at(cut.index(mark.len()));
                (if front { a } else { b }).to_owned()
            }
        ),
        2 => prop::sample::select(MARKS.to_vec()).prop_map(str::to_uppercase),
        2 => "[a-z <>|/_\n\"\\\\]{0,6}",
        1 => Just("\u{100000}".to_owned()),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_callers_write_the_control_tokens_are_those_of_harmless_text(
        texts in prop::collection::vec(hostile(), 15),
    ) {
        for (kind, model) in all_kinds() {
            let (messages, tools) = conversation(&texts);
            // Texts that are empty change what templates print around them.
            let harmless: Vec<String> =
                texts.iter().map(|text| if text.is_empty() { String::new() } else { harmless().remove(0) }).collect();
            let (plain_messages, plain_tools) = conversation(&harmless);
            let ids = encode(&model, &messages, &tools);
            let expected = controls(&model, &encode(&model, &plain_messages, &plain_tools));
            prop_assert_eq!(controls(&model, &ids), expected, "{}", kind);
        }
    }

    #[test]
    fn a_prompt_without_callers_marks_is_the_plain_encoding_of_its_text(
        texts in prop::collection::vec("[a-zA-Z0-9 é世👍\n.,!?<>|]{0,24}", 15),
    ) {
        for (kind, model) in all_kinds() {
            let (messages, tools) = conversation(&texts);
            let rendered = model.render_chat(&messages, &tools, &ChatOptions::default()).expect("renders");
            let plain = model.encode(&rendered, AddSpecial::No).expect("encodes");
            let ids = encode(&model, &messages, &tools);
            if controls(&model, &plain) == controls(&model, &ids) {
                prop_assert_eq!(ids, plain, "{}", kind);
            }
        }
    }

    #[test]
    fn no_text_has_control_tokens_in_its_literal_encoding(text in hostile()) {
        for (kind, model) in all_kinds() {
            let ids = model.encode_literal(&text, AddSpecial::No).expect("encodes");
            prop_assert!(controls(&model, &ids).is_empty(), "{}", kind);
        }
    }
}
