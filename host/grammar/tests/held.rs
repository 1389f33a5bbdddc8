//! Answers of a model that wants anything, held to schemas: whatever its logits, what comes out is JSON that the schema
//! allows, by a validator that has nothing of llguidance.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

#[path = "held/bounds.rs"]
mod bounds;
#[path = "held/support.rs"]
mod support;
#[path = "held/values.rs"]
mod values;

use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use support::{ENDS, VOCAB, Whims, grammars, said, tenant};
use tidegate_grammar::{
    Answer, CallForm, Calls, Function, GrammarError, Grammars, Layout, Mark, Reasoning, Token, check_schema,
};

fn layout(schema: Value) -> Layout {
    Layout { answer: Some(Answer::Json(schema)), ..Layout::default() }
}

/// Says whatever the grammar lets it, to the end or for so many tokens; `None` where that was not enough.
fn speak(source: &str, whims: &mut Whims, most: usize) -> Option<(Vec<u32>, String)> {
    let mut guide = grammars().compile(&tenant(), source).unwrap().guide();
    let mut output = Vec::new();
    while output.len() < most {
        let mask = guide.mask(&output, &ENDS, VOCAB).unwrap();
        let token = whims.choose(&mask, output.len());
        if ENDS.contains(&token) {
            return Some((output.clone(), said(&output)));
        }
        output.push(token);
    }
    None
}

fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"enum": ["a", "b \"c\"", 3, null, [true]]})),
        Just(json!({"const": {"k": [1, "x\n"]}})),
        (-50_i64..50, 0_i64..100)
            .prop_map(|(low, span)| json!({"type": "integer", "minimum": low, "maximum": low + span})),
        (-9_i64..9).prop_map(|low| json!({"type": "number", "exclusiveMinimum": low, "maximum": low + 3})),
        Just(json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500})),
        (0_u64..3, 0_u64..4)
            .prop_map(|(least, more)| json!({"type": "string", "minLength": least, "maxLength": least + more})),
        Just(json!({"type": "string", "pattern": "^[a-c]{2}-[0-9]$"})),
        Just(json!({"type": ["integer", "null"], "maximum": 9, "minimum": 0})),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let named = prop::collection::vec(inner.clone(), 1..4);
        let object =
            (named, any::<[bool; 4]>(), prop::option::of(inner.clone())).prop_map(|(kinds, required, more)| {
                let names = ["a", "b", "a longer \"name\"", "d"];
                let properties: serde_json::Map<_, _> =
                    names.iter().zip(kinds).map(|(name, kind)| ((*name).to_owned(), kind)).collect();
                let required = names.iter().zip(required).filter(|(name, is)| *is && properties.contains_key(**name));
                let required: Vec<_> = required.map(|(name, _)| *name).collect();
                json!({"type": "object", "properties": properties, "required": required,
                "additionalProperties": more.unwrap_or(Value::Bool(false))})
            });
        prop_oneof![
            object,
            (inner.clone(), 0_u64..2, 0_u64..3).prop_map(|(kind, least, more)| {
                json!({"type": "array", "items": kind, "minItems": least, "maxItems": least + more})
            }),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|kinds| json!({"anyOf": kinds})),
            inner.prop_map(|kind| json!({"$ref": "#/$defs/of it", "$defs": {"of it": kind}})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_of_any_logits_is_allowed_by_the_schema(kind in schemas(), seed in any::<u64>()) {
        // A reference is to the whole document.
        let schema = match kind.get("$defs") {
            Some(_) => kind,
            None => json!({"type": "object", "properties": {"v": kind}, "required": ["v"], "additionalProperties": false}),
        };
        prop_assume!(!schema.pointer("/properties").is_some_and(|inner| inner.to_string().contains("$ref")));
        prop_assume!(!schema.pointer("/$defs/of it").is_some_and(|inner| inner.to_string().contains("$ref")));
        prop_assert_eq!(check_schema(&schema), Ok(()));
        if let Some((_, text)) = speak(&layout(schema.clone()).source(), &mut Whims::new(seed), 600) {
            let value: Value = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
            prop_assert!(support::allows(&schema, &schema, &value), "{schema} does not allow {text}");
        }
    }
}

