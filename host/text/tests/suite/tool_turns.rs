//! Turns in which tools were called, laid out on the fixtures' own templates: ids of every provider, several calls at once.

use crate::chat::{assistant, tool, user};
use crate::fixtures::{MODELS, open};
use crate::folders::{self, sentencepiece_bpe};
use tidegate_text::{ChatOptions, TextError, TextModel, ToolFormat};
use tidegate_types::{Message, Part, Role, ToolCall, ToolOutcome};

fn call(id: &str, name: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: "{\"n\": 1}".to_owned() })
}

fn outcome(id: &str, content: &str) -> Part {
    Part::ToolOutcome(ToolOutcome {
        call_id: id.to_owned(),
        content: content.to_owned(),
        structured: None,
        is_error: false,
    })
}

fn told(parts: Vec<Part>) -> Message {
    Message { parts, ..Message::text("m2", Role::Tool, "") }
}

fn render(model: &TextModel, messages: &[Message]) -> Result<String, TextError> {
    let tools = [tool("tide", "Tells the tide."), tool("wind", "Tells the wind.")];
    model.render_chat(messages, &tools, &ChatOptions::default())
}

/// A turn that calls two tools, and their outcomes in messages of their own.
fn two_calls(ids: [&str; 2]) -> [Message; 4] {
    [
        user("q"),
        assistant(vec![call(ids[0], "tide"), call(ids[1], "wind")]),
        told(vec![outcome(ids[0], "high")]),
        told(vec![outcome(ids[1], "west")]),
    ]
}

/// What stands between these in a text.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Vec<&'t str> {
    text.split(begin).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0)).collect()
}

const FOREIGN: [[&str; 2]; 4] = [
    ["call_0123456789abcdef01234567", "call_0123456789abcdef01234568"],
    ["toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-5ffc"],
    ["", "call00001"],
    ["a", "\u{e9}t\u{e9}-2026"],
];

#[test]
fn two_turns_of_a_tool_loop_are_laid_out_on_each_fixtures_own_template() {
    for name in MODELS {
        let model = open(name);
        let ids = [[1; 12], [2; 12], [3; 12]].map(|random| model.call_id_form().write(&random));
        let mut messages = two_calls([&ids[0], &ids[1]]).to_vec();
        messages.push(assistant(vec![call(&ids[2], "tide")]));
        messages.push(told(vec![outcome(&ids[2], "low")]));
        let text = render(&model, &messages).unwrap_or_else(|error| panic!("{name}: {error}"));
        let places = ["high", "west", "low"].map(|said| text.find(said).unwrap_or_else(|| panic!("{name}: {text}")));
        assert!(places.is_sorted(), "{name}: {text}");
        if model.dialect().tools == ToolFormat::Mistral {
            assert_eq!(between(&text, "\"call_id\": \"", "\""), ids.each_ref(), "as the server made them");
        }
    }
}

#[test]
fn ids_of_other_providers_are_laid_out_on_each_fixtures_own_template() {
    for (name, ids) in MODELS.into_iter().flat_map(|name| FOREIGN.map(|ids| (name, ids))) {
        let text = render(&open(name), &two_calls(ids)).unwrap_or_else(|error| panic!("{name}, {ids:?}: {error}"));
        assert!(text.contains("high") && text.contains("west"), "{name}: {text}");
        if name == "mistral" {
            let (calls, outcomes) = (between(&text, "\"id\": \"", "\""), between(&text, "\"call_id\": \"", "\""));
            assert_eq!(calls, outcomes, "{text}");
            assert!(calls.len() == 2 && calls[0] != calls[1], "{text}");
            assert!(calls.iter().all(|id| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric())), "{text}");
        }
    }
}

/// A model of another family, whose template insists all the same.
#[test]
fn a_template_that_takes_short_ids_alone_gets_them_whatever_its_format() {
    let template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}\
        {{ raise_exception('nine') }}{% endif %}<tool_call>{{ c.id }}{% endfor %}{% endfor %}";
    let model = folders::open(&sentencepiece_bpe(), template);
    assert_eq!(model.dialect().tools, ToolFormat::Hermes);
    assert_eq!(model.call_id_form().write(&[7; 12]).len(), 9);
    assert_eq!(render(&model, &two_calls(FOREIGN[0])).expect("renders").len(), 2 * ("<tool_call>".len() + 9));
    let any = folders::open(&sentencepiece_bpe(), "{{ messages[1].tool_calls[0].id }}");
    assert_eq!(render(&any, &two_calls(FOREIGN[0])).expect("renders"), FOREIGN[0][0], "where any id goes, it stays");
}

/// Writes roles, texts, calls and outcomes; takes one call in a message.
const ONE_EACH: &str = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}\
    {{ raise_exception('one at a time') }}{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.id }}){% endfor %}\
    {% if m.role == 'tool' %}={{ m.name }} {{ m.tool_call_id }}{% endif %};{% endfor %}";

#[test]
fn several_calls_of_a_turn_become_a_message_each_with_its_outcome_behind_it() {
    let model = folders::open(&sentencepiece_bpe(), ONE_EACH);
    let check = |messages: &[Message], expected: &str| {
        assert_eq!(render(&model, messages).expect(expected), expected);
    };
    let said = |ids: &[(&str, &str)]| {
        let calls = ids.iter().map(|(id, name)| call(id, name));
        assistant(std::iter::once(Part::Text("let me see".into())).chain(calls).collect())
    };
    let both = said(&[("a", "tide"), ("b", "wind")]);
    let in_order = "q;let me see(tide a);high=tide a;(wind b);west=wind b;";
    check(&[user("q"), both.clone(), told(vec![outcome("a", "high")]), told(vec![outcome("b", "west")])], in_order);
    check(&[user("q"), both.clone(), told(vec![outcome("b", "west"), outcome("a", "high")])], in_order);
    check(
        &[user("q"), both.clone(), told(vec![outcome("b", "west")]), user("and?")],
        "q;let me see(tide a);(wind b);west=wind b;and?;",
    );
    check(
        &[user("q"), both, told(vec![outcome("x", "lost"), outcome("a", "high")])],
        "q;let me see(tide a);high=tide a;(wind b);lost= x;",
    );
    // Some models give all calls of a turn one id.
    check(
        &[user("q"), said(&[("a", "tide"), ("a", "tide")]), told(vec![outcome("a", "high"), outcome("a", "low")])],
        "q;let me see(tide a);high=tide a;(tide a);low=tide a;",
    );
    check(&[user("q"), said(&[("a", "tide")]), told(vec![outcome("a", "high")])], "q;let me see(tide a);high=tide a;");
}

/// It would show the first and leave out the rest, without a word.
#[test]
fn a_template_that_shows_the_first_call_alone_gets_one_in_a_message() {
    let template =
        "{% for m in messages %}{% if m.tool_calls %}({{ m.tool_calls[0].function.name }}){% endif %}{% endfor %}";
    let model = folders::open(&sentencepiece_bpe(), template);
    assert_eq!(render(&model, &two_calls(["a", "b"])).expect("renders"), "(tide)(wind)");
}

#[test]
fn a_template_that_takes_several_calls_in_a_message_gets_them() {
    let template = "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %};{% endfor %}";
    let model = folders::open(&sentencepiece_bpe(), template);
    assert_eq!(render(&model, &two_calls(["a", "b"])).expect("renders"), "user;assistant(tide)(wind);tool;tool;");
}
