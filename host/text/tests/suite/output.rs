//! Answers to events, whole and in every chunking.

use proptest::prelude::*;
use tidegate_text::OutputEvent::{Reasoning, Text};
use tidegate_text::{Dialect, OutputEvent, OutputParser, ReasoningTags, ToolFormat};

fn dialect(tools: ToolFormat, thinks: bool) -> Dialect {
    let tags = ReasoningTags { open: "<think>".to_owned(), close: "</think>".to_owned() };
    Dialect { tools, reasoning: thinks.then_some(tags) }
}

/// Events of these chunks, adjacent texts joined, ends checked on the way.
fn parse(dialect: &Dialect, in_reasoning: bool, chunks: &[&str]) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(dialect, in_reasoning);
    let mut parsed: Vec<_> = chunks.iter().flat_map(|chunk| parser.push(chunk)).collect();
    parsed.extend(parser.finish());
    let whole = chunks.concat();
    let mut last_end = 0;
    let mut events = Vec::new();
    for item in parsed {
        assert!(last_end <= item.end && item.end <= whole.len(), "ends are in order");
        last_end = item.end;
        if let Text(text) | Reasoning(text) = &item.event {
            assert!(whole[..item.end].ends_with(text.as_str()), "a text ends where it says");
        }
        match (events.last_mut(), item.event) {
            (Some(Text(last)), Text(text)) | (Some(Reasoning(last)), Reasoning(text)) => last.push_str(&text),
            (_, event) => events.push(event),
        }
    }
    events
}

fn text(text: &str) -> OutputEvent {
    Text(text.to_owned())
}

fn thought(text: &str) -> OutputEvent {
    Reasoning(text.to_owned())
}

fn call(name: &str, arguments: &str) -> OutputEvent {
    OutputEvent::ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
}

/// The same whole and in single characters.
fn check(dialect: &Dialect, answer: &str, expected: &[OutputEvent]) {
    assert_eq!(parse(dialect, false, &[answer]), expected, "{answer}");
    let chars: Vec<String> = answer.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(parse(dialect, false, &chars), expected, "{answer}, by characters");
}

#[test]
fn hermes_calls_are_found_between_text() {
    let hermes = dialect(ToolFormat::Hermes, false);
    check(&hermes, "just text <b> here", &[text("just text <b> here")]);
    check(&hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}</tool_call>", &[call("f", "{\"x\": 1}")]);
    check(
        &hermes,
        "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n",
        &[text("Let me see."), call("f", "{}"), call("g", "{}")],
    );
    check(&hermes, "<tool_call>{\"name\":\"f\"}</tool_call> done", &[call("f", "{}"), text(" done")]);
}

#[test]
fn marks_inside_strings_do_not_end_a_call() {
    let hermes = dialect(ToolFormat::Hermes, false);
    let arguments = r#"{"code": "print('</tool_call>') \" <tool_call>{"}"#;
    let answer = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>");
    check(&hermes, &answer, &[call("f", arguments)]);
}