#[test]
fn most_answers_come_to_an_end() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer",
        "minimum": 0, "maximum": 999}}, "required": ["name", "n"], "additionalProperties": false});
    let source = layout(schema.clone()).source();
    let ended: Vec<_> = (0..50).filter_map(|seed| speak(&source, &mut Whims::new(seed), 600)).collect();
    assert!(ended.len() > 40, "{} of 50", ended.len());
    for (_, text) in &ended {
        assert!(support::allows(&schema, &schema, &serde_json::from_str(text).unwrap()), "{text}");
    }
}

#[test]
fn a_name_cannot_be_spelt_twice_nor_a_mark_be_written_as_text() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let source = layout(schema).source();
    assert!(follows(&source, r#"{"a":1,"b":{"c":["x\n"]}}"#));
    assert!(!follows(&source, r#"{"a":1,"a":"#), "a name that is there");
    assert!(!follows(&source, r#"{"a":1,"\u0061":"#), "the same in another spelling");
    assert!(!follows(&source, "{\"a\":1,\"b\":\"\u{0}"));
    let mut guide = grammars().compile(&tenant(), &source).unwrap().guide();
    let mask = guide.mask(&support::tokens(r#"{"a":1,"b":""#).unwrap(), &ENDS, VOCAB).unwrap();
    assert!(support::is_set(&mask, b'x'.into()) && !support::is_set(&mask, support::OPEN), "no mark within a string");
}

/// Whether a text is a beginning of what the grammar has.
fn follows(source: &str, text: &str) -> bool {
    let mut guide = grammars().compile(&tenant(), source).unwrap().guide();
    let tokens = support::tokens(text).unwrap();
    (0..tokens.len())
        .all(|n| guide.mask(&tokens[..n], &ENDS, VOCAB).is_ok_and(|mask| support::is_set(&mask, tokens[n])))
}

#[test]
fn an_answer_ends_where_it_is_complete_and_only_there() {
    let source = layout(json!({"type": "boolean"})).source();
    let mut guide = grammars().compile(&tenant(), &source).unwrap().guide();
    let mut output = Vec::new();
    for token in support::tokens("true").unwrap() {
        assert!(!ENDS.iter().any(|end| support::is_set(&guide.mask(&output, &ENDS, VOCAB).unwrap(), *end)));
        output.push(token);
    }
    for _ in 0..2 {
        let mask = guide.mask(&output, &ENDS, VOCAB).unwrap();
        let allowed: Vec<u32> = (0..VOCAB as u32).filter(|id| support::is_set(&mask, *id)).collect();
        assert!(ENDS.iter().all(|end| allowed.contains(end)), "{allowed:?}");
        let blank = support::tokens(" \n\t\r").unwrap();
        assert!(allowed.iter().all(|id| ENDS.contains(id) || blank.contains(id)), "{allowed:?}");
    }
}

/// Of each character that may follow there are states, be it said or not.
#[test]
fn a_long_string_is_held_to_its_length_to_the_end() {
    let compiled =
        grammars().compile(&tenant(), &layout(json!({"type": "string", "maxLength": 4000})).source()).unwrap();
    let (mut guide, mut output) = (compiled.guide(), support::tokens("\"").unwrap());
    for n in 0..4000 {
        let mask = guide.mask(&output, &ENDS, VOCAB).unwrap_or_else(|error| panic!("{error} behind {n}"));
        assert!(support::is_set(&mask, b'a'.into()) && support::is_set(&mask, b'"'.into()));
        output.push(b'a'.into());
    }
    let mask = guide.mask(&output, &ENDS, VOCAB).unwrap();
    assert!(!support::is_set(&mask, b'a'.into()) && support::is_set(&mask, b'"'.into()));
    assert_eq!(mask, compiled.guide().mask(&output, &ENDS, VOCAB).unwrap());
}

/// Behind white space all names are looked at again, and large vocabularies have many tokens of it.
#[test]
fn an_object_may_have_as_many_names_as_are_taken_whatever_the_vocabulary() {
    let grammars = Grammars::new(|| {
        let bytes = (0..=255_u8).map(|byte| Token::Text(vec![byte]));
        let blanks = (0..40).map(|n| Token::Text(format!("\n{}\"", " ".repeat(n)).into_bytes()));
        Ok(bytes.chain(blanks).collect())
    });
    let named: serde_json::Map<String, Value> =
        (0..400).map(|n| (format!("q{n}"), json!({"type": "string"}))).collect();
    let schema = json!({"type": "object", "properties": named, "additionalProperties": false});
    assert_eq!(check_schema(&schema), Ok(()));
    let mut guide = grammars.compile(&tenant(), &layout(schema).source()).unwrap().guide();
    let mask = guide.mask(&support::tokens("{").unwrap(), &[], 256 + 40).unwrap();
    assert!((256..256 + 40).all(|id| support::is_set(&mask, id)));
}

/// An end is no way out of what takes too much to find out: what is said would be cut off.
#[test]
fn an_answer_that_could_end_and_takes_too_much_to_follow_fails() {
    let grammars =
        Grammars::new(|| Ok(["x".repeat(500), "x".to_owned()].map(|text| Token::Text(text.into_bytes())).into()));
    let mut guide = grammars.compile(&tenant(), "start: /x{0,60000}/").unwrap().guide();
    let first = (1..100).map(|n| guide.mask(&vec![0; n], &[2], 3)).find(|mask| !matches!(mask.as_deref(), Ok([7])));
    assert!(matches!(first, Some(Err(GrammarError::Stuck(_)))), "{first:?}");
}

#[test]
fn a_guide_that_comes_later_says_the_same() {
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "number"}}}});
    let source = layout(schema).source();
    let compiled = grammars().compile(&tenant(), &source).unwrap();
    let (output, _) = (0..99).find_map(|seed| speak(&source, &mut Whims::new(seed), 300)).unwrap();
    let mut whole = compiled.guide();
    for n in 0..=output.len() {
        let expected = whole.mask(&output[..n], &ENDS, VOCAB).unwrap();
        assert_eq!(compiled.guide().mask(&output[..n], &ENDS, VOCAB).unwrap(), expected, "behind {n}");
        assert_eq!(whole.mask(&output[..n], &ENDS, VOCAB).unwrap(), expected, "asked again");
    }
}

#[test]
fn a_token_that_may_not_follow_ends_the_answer_with_an_error() {
    let source = layout(json!({"type": "boolean"})).source();
    let mut guide = grammars().compile(&tenant(), &source).unwrap().guide();
    let stuck = guide.mask(&support::tokens("x").unwrap(), &ENDS, VOCAB);
    assert!(matches!(stuck, Err(GrammarError::Stuck(_))), "{stuck:?}");
    assert!(guide.mask(&support::tokens("x").unwrap(), &ENDS, VOCAB).is_err(), "and stays so");
}

#[test]
fn what_llguidance_cannot_hold_is_refused_in_words() {
    let refused = |schema: Value| grammars().compile(&tenant(), &layout(schema).source()).unwrap_err().to_string();
    let overlapping = refused(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}));
    assert!(overlapping.contains("oneOf") && overlapping.contains("anyOf"), "{overlapping}");
    assert!(refused(json!({"type": "string", "format": "of my own"})).contains("of my own"));
    assert!(refused(json!({"type": "string", "pattern": "(?=x)"})).len() < 400);
    assert!(refused(json!({"type": "integer", "minimum": 3, "maximum": 1})).to_lowercase().contains("minimum"));
    assert!(
        refused(json!({"allOf": vec![json!({"anyOf": vec![json!({"minimum": 1}); 9]}); 9]}))
            .contains("more than is compiled")
    );
}

