//! Behaviour of the whole cache, with scripted storage and a scripted model.

use super::*;
use tidegate_plugin_sdk::host::{fake, kv};
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Action, Attrs, Media, MediaSource, Message, Part, Role, ToolDef, ToolHints};

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<SemanticCache>(include_str!("../README.md"));
}

#[test]
fn the_readme_names_the_parameters_that_keep_no_requests_apart() {
    let readme = include_str!("../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let names = asked::HARMLESS.map(|name| format!("`{name}`"));
    let (last, names) = names.split_last().unwrap();
    assert!(readme.contains(&format!("parameters but {} and {last}.", names.join(", "))));
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    for json in [
        r#"{"threshold":0}"#,
        r#"{"threshold":1.1}"#,
        r#"{"max_temperature":-1}"#,
        r#"{"max_entries":0}"#,
        r#"{"ttl_s":0}"#,
        r#"{"ttl":5}"#,
    ] {
        assert!(matches!(configure::<SemanticCache>(json), Err(Error::InvalidConfig(_))), "{json}");
    }
}

fn params(more: &[(&str, &str)]) -> Attrs {
    let always = [("model", "\"m\""), ("form", "\"chat\"")];
    always.iter().chain(more).map(|(name, json)| ((*name).to_owned(), (*json).to_owned())).collect()
}

fn prompt(question: &str) -> Prompt {
    let messages = vec![Message::text("m0", Role::System, "Be kind."), Message::text("m1", Role::User, question)];
    Prompt { messages, params: params(&[]), ..Prompt::default() }
}

fn by(caller: &str) -> Context {
    Context { caller: caller.into(), ..Context::default() }
}

/// Two dimensions: an hour is asked for or not.
fn embeds() {
    fake::on_embed(|texts| {
        let vector =
            |text: &String| if text.contains("open") { vec![1.0, text.len() as f32 / 1e3] } else { vec![0.0, 1.0] };
        Ok(texts.iter().map(vector).collect())
    });
}

/// The verdict's answer, or its notes.
fn asked(cache: &SemanticCache, ctx: &Context, prompt: &Prompt) -> Result<String, Attrs> {
    let verdict = cache.inspect_prompt(ctx, prompt).unwrap();
    match verdict.action {
        Action::Respond(parts) => Ok(parts.iter().filter_map(Part::as_text).collect()),
        Action::Allow => Err(verdict.attrs),
        other => panic!("{other:?}"),
    }
}

fn remember(cache: &SemanticCache, question: &str, answer: &str, finish: &str, mut attrs: Attrs) {
    attrs.push(("finish-reason".into(), finish.into()));
    let messages = vec![Message::text("m0", Role::User, question), Message::text("m1", Role::Assistant, answer)];
    assert_eq!(cache.remember(&Context::default(), &Exchange { messages, attrs }), Ok(Vec::new()));
}

/// Asks, and answers as the model would.
fn learn(cache: &SemanticCache, prompt: &Prompt, answer: &str) {
    let notes = asked(cache, &by("p"), prompt).unwrap_err();
    let question: String = prompt.messages.last().unwrap().texts().map(|(_, text)| text).collect();
    remember(cache, &question, answer, "\"stop\"", notes);
}

#[test]
fn an_answer_that_a_guard_changed_or_that_lacks_something_is_not_kept() {
    embeds();
    let cache: SemanticCache = plugin("");
    let notes = asked(&cache, &by("p"), &prompt("When do you open?")).unwrap_err();
    for flag in ["changed", "unjudged", "incomplete"] {
        let attrs = notes.iter().cloned().chain([(flag.to_owned(), "true".to_owned())]).collect();
        remember(&cache, "When do you open?", "At [time].", "\"stop\"", attrs);
        assert!(asked(&cache, &by("p"), &prompt("When do you open?")).is_err(), "{flag}");
    }
    remember(&cache, "When do you open?", "At nine.", "\"stop\"", notes);
    assert_eq!(asked(&cache, &by("p"), &prompt("When do you open?")).as_deref(), Ok("At nine."));
}

/// It is none of the model that was asked, and others who may ask that one may not ask this.
#[test]
fn an_answer_of_a_model_that_stood_in_is_not_kept() {
    let cache: SemanticCache = plugin(r#"{"semantic":false}"#);
    let kept = |model: &str, answers: &str| {
        let question = format!("Do you speak {model} or {answers}?");
        let mut prompt = prompt(&question);
        prompt.params[0].1 = model.to_owned();
        let mut attrs = asked(&cache, &by("p"), &prompt).unwrap_err();
        attrs.push(("model".to_owned(), answers.to_owned()));
        remember(&cache, &question, "I do.", "\"stop\"", attrs);
        fake::counted("kept")
    };
    assert_eq!(kept("\"m\"", "\"other\""), 0);
    assert_eq!(kept("\"m\"", "\"m\""), 1);
    assert_eq!(kept("\"auto\"", "\"other\""), 2, "a router's choice");
}

#[test]
fn the_same_request_and_one_that_means_the_same_get_the_same_answer() {
    embeds();
    let cache: SemanticCache = plugin("");
    learn(&cache, &prompt("When do you open?"), "At nine.");
    assert_eq!(asked(&cache, &by("q"), &prompt("When do you open?")).as_deref(), Ok("At nine."));
    assert_eq!(asked(&cache, &by("q"), &prompt(" When do you open?\n")).as_deref(), Ok("At nine."));
    let verdict = cache.inspect_prompt(&by("q"), &prompt("At what time do you open?")).unwrap();
    assert_eq!(verdict.action, Action::Respond(vec![Part::Text("At nine.".into())]));
    assert_eq!(verdict.findings[0].category, "semantic-cache:near");
    assert!(verdict.findings[0].score.unwrap() > 0.99);
    assert!(asked(&cache, &by("q"), &prompt("Who are you?")).is_err());
    let counted = ["exact", "near", "missed", "kept", "failed"].map(fake::counted);
    assert_eq!(counted, [2, 1, 2, 1, 0]);
}

/// A model that reads the first words alone.
#[test]
fn long_questions_of_one_document_do_not_mean_the_same() {
    fake::on_embed(|texts| Ok(texts.iter().map(|text| vec![1.0, text[..40].len() as f32]).collect()));
    let about = |end: &str| prompt(&format!("{}{end}", "We open at nine. ".repeat(30)));
    let cache: SemanticCache = plugin("");
    learn(&cache, &about("When do you open?"), "At nine.");
    assert!(asked(&cache, &by("q"), &about("Who wrote this?")).is_err());
    assert_eq!(asked(&cache, &by("q"), &about("When do you open?")).as_deref(), Ok("At nine."), "the very same");
    let cache: SemanticCache = plugin(r#"{"max_near_bytes":1000,"generation":"2"}"#);
    learn(&cache, &about("When do you open?"), "At nine.");
    assert!(asked(&cache, &by("q"), &about("Who wrote this?")).is_ok(), "so the bound is what tells them apart");
}

#[test]
fn what_can_change_an_answer_keeps_requests_apart() {
    embeds();
    let cache: SemanticCache = plugin(r#"{"max_temperature":2,"tools":true}"#);
    let base = prompt("When do you open?");
    learn(&cache, &base, "At nine.");
    let with = |change: fn(&mut Prompt)| {
        let mut changed = base.clone();
        change(&mut changed);
        asked(&cache, &by("q"), &changed)
    };
    assert!(with(|_| {}).is_ok());
    for name in asked::HARMLESS {
        let mut labelled = base.clone();
        labelled.params.push((name.into(), "\"l\"".into()));
        assert!(asked(&cache, &by("q"), &labelled).is_ok(), "{name}");
    }
    assert!(with(|p| p.messages[0] = Message::text("m0", Role::System, "Be rude.")).is_err());
    assert!(with(|p| p.messages[0].role = Role::Developer).is_err());
    assert!(with(|p| p.messages[0].name = Some("x".into())).is_err());
    assert!(with(|p| p.messages[1].name = Some("x".into())).is_err());
    assert!(with(|p| p.messages.insert(1, Message::text("m2", Role::Assistant, ""))).is_err());
    assert!(with(|p| drop(p.messages.remove(0))).is_err());
    assert!(with(|p| p.messages[0].parts.push(Part::Text(String::new()))).is_err());
    assert!(with(|p| p.params[0].1 = "\"other\"".into()).is_err());
    assert!(with(|p| p.params.push(("seed".into(), "7".into()))).is_err());
    assert!(with(|p| p.params.push(("temperature".into(), "0.5".into()))).is_err());
    let tool = || ToolDef {
        name: "t".into(),
        description: String::new(),
        input_schema: "{}".into(),
        hints: ToolHints::default(),
        attrs: Vec::new(),
    };
    let mut with_tool = base.clone();
    with_tool.tools.push(tool());
    assert!(asked(&cache, &by("q"), &with_tool).is_err());
    assert!(asked(&plugin(r#"{"generation":"2"}"#), &by("q"), &base).is_err());
}

#[test]
fn callers_share_answers_where_the_operator_says_so() {
    embeds();
    for (scope, shared) in [("tenant", true), ("caller", false)] {
        let cache: SemanticCache = plugin(&format!("{{\"scope\":\"{scope}\",\"generation\":\"{scope}\"}}"));
        learn(&cache, &prompt("When do you open?"), "At nine.");
        for question in ["When do you open?", "When do you open today?"] {
            assert_eq!(asked(&cache, &by("q"), &prompt(question)).is_ok(), shared, "{scope}");
            assert!(asked(&cache, &by("p"), &prompt(question)).is_ok(), "{scope}");
        }
    }
}

/// What the host tells of what it brings behind the guards.
#[test]
fn callers_whose_answers_are_made_of_other_things_share_none() {
    embeds();
    let cache: SemanticCache = plugin("");
    let told = |name: &str, json: &str| Prompt { params: params(&[(name, json)]), ..prompt("When do you open?") };
    let (staff, guest) = (prompt("When do you open?"), told("tidegate_plugins", "[]"));
    learn(&cache, &staff, "At nine.");
    assert!(asked(&cache, &by("guest"), &guest).is_err(), "passages of the staff's");
    learn(&cache, &guest, "I do not know.");
    assert_eq!(asked(&cache, &by("other"), &guest).as_deref(), Ok("I do not know."));
    let with_memory = told("tidegate_memories", r#"["diary"]"#);
    learn(&cache, &with_memory, "At nine, Jo.");
    assert!(asked(&cache, &by("q"), &with_memory).is_err(), "memories of another");
    assert_eq!(asked(&cache, &by("p"), &with_memory).as_deref(), Ok("At nine, Jo."));
}

/// Not looked up, not kept, and no model asked: the script of vectors fails the test.
#[test]
fn requests_that_the_settings_keep_out_pass() {
    fake::on_embed(|_| panic!("asked"));
    let check = |config: &str, change: &dyn Fn(&mut Prompt)| {
        let mut changed = prompt("When do you open?");
        change(&mut changed);
        assert_eq!(asked(&plugin(config), &by("q"), &changed), Err(Vec::new()), "{config} {changed:?}");
    };
    let param =
        |name: &'static str, json: &'static str| move |p: &mut Prompt| p.params.push((name.into(), json.into()));
    check("", &param("temperature", "1.1"));
    check("", &param("temperature", "null"));
    check(r#"{"max_temperature":0.5}"#, &|_| {});
    check("", &param("n", "2"));
    check("", &param("logprobs", "0"));
    check("", &|p| p.params.clear());
    check("", &|p| p.params[1].1 = "\"completion\"".into());
    check("", &|p| p.truncated = true);
    check("", &|p| p.messages.clear());
    check("", &|p| p.messages[1] = Message::text("m1", Role::User, "  "));
    check("", &|p| p.messages[1].role = Role::Tool);
    check("", &|p| p.messages[1].attrs.push(("source".into(), "\"folder\"".into())));
    check(r#"{"max_question_bytes":10}"#, &|_| {});
    check("", &|p| p.messages[1].parts.push(Part::Opaque { kind: "image_url".into(), body: "{}".into() }));
    let image = || Part::Image(Media { mime: "image/png".into(), source: MediaSource::Withheld });
    check("", &|p| p.messages[0].parts.push(image()));
    for kind in ["image_url", "input_audio", "file"] {
        check("", &|p| p.messages[0].parts.push(Part::Opaque { kind: kind.into(), body: "{}".into() }));
    }
}

/// The host asks about each passage, memory and outcome of a tool as about a prompt.
#[test]
fn requests_are_counted_and_not_what_is_fetched_for_them() {
    let cache: SemanticCache = plugin("");
    let mut passage = Message::text("p1", Role::User, "We open at nine.");
    passage.attrs.push(("source".into(), "\"folder\"".into()));
    let fetched = Prompt { messages: vec![passage.clone()], params: params(&[]), ..Prompt::default() };
    assert_eq!(asked(&cache, &by("p"), &fetched), Err(Vec::new()));
    assert_eq!(fake::counted("passed"), 0);
    let mut request = prompt("When do you open?");
    request.messages.insert(0, passage);
    assert_eq!(asked(&cache, &by("p"), &request), Err(Vec::new()));
    assert_eq!(fake::counted("passed"), 1);
}

#[test]
fn only_whole_answers_to_the_question_as_it_was_seen_are_kept() {
    embeds();
    let cache: SemanticCache = plugin(r#"{"max_answer_bytes":100}"#);
    let question = "When do you open?";
    let notes = || asked(&cache, &by("p"), &prompt(question)).unwrap_err();
    remember(&cache, question, "At ni", "\"length\"", notes());
    remember(&cache, question, "", "\"stop\"", notes());
    remember(&cache, question, &"x".repeat(101), "\"stop\"", notes());
    remember(&cache, "When do you [redacted]?", "At nine.", "\"stop\"", notes());
    remember(&cache, question, "At nine.", "\"stop\"", Vec::new());
    remember(&cache, question, "At nine.", "\"stop\"", vec![("semantic-cache/asked".into(), "{}".into())]);
    let exchange = Exchange { messages: Vec::new(), attrs: notes() };
    assert_eq!(cache.remember(&Context::default(), &exchange), Ok(Vec::new()));
    assert_eq!(fake::counted("kept"), 0);
    remember(&cache, question, "At nine.", "\"stop\"", notes());
    assert_eq!(fake::counted("kept"), 1);
}

/// The host would end the call.
#[test]
fn an_answer_that_is_too_long_as_json_is_not_kept() {
    embeds();
    let cache: SemanticCache = plugin(r#"{"max_answer_bytes":1000000}"#);
    let question = "When do you open?";
    let notes = || asked(&cache, &by("p"), &prompt(question)).unwrap_err();
    remember(&cache, question, &"\"".repeat(600_000), "\"stop\"", notes());
    assert_eq!(fake::counted("kept"), 0);
    remember(&cache, question, &"x".repeat(600_000), "\"stop\"", notes());
    assert_eq!(fake::counted("kept"), 1);
}

/// The vectors of so many texts.
type Script = fn(usize) -> Vec<Vec<f32>>;

#[test]
fn a_model_that_makes_no_vectors_costs_near_answers_only() {
    let cache: SemanticCache = plugin("");
    let scripts: [Script; 6] = [
        |_| vec![vec![f32::NAN, 1.0]],
        |_| vec![vec![f32::INFINITY]],
        |_| vec![vec![0.0, 0.0]],
        |_| vec![vec![1.0; 5_000]],
        |_| Vec::new(),
        |_| vec![vec![1.0]; 2],
    ];
    for (script, n) in scripts.into_iter().zip(0..) {
        fake::on_embed(move |texts| Ok(script(texts.len())));
        let question = prompt(&format!("When do you open on day {n}?"));
        learn(&cache, &question, "At nine.");
        assert!(asked(&cache, &by("q"), &question).is_ok());
    }
    fake::on_embed(|_| Err(Error::Unavailable("away".into())));
    learn(&cache, &prompt("And now?"), "Yes.");
    assert!(asked(&cache, &by("q"), &prompt("And now?")).is_ok());
    assert_eq!((fake::counted("failed"), fake::counted("near")), (7, 0));
}

#[test]
fn exact_answers_need_no_model() {
    fake::on_embed(|_| panic!("asked"));
    let cache: SemanticCache = plugin(r#"{"semantic":false}"#);
    learn(&cache, &prompt("When do you open?"), "At nine.");
    assert!(asked(&cache, &by("q"), &prompt("When do you open?")).is_ok());
    assert!(asked(&cache, &by("q"), &prompt("When do you open today?")).is_err());
}

#[test]
fn the_oldest_answer_gives_way_and_storage_does_not_grow() {
    let cache: SemanticCache = plugin(r#"{"max_entries":3}"#);
    let question = |n: u16| prompt(&format!("{n}"));
    // Each question in a direction of its own, lest it be near another.
    let toward = |n: u16| fake::on_embed(move |_| Ok(vec![(0..20).map(|at| f32::from(u8::from(at == n))).collect()]));
    for n in 0..20_u16 {
        toward(n);
        learn(&cache, &question(n), &format!("answer {n}"));
    }
    assert_eq!(fake::kv_keys().iter().filter(|key| key.starts_with("answer/")).count(), 3);
    assert!(fake::kv_keys().len() <= 7, "{:?}", fake::kv_keys());
    assert!(asked(&cache, &by("q"), &question(19)).is_ok());
    toward(3);
    assert!(asked(&cache, &by("q"), &question(3)).is_err());
}

#[test]
fn a_near_question_whose_answer_is_gone_is_forgotten() {
    embeds();
    let cache: SemanticCache = plugin("");
    learn(&cache, &prompt("When do you open?"), "At nine.");
    let answer = fake::kv_keys().into_iter().find(|key| key.starts_with("answer/")).unwrap();
    kv::set(&answer, b"not JSON", None).unwrap();
    assert!(asked(&cache, &by("q"), &prompt("When do you open?")).is_err());
    assert!(asked(&cache, &by("q"), &prompt("When do you open today?")).is_err());
    let found = tidegate_plugin_sdk::host::vectors::search("answers", &[1.0, 0.0], 9, &Vec::new()).unwrap();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn storage_that_is_full_fails_no_request() {
    embeds();
    fake::limit_kv(64);
    let cache: SemanticCache = plugin("");
    learn(&cache, &prompt("When do you open?"), "At nine.");
    assert!(asked(&cache, &by("q"), &prompt("When do you open?")).is_err());
    assert_eq!((fake::counted("kept"), fake::counted("failed")), (0, 1));
}

#[test]
fn where_storage_is_full_the_oldest_answers_go() {
    let cache: SemanticCache = plugin(r#"{"semantic":false,"max_entries":500}"#);
    let question = |n: usize| prompt(&format!("{n}"));
    let is_there = |n: usize| asked(&cache, &by("q"), &question(n)).is_ok();
    (0..600).for_each(|n| learn(&cache, &question(n), "small"));
    // About what there is by now, in slots that have come round once.
    let bytes =
        fake::kv_keys().iter().map(|key| key.len() + kv::get(key).unwrap().unwrap_or_default().len() + 64).sum();
    fake::limit_kv(bytes);
    learn(&cache, &question(600), "a longer answer");
    assert!(is_there(600) && is_there(599) && !is_there(101));
    // A large one takes the room of several.
    learn(&cache, &question(601), &"x".repeat(20_000));
    assert!(is_there(601) && is_there(600));
    (602..1_700).for_each(|n| learn(&cache, &question(n), &"x".repeat(1_000)));
    assert!((1_650..1_700).all(is_there));
    assert_eq!(fake::counted("failed"), 0);
    assert!(fake::kv_keys().contains(&"gone".to_owned()));
}

#[test]
fn names_of_users_keep_answers_apart_where_those_of_callers_do() {
    embeds();
    for (scope, shared) in [("tenant", true), ("caller", false)] {
        let cache: SemanticCache = plugin(&format!("{{\"scope\":\"{scope}\",\"generation\":\"users {scope}\"}}"));
        let of = |name: &str, json: &str| Prompt { params: params(&[(name, json)]), ..prompt("When do you open?") };
        learn(&cache, &prompt("When do you open?"), "At nine.");
        for name in ["user", "safety_identifier"] {
            assert_eq!(asked(&cache, &by("p"), &of(name, "\"jo\"")).is_ok(), shared, "{scope} {name}");
        }
        assert!(asked(&cache, &by("p"), &of("prompt_cache_key", "\"k\"")).is_ok(), "{scope}");
    }
}