#[test]
fn arguments_are_unwrapped_and_missing_ones_empty() {
    let hermes = dialect(ToolFormat::Hermes, false);
    check(&hermes, r#"<tool_call>{"name":"f","arguments":"{\"x\":1}"}</tool_call>"#, &[call("f", r#"{"x":1}"#)]);
    check(&hermes, r#"<tool_call>{"name":"f","parameters":{"x":1}}</tool_call>"#, &[call("f", r#"{"x":1}"#)]);
    check(&hermes, r#"<tool_call>{"name":"f","arguments":null}</tool_call>"#, &[call("f", "{}")]);
}

#[test]
fn a_call_whose_closing_mark_is_missing_is_a_call() {
    let hermes = dialect(ToolFormat::Hermes, false);
    check(&hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", &[call("f", "{}")]);
    check(&hermes, "<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}", &[call("f", "{}"), call("g", "{}")]);
}

#[test]
fn malformed_calls_are_text_and_nothing_is_lost() {
    let hermes = dialect(ToolFormat::Hermes, false);
    for answer in [
        "<tool_call>",
        "a <tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>f(x)</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}</tool_call> and",
        "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1,}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"unfinished",
        " \n <tool_c",
        "</tool_call>",
    ] {
        check(&hermes, answer, &[text(answer)]);
    }
    let long = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>".replace('f', &"f".repeat(257));
    check(&hermes, &long, &[text(&long)]);
}

#[test]
fn a_good_call_after_a_malformed_one_is_found() {
    let hermes = dialect(ToolFormat::Hermes, false);
    check(
        &hermes,
        "<tool_call>oops</tool_call> <tool_call>{\"name\":\"f\"}</tool_call>",
        &[text("<tool_call>oops</tool_call>"), call("f", "{}")],
    );
}

#[test]
fn after_many_malformed_calls_the_rest_is_text() {
    let hermes = dialect(ToolFormat::Hermes, false);
    let answer = "<tool_call>x".repeat(70) + "<tool_call>{\"name\":\"f\"}</tool_call>";
    check(&hermes, &answer, &[text(&answer)]);
}

#[test]
fn an_endless_call_is_text() {
    let hermes = dialect(ToolFormat::Hermes, false);
    let answer = format!("<tool_call>{{\"name\": \"{}", "x".repeat(2 << 20));
    assert_eq!(parse(&hermes, false, &[&answer, "\"}</tool_call>"]), [text(&(answer.clone() + "\"}</tool_call>"))]);
}

#[test]
fn reasoning_comes_apart_without_its_punctuation() {
    let thinks = dialect(ToolFormat::Hermes, true);
    check(&thinks, "<think>\nfirst\n\nthen\n</think>\n\nanswer", &[thought("first\n\nthen"), text("answer")]);
    check(&thinks, "\n<think>\n\n</think>\n\nanswer\n", &[text("answer\n")]);
    check(&thinks, "no <think>here</think>", &[text("no <think>here</think>")]);
    check(&thinks, "<think>cut off <", &[thought("cut off <")]);
    check(
        &thinks,
        "<think>x <tool_call>{\"name\":\"f\"}</tool_call></think><tool_call>{\"name\":\"g\"}</tool_call>",
        &[thought("x <tool_call>{\"name\":\"f\"}</tool_call>"), call("g", "{}")],
    );
}

#[test]
fn reasoning_that_the_prompt_opened_needs_no_opening() {
    let thinks = dialect(ToolFormat::None, true);
    assert_eq!(parse(&thinks, true, &["hm\n</thi", "nk>\n\nyes"]), [thought("hm"), text("yes")]);
    assert_eq!(parse(&thinks, true, &["\n<thi", "nk>hm</think>yes"]), [thought("hm"), text("yes")]);
    assert_eq!(parse(&thinks, true, &["all of it"]), [thought("all of it")]);
}

#[test]
fn llama_calls_are_the_whole_answer() {
    let llama = dialect(ToolFormat::LlamaJson, false);
    check(&llama, r#"{"name": "f", "parameters": {"x": "1"}}"#, &[call("f", r#"{"x": "1"}"#)]);
    check(&llama, r#"<|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#, &[call("f", "{}")]);
    check(
        &llama,
        r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}"#,
        &[call("f", "{}"), call("g", "{}")],
    );
    for answer in [
        r#"{"answer": 42, "name": "f"}"#,
        r#"{"name": "Ada", "parameters": [1]}"#,
        r#"{"name": "Ada", "born": 1815}"#,
        r#"{"id": 7, "name": "Widget", "price": 3}"#,
        r#"Use {"name": "f", "parameters": {}}"#,
        "<|python_tag|>search.call(query=\"x\")",
        "{}",
        "{",
        "  plain",
        "<|python",
    ] {
        check(&llama, answer, &[text(answer)]);
    }
    check(&llama, r#"{"name": "f", "parameters": {}} so"#, &[call("f", "{}"), text(" so")]);
    check(&llama, r#"{"name": "f", "parameters": null}"#, &[call("f", "{}")]);
    check(&llama, r#"<|python_tag|>{"name": "f"}"#, &[call("f", "{}")]);
}

#[test]
fn an_answer_in_json_is_not_held_back_where_calls_are_bare_json() {
    let mut parser = OutputParser::new(&dialect(ToolFormat::LlamaJson, false), false);
    let events = parser.push("{\"city\": \"Kiel\", ");
    assert_eq!(events.len(), 1);
}

#[test]
fn mistral_calls_come_as_arrays_or_by_name() {
    let mistral = dialect(ToolFormat::Mistral, false);
    check(
        &mistral,
        r#"[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]"#,
        &[call("f", r#"{"x": 1}"#), call("g", "{}")],
    );
    check(
        &mistral,
        r#"Sure.[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}"#,
        &[text("Sure."), call("f", r#"{"x": 1}"#), call("g", "{}")],
    );
    for answer in
        ["[TOOL_CALLS] []", "[TOOL_CALLS] what now?", "[TOOL_CALLS] [{\"name\": \"f\"}, 3]", "[TOOL_CALLS]{\"x\": 1}"]
    {
        check(&mistral, answer, &[text(answer)]);
    }
}

/// As much as JSON allows, which is all that an answer is held to.
#[test]
fn numbers_that_no_float_holds_are_arguments_of_a_call() {
    let arguments = r#"{"x": 1e999}"#;
    for (format, answer) in [
        (ToolFormat::Mistral, format!("[TOOL_CALLS]f[ARGS]{arguments}")),
        (ToolFormat::Mistral, format!(r#"[TOOL_CALLS][{{"name": "f", "arguments": {arguments}}}]"#)),
        (ToolFormat::Hermes, format!(r#"<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>"#)),
        (ToolFormat::LlamaJson, format!(r#"{{"name": "f", "parameters": {arguments}}}"#)),
    ] {
        check(&dialect(format, false), &answer, &[call("f", arguments)]);
    }
}

#[test]
fn json_that_is_an_answer_keeps_the_marks_in_its_strings() {
    let parse = |said: &str, size: usize| {
        let mut parser = OutputParser::new(&dialect(ToolFormat::Mistral, true), false).calls_alone();
        let chars: Vec<char> = said.chars().collect();
        let mut parsed: Vec<_> =
            chars.chunks(size).flat_map(|part| parser.push(&part.iter().collect::<String>())).collect();
        parsed.extend(parser.finish());
        let (mut texts, mut calls) = (String::new(), Vec::new());
        parsed.into_iter().for_each(|item| match item.event {
            Text(text) => texts += &text,
            OutputEvent::ToolCall { name, .. } => calls.push(name),
            Reasoning(_) => {}
        });
        (texts, calls)
    };
    let json = r#"{"x":"[TOOL_CALLS]f[ARGS]{}"}"#;
    let listed = r#"["[TOOL_CALLS]f{}"]"#;
    for size in [1, 5, 1000] {
        assert_eq!(parse(json, size), (json.to_owned(), vec![]));
        assert_eq!(parse(listed, size), (listed.to_owned(), vec![]));
        assert_eq!(parse(&format!("<think>so</think>\n{json}"), size), (json.to_owned(), vec![]));
        let both = "\n[TOOL_CALLS]f[ARGS]{\"x\":\"[TOOL_CALLS]h[ARGS]{}\"}[TOOL_CALLS]g[ARGS]{}";
        assert_eq!(parse(both, size), (String::new(), vec!["f".to_owned(), "g".to_owned()]));
        assert_eq!(parse(&format!("<think>so</think>{both}"), size).1, ["f", "g"]);
    }
}

#[test]
fn without_tools_marks_are_text() {
    let none = dialect(ToolFormat::Hermes, false).without_tools();
    let answer = "<tool_call>{\"name\":\"f\"}</tool_call>";
    check(&none, answer, &[text(answer)]);
}

#[test]
fn text_is_not_held_back_without_reason() {
    let mut parser = OutputParser::new(&dialect(ToolFormat::Hermes, true), false);
    assert_eq!(parser.push("Hello")[0].event, text("Hello"));
    assert_eq!(parser.push(" <b").len(), 1);
    assert_eq!(parser.push(" <too").len(), 0);
    assert_eq!(parser.push("ls>")[0].event, text(" <tools>"));
}

fn fragment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "{\"name\": \"f\", \"arguments\": {\"x\": \"é}\"}}",
        "{\"name\":\"g\",\"parameters\":{}}",
        "[{\"name\": \"h\"}]",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ";",
        " ",
        "\n",
        "\n\n",
        "text",
        "é",
        "name",
        "f",
        "<",
        "<tool",
        "{\"name\"",
        ":",
    ])
}

fn format() -> impl Strategy<Value = ToolFormat> {
    prop::sample::select(vec![ToolFormat::None, ToolFormat::Hermes, ToolFormat::LlamaJson, ToolFormat::Mistral])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_chunking_gives_the_same_events(
        fragments in prop::collection::vec(fragment(), 0..12), tools in format(), thinks in any::<bool>(),
        opened in any::<bool>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let dialect = dialect(tools, thinks);
        let answer = fragments.concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| answer.floor_char_boundary(cut.index(answer.len() + 1))).collect();
        places.extend([0, answer.len()]);
        places.sort_unstable();
        let chunks: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
        prop_assert_eq!(parse(&dialect, opened, &chunks), parse(&dialect, opened, &[&answer]));
    }

    #[test]
    fn nothing_but_white_space_and_marks_is_lost(
        fragments in prop::collection::vec(fragment(), 0..12), tools in format(), thinks in any::<bool>(),
    ) {
        let answer = fragments.concat();
        let events = parse(&dialect(tools, thinks), false, &[&answer]);
        if !events.iter().any(|event| matches!(event, OutputEvent::ToolCall { .. })) {
            let kept: String = events.iter().map(|event| match event {
                Text(text) | Reasoning(text) => text.as_str(),
                OutputEvent::ToolCall { .. } => "",
            }).collect();
            let squeeze = |text: &str| -> String { text.split_whitespace().collect() };
            let (kept, answer) = (squeeze(&kept), squeeze(&answer));
            let lost = answer.len() - kept.len();
            prop_assert!(lost == 0 || thinks && lost <= "<think></think>".len(), "{} -> {}", answer, kept);
        }
    }
}