fn tools(form: CallForm, several: bool, answer: Option<Answer>) -> Layout {
    let find = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false});
    let functions =
        vec![Function { name: "find".into(), schema: Some(find) }, Function { name: "any-thing".into(), schema: None }];
    Layout { calls: Some(Calls { form, functions, several }), answer, ..Layout::default() }
}

fn open() -> Mark {
    Mark::Token { id: support::OPEN, text: "<open>".into() }
}

fn close() -> Mark {
    Mark::Token { id: support::CLOSE, text: "<close>".into() }
}

fn hermes() -> CallForm {
    CallForm::Hermes { open: open(), close: close() }
}

#[test]
fn calls_are_written_as_each_family_writes_them() {
    let mistral = || CallForm::MistralList { open: open() };
    let named = || CallForm::MistralNamed { open: open(), args: close() };
    let text = || CallForm::Hermes { open: Mark::Text("<c>".into()), close: Mark::Text("</c>".into()) };
    let one = r#"«{"name": "find", "arguments": {"n": 2}}»"#;
    let two = format!("{one}\n{}", r#"«{"name":"any-thing","arguments":{"x":[1]}}»"#);
    let llama = r#"{"name": "find", "parameters": {"n": 1}}"#;
    let listed = r#"«[{"name": "find", "arguments": {"n": 1}}, {"name": "find", "arguments": {"n": 2}}]"#;
    for (layout, said, whole) in [
        (tools(hermes(), true, None), one, true),
        (tools(hermes(), true, None), &*two, true),
        (tools(hermes(), false, None), &*two, false),
        (tools(hermes(), true, None), r#"«{"name": "find", "arguments": {"n": 3"#, false),
        (tools(hermes(), true, None), r#"«{"name": "lose"#, false),
        (tools(hermes(), true, None), "I will", false),
        (tools(hermes(), true, Some(Answer::Text)), "I will.", true),
        (tools(hermes(), true, Some(Answer::Text)), &*format!("I will {two} so."), true),
        (tools(hermes(), false, Some(Answer::Text)), &*format!("I will {one}"), true),
        (tools(hermes(), true, Some(Answer::Json(json!({"type": "boolean"})))), "true", true),
        (tools(hermes(), true, Some(Answer::Json(json!({"type": "boolean"})))), one, true),
        (tools(hermes(), true, Some(Answer::Json(json!({"type": "boolean"})))), "hi", false),
        (tools(text(), true, None), r#"<c>{"name": "find", "arguments": {"n": 2}}</c>"#, true),
        (tools(CallForm::LlamaJson, true, None), &*format!("{llama}; {llama}"), true),
        (tools(CallForm::LlamaJson, false, None), &*format!("{llama}; {llama}"), false),
        (tools(mistral(), true, None), listed, true),
        (tools(mistral(), false, None), listed, false),
        (tools(named(), true, None), r#"«find»{"n": 1}«any-thing»{}"#, true),
        (tools(named(), true, None), r#"«find»{"n": 7"#, false),
    ] {
        let source = layout.source();
        let mut guide =
            grammars().compile(&tenant(), &source).unwrap_or_else(|error| panic!("{error}\n{source}")).guide();
        let tokens = support::tokens(said).unwrap();
        let fits = (0..tokens.len())
            .all(|n| guide.mask(&tokens[..n], &ENDS, VOCAB).is_ok_and(|mask| support::is_set(&mask, tokens[n])));
        assert_eq!(fits, whole, "{said}\n{source}");
        if whole {
            assert!(
                support::is_set(&guide.mask(&tokens, &ENDS, VOCAB).unwrap(), ENDS[0]),
                "it may end: {said}\n{source}"
            );
        }
    }
}

#[test]
fn reasoning_is_free_and_the_grammar_begins_behind_it() {
    let marks = || (open(), close());
    let texts = || (Mark::Text("<t>".into()), Mark::Text("</t>".into()));
    for ((open, close), begun, said, whole) in [
        (marks(), true, "so { it } is» true", true),
        (marks(), true, "true", true),
        (marks(), true, "so» maybe", false),
        (marks(), false, "«so»\n\ntrue", true),
        (marks(), false, "true", true),
        (marks(), false, "so»true", false),
        (texts(), true, "so < it</t>\ntrue", true),
        (texts(), false, "<t>so</t>true", true),
        (texts(), false, "false", true),
    ] {
        let reasoning = Some(Reasoning { open: (!begun).then_some(open), close });
        let source = Layout { reasoning, ..layout(json!({"type": "boolean"})) }.source();
        assert_eq!(follows(&source, said), whole, "{said}\n{source}");
    }
}

#[test]
fn a_mark_that_is_a_token_cannot_be_spelled_in_others() {
    let words = || Some(Answer::Text);
    let call = r#"{"name": "find", "arguments": {"n": 2}}"#;
    let named = || CallForm::MistralNamed { open: open(), args: close() };
    let listed = || CallForm::MistralList { open: open() };
    for form in [hermes(), named(), listed()] {
        for several in [true, false] {
            let source = tools(form.clone(), several, words()).source();
            for said in ["<open", "<open >", "a <close> <<op\n<op en>", "<opeé>"] {
                assert!(follows(&source, said), "{said}\n{source}");
            }
            for said in ["<open>", "So:\n<open>", "<<open>", "é<op<open>"] {
                assert!(!follows(&source, said), "{said}\n{source}");
            }
        }
    }
    let source = tools(hermes(), true, words()).source();
    assert!(follows(&source, &format!("<open «{call}» <op «{call}» and so")));
    assert!(!follows(&source, &format!("«{call}» and <open>")), "behind a call");
    let reasoning = Some(Reasoning { open: Some(open()), close: close() });
    let source = Layout { reasoning, ..tools(named(), true, words()) }.source();
    assert!(follows(&source, "«an <open> <close mark» so"));
    assert!(!follows(&source, "«an <open> <close>"), "{source}");
    assert!(!follows(&source, "«so» then <open>"), "{source}");
}

/// Whoever reads an answer takes it for reasoning from there on, and would see no call.
#[test]
fn words_do_not_begin_with_the_mark_of_reasoning_in_other_tokens() {
    let list = || CallForm::MistralList { open: open() };
    let call = r#"«[{"name": "find", "arguments": {"n": 2}}]"#;
    let end = || Mark::Text("</t>".into());
    for (mark, spelled) in [(close(), "<close>"), (Mark::Text("<t>".into()), "<t>")] {
        for several in [true, false] {
            let reasoning = Some(Reasoning { open: Some(mark.clone()), close: end() });
            let source = Layout { reasoning, ..tools(list(), several, Some(Answer::Text)) }.source();
            for said in [format!("I {spelled} {call}"), format!("  <c{call}"), format!("\n so{call}"), call.to_owned()]
            {
                assert!(follows(&source, &said), "{said}\n{source}");
            }
            for said in [format!(" {spelled}{call}"), format!("\n\u{a0}{spelled}so </t> {call}")] {
                assert!(!follows(&source, &said), "{said}\n{source}");
            }
            let begun = if spelled == "<close>" { "»" } else { spelled };
            assert!(follows(&source, &format!("{begun}so </t>\nI will {call}")), "{source}");
            assert!(!follows(&source, &format!("{spelled}so {call}")), "{source}");
        }
    }
    // A template that has begun it takes no more marks.
    let reasoning = Some(Reasoning { open: None, close: end() });
    let source = Layout { reasoning, ..tools(hermes(), true, Some(Answer::Text)) }.source();
    let call = r#"«{"name": "find", "arguments": {"n": 2}}»"#;
    assert!(follows(&source, &format!("so</t><t> and {call} <t>")), "{source}");
    let source = tools(hermes(), true, Some(Answer::Text)).source();
    assert!(follows(&source, &format!("<t>{call}<t>")), "it does not reason: {source}");
}

#[test]
fn tenants_do_not_find_each_others_grammars() {
    let grammars = Arc::new(support::grammars_of_bytes());
    let source = layout(json!({"type": "null"})).source();
    grammars.compile(&tenant(), &source).unwrap();
    assert!(grammars.kept(&tenant(), &source).is_some());
    assert!(grammars.kept(&tidegate_types::TenantId::new("other"), &source).is_none());
}

#[test]
fn hostile_schemas_are_done_with_in_time() {
    let deep = (0..44).fold(json!({"type": "string"}), |inner, _| json!({"items": inner}));
    let chain: serde_json::Map<String, Value> = (0..330)
        .map(|n| (format!("d{n}"), json!({"items": {"$ref": format!("#/$defs/d{}", (n + 1) % 330)}})))
        .collect();
    let options: Vec<Value> = (0..2000).map(|n| json!({"const": format!("option {n}")})).collect();
    let many: serde_json::Map<String, Value> =
        (0..400).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect();
    let grid: Vec<Value> =
        (0..4).map(|_| json!({"anyOf": (0..8).map(|n| json!({"minimum": n})).collect::<Vec<_>>()})).collect();
    let kinds: Vec<Value> = (0..300)
        .map(|n| json!({"type": "object", "properties": {"kind": {"const": format!("k{n}")}}, "required": ["kind"]}))
        .collect();
    let words: Vec<Value> = (0..9000).map(|n| json!(format!("w{n}"))).collect();
    let objects = vec![json!({"type": "object"}); 40];
    let named: serde_json::Map<String, Value> = (0..400).map(|n| (format!("q{n}"), json!({}))).collect();
    for (what, schema) in [
        (
            "names and a pattern",
            json!({"type": "object", "patternProperties": {"^q[0-9a-f]+7$": {"minimum": 3}}, "properties": named}),
        ),
        ("kinds", json!({"oneOf": kinds})),
        ("words", json!({"enum": words})),
        ("required", json!({"type": "object", "required": &words[..400], "additionalProperties": true})),
        ("optional", json!({"type": "object", "properties": named, "additionalProperties": false})),
        ("deep", deep),
        ("chain", json!({"$ref": "#/$defs/d0", "$defs": chain})),
        ("options", json!({"anyOf": options})),
        ("many", json!({"type": "object", "properties": many})),
        ("grid", json!({"allOf": grid})),
        ("joined", json!({"required": &words[..100], "allOf": [{"anyOf": &objects}, {"anyOf": &objects}]})),
        ("items", json!({"type": "array", "items": {"type": "object"}, "minItems": 60_000, "maxItems": 65_000})),
        ("wide", json!({"type": "string", "pattern": "((a{1000}){1000}){1000}"})),
        ("length", json!({"type": "string", "minLength": 60_000, "maxLength": 65_000})),
        ("pattern", json!({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 5000})),
        ("multiple", json!({"type": "integer", "multipleOf": 9973})),
    ] {
        assert_eq!(check_schema(&schema), Ok(()), "{what}");
        let start = std::time::Instant::now();
        let compiled = grammars().compile(&tenant(), &layout(schema).source());
        let took = start.elapsed();
        assert!(took.as_secs() < 20, "{what} took {took:?}");
        let Ok(compiled) = compiled else { continue };
        let (mut guide, mut output, mut whims) = (compiled.guide(), Vec::new(), Whims::new(1));
        for _ in 0..200 {
            let start = std::time::Instant::now();
            let mask = guide.mask(&output, &ENDS, VOCAB).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(start.elapsed().as_secs() < 2, "{what}: a mask took {:?}", start.elapsed());
            output.push(whims.choose(&mask, output.len()));
            if ENDS.contains(&output[output.len() - 1]) {
                break;
            }
        }
    }
}
