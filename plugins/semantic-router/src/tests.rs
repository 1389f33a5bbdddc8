//! Behaviour of the whole router, with a scripted model.

use super::*;
use crate::vectors::{from_bytes, to_bytes};
use proptest::prelude::*;
use tidegate_plugin_sdk::Part;
use tidegate_plugin_sdk::host::{clock, fake, kv};
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};

const CONFIG: &str = r#"{"threshold":0.6,"default":["small"],"routes":[
    {"name":"code","models":["coder"],"utterances":["rust","python"]},
    {"name":"law","models":["lawyer","large"],"utterances":["contract"],"threshold":0.9}]}"#;

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<SemanticRouter>(include_str!("../README.md"));
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    let route = |more: &str| format!(r#"{{"routes":[{{"name":"a","models":["m"],"utterances":["x"]{more}}}]}}"#);
    for json in [
        "{}".to_owned(),
        r#"{"routes":[]}"#.to_owned(),
        route(r#","threshold":1.5"#),
        route(r#","treshold":0.5"#),
        route(r#"},{"name":"a","models":["m"],"utterances":["y"]"#),
        route(r#"},{"name":"b","models":[],"utterances":["y"]"#),
        route(r#"},{"name":"b","models":["m"],"utterances":[]"#),
        route(r#"},{"name":"b","models":["m"],"utterances":["  "]"#),
        route("").replace("{\"routes\"", "{\"others\":false,\"routes\""),
        route("").replace("{\"routes\"", "{\"threshold\":-2,\"routes\""),
    ] {
        assert!(matches!(configure::<SemanticRouter>(&json), Err(Error::InvalidConfig(_))), "{json}");
    }
}

/// Three dimensions: code, law, the rest.
fn embed(text: &str) -> Vec<f32> {
    let of = |words: &[&str]| words.iter().filter(|word| text.contains(**word)).count() as f32;
    let (code, law) = (of(&["rust", "python"]), of(&["contract"]));
    vec![code, law, f32::from(u8::from(text.contains("weather"))) + 0.01]
}

fn embeds() {
    fake::on_embed(|texts| {
        assert!(texts.len() <= 256);
        Ok(texts.iter().map(|text| embed(text)).collect())
    });
}

fn candidates() -> Vec<Candidate> {
    let names = ["large", "small", "coder", "lawyer"];
    let candidate = |name: &&str| Candidate {
        id: (*name).into(),
        model: (*name).into(),
        healthy: true,
        context_tokens: 1_000,
        attrs: Vec::new(),
    };
    names.iter().map(candidate).collect()
}

fn asking(text: &str) -> RouteRequest {
    RouteRequest { messages: vec![Message::text("m0", Role::User, text)], prompt_tokens: 9, ..RouteRequest::default() }
}

fn routed(router: &SemanticRouter, text: &str) -> Result<Decision, Error> {
    router.route(&Context::default(), &asking(text), &candidates())
}

#[test]
fn the_nearest_example_decides_where_it_is_near_enough() {
    embeds();
    let router: SemanticRouter = plugin(CONFIG);
    let check = |text: &str, order: &[&str], reason: &str| {
        let decision = routed(&router, text).unwrap();
        assert_eq!(decision.order, order, "{text}");
        assert!(decision.reason.contains(reason), "{}", decision.reason);
    };
    check("a python question", &["coder", "large", "small", "lawyer"], "route `code` (1.00)");
    check("my contract", &["lawyer", "large", "small", "coder"], "route `law`");
    // 0.71 of law, whose threshold is 0.9.
    check("the weather in my contract", &["small", "large", "coder", "lawyer"], "nearest is `law` (0.7");
    check("the weather", &["small", "large", "coder", "lawyer"], "no route is near");
    check("  ", &["small", "large", "coder", "lawyer"], "there is no question");
    assert_eq!((fake::counted("routed"), fake::counted("unsure")), (2, 3));
}

#[test]
fn examples_are_asked_about_once_and_kept_for_the_next_instance() {
    embeds();
    let ask = || routed(&plugin(CONFIG), "rust").unwrap().order[0].clone();
    let router: SemanticRouter = plugin(CONFIG);
    routed(&router, "rust").unwrap();
    assert_eq!(fake::counted("embedded"), 5, "one question with an example, three examples");
    routed(&router, "rust").unwrap();
    assert_eq!((ask(), fake::counted("embedded")), ("coder".into(), 8), "and one example for what was kept");
    // Damaged storage, and storage that is full, cost a question to the model.
    for damage in [&b""[..], b"\x03\0\0\0abc", &[0xff; 40]] {
        let key = fake::kv_keys().remove(0);
        kv::set(&key, damage, None).unwrap();
        assert_eq!(ask(), "coder");
    }
    let key = fake::kv_keys().remove(0);
    kv::delete(&key).unwrap();
    fake::limit_kv(8);
    assert_eq!(ask(), "coder");
    assert!(fake::take_log().iter().any(|(_, line)| line.contains("not kept")));
}

/// A config of so many examples, of which the last one is near to nothing else.
fn many(examples: usize) -> String {
    let mut texts: Vec<String> = (1..examples).map(|n| format!("\"rust {n}\"")).collect();
    texts.push("\"contract\"".into());
    format!(r#"{{"routes":[{{"name":"a","models":["lawyer"],"utterances":[{}]}}]}}"#, texts.join(","))
}

/// A model of so many dimensions that takes so long for each question.
fn embeds_slowly(dimensions: usize, ms: u64) {
    fake::on_embed(move |texts| {
        fake::advance_ms(ms);
        Ok(texts.iter().map(|text| [embed(text), vec![0.0; dimensions - 3]].concat()).collect())
    });
}

#[test]
fn examples_that_take_longer_than_a_call_are_there_after_some() {
    embeds_slowly(1_536, 150);
    let context = Context { deadline_ms: 1_000, ..Context::default() };
    let ask = |router: &SemanticRouter| router.route(&context, &asking("contract"), &candidates());
    // Each time another instance, as when the last one was stopped.
    for have in [48, 96, 144, 192] {
        let began = clock::monotonic_ms();
        let Err(Error::Unavailable(problem)) = ask(&plugin(&many(200))) else { panic!("{have} were enough") };
        assert!(problem.contains(&format!("{have} of 200 examples")), "{problem}");
        assert!(clock::monotonic_ms() - began < 1_000);
    }
    assert_eq!(ask(&plugin(&many(200))).unwrap().reason, "route `a` (1.00)");
    assert_eq!(fake::counted("embedded"), 200 + 5 * 2, "none of them twice");
}

/// As under zero retention, where the host refuses to keep a value, and drops the instance after each call.
#[test]
fn where_nothing_is_kept_one_call_makes_all_examples() {
    embeds_slowly(1_536, 150);
    fake::limit_kv(0);
    let context = Context { deadline_ms: 1_000, ..Context::default() };
    for question in 1..=3 {
        let began = clock::monotonic_ms();
        let router: SemanticRouter = plugin(&many(200));
        let decision = router.route(&context, &asking("contract"), &candidates()).unwrap();
        assert_eq!((decision.reason.as_str(), fake::counted("embedded")), ("route `a` (1.00)", question * 202));
        assert!(clock::monotonic_ms() - began < 1_000);
        assert_eq!(fake::take_log().len(), 1, "that nothing is kept is said once for a question");
    }
    embeds_slowly(4_096, 0);
    let router: SemanticRouter = plugin(&many(1_024));
    assert!(router.route(&context, &asking("contract"), &candidates()).is_ok(), "and never too many at once");
}

#[test]
fn an_instance_that_lives_on_has_in_memory_what_is_not_kept() {
    // A model that takes as long for each text: for all together longer than a call.
    fake::on_embed(|texts| {
        fake::advance_ms(10 * texts.len() as u64);
        Ok(texts.iter().map(|text| embed(text)).collect())
    });
    fake::limit_kv(0);
    let context = Context { deadline_ms: 1_000, ..Context::default() };
    let router: SemanticRouter = plugin(&many(200));
    let ask = || {
        let began = clock::monotonic_ms();
        let is_routed = router.route(&context, &asking("contract"), &candidates()).is_ok();
        assert!(clock::monotonic_ms() - began <= 1_000, "the host would end the call, and drop the instance");
        is_routed
    };
    assert_eq!([ask(), ask(), ask(), ask()], [false, false, true, true]);
    assert_eq!(fake::counted("embedded"), 200 + 3 * 2 + 1, "none of them twice");
    assert_eq!(fake::take_log().len(), 3);
}

#[test]
fn a_value_in_kv_is_far_below_what_one_call_may_hand_over() {
    for dimensions in [3, 1_536, 4_096] {
        embeds_slowly(dimensions, 0);
        assert_eq!(routed(&plugin(&many(200)), "contract").unwrap().reason, "route `a` (1.00)");
        let value = |key: &String| kv::get(key).unwrap().unwrap();
        assert!(fake::kv_keys().iter().all(|key| value(key).len() <= 128 * 1024), "{dimensions} dimensions");
        let embedded = fake::counted("embedded");
        routed(&plugin(&many(200)), "contract").unwrap();
        assert_eq!(fake::counted("embedded") - embedded, 2, "{dimensions} dimensions: all are kept");
    }
}

/// Some pieces may be one model's and some another's, where that was exchanged while examples were asked about.
#[test]
fn no_piece_of_another_model_is_compared() {
    embeds_slowly(3, 0);
    routed(&plugin(&many(40)), "contract").unwrap();
    let other = |text: &String| {
        let [code, law, rest]: [f32; 3] = embed(text).try_into().unwrap();
        vec![law, code, rest]
    };
    let keys = fake::kv_keys();
    let (first, ours) = (&keys[0], kv::get(&keys[1]).unwrap().unwrap());
    fake::on_embed(move |texts| Ok(texts.iter().map(other).collect()));
    routed(&plugin(&many(40)), "contract").unwrap();
    assert_eq!((keys.len(), first.ends_with("/0")), (3, true));
    kv::set(&keys[1], &ours, None).unwrap();
    let embedded = fake::counted("embedded");
    routed(&plugin(&many(40)), "contract").unwrap();
    assert_eq!(fake::counted("embedded") - embedded, 2 + 16);
}

#[test]
fn a_model_that_was_exchanged_is_noticed() {
    embeds();
    let router: SemanticRouter = plugin(CONFIG);
    routed(&router, "rust").unwrap();
    fake::on_embed(|texts| Ok(texts.iter().map(|text| [embed(text), vec![0.0; 5]].concat()).collect()));
    assert_eq!(routed(&router, "contract").unwrap().order[0], "lawyer");
}

/// Behind the same alias, with as many dimensions: all that differs is what it says.
#[test]
fn what_another_model_said_of_the_examples_is_not_compared() {
    embeds();
    assert_eq!(routed(&plugin(CONFIG), "contract").unwrap().order[0], "lawyer");
    let other = |text: &String| {
        let [code, law, rest]: [f32; 3] = embed(text).try_into().unwrap();
        vec![law, code, rest]
    };
    fake::on_embed(move |texts| Ok(texts.iter().map(other).collect()));
    assert_eq!(routed(&plugin(CONFIG), "contract").unwrap().order[0], "lawyer");
    // And what it says is kept in the place of that.
    let embedded = fake::counted("embedded");
    assert_eq!(routed(&plugin(CONFIG), "rust").unwrap().order[0], "coder");
    assert_eq!(fake::counted("embedded") - embedded, 2);
}

#[test]
fn what_is_no_vector_is_a_failure_and_never_a_route() {
    let check = |answer: fn(usize) -> Vec<Vec<f32>>, expected: &str| {
        fake::on_embed(move |texts| Ok(answer(texts.len())));
        let problem = routed(&plugin(CONFIG), "rust").unwrap_err().to_string();
        assert!(problem.contains(expected), "{problem}");
    };
    check(|count| vec![vec![f32::NAN, 1.0]; count], "length NaN");
    check(|count| vec![vec![f32::INFINITY, 1.0]; count], "length inf");
    check(|count| vec![vec![0.0; 3]; count], "length 0");
    check(|count| vec![vec![]; count], "0 dimensions");
    check(|count| vec![vec![1.0; 5_000]; count], "5000 dimensions");
    check(|count| vec![vec![1.0]; count + 1], "vectors for");
    check(|_| Vec::new(), "0 vectors for 2 texts");
    check(|count| (0..count).map(|n| vec![1.0; n + 1]).collect(), "dimensions");
    // Another number of dimensions with each question.
    let mut calls = 0;
    fake::on_embed(move |texts| {
        calls += 1;
        Ok(vec![vec![1.0; calls]; texts.len()])
    });
    assert!(routed(&plugin(CONFIG), "rust").unwrap_err().to_string().contains("each time"));
    fake::on_embed(|_| Err(Error::Unavailable("away".into())));
    assert_eq!(routed(&plugin(CONFIG), "rust"), Err(Error::Unavailable("away".into())));
}

#[test]
fn the_users_own_last_words_are_compared() {
    embeds();
    let router: SemanticRouter = plugin(CONFIG);
    let mut passage = Message::text("folder/1", Role::User, "contract");
    passage.attrs.push(("source".into(), "\"folder\"".into()));
    let mut last = Message::text("m3", Role::User, "rust");
    last.parts.push(Part::Text(" ".into()));
    let messages = vec![
        Message::text("m0", Role::System, "contract"),
        Message::text("m1", Role::User, "contract"),
        last,
        passage,
        Message::text("m4", Role::Tool, "contract"),
    ];
    let request = RouteRequest { messages, ..RouteRequest::default() };
    assert_eq!(router.route(&Context::default(), &request, &candidates()).unwrap().order[0], "coder");
    let long = format!("contract {} rust", "é".repeat(5_000));
    assert_eq!(routed(&router, &long).unwrap().order[0], "coder");
    assert!(router.route(&Context::default(), &asking("rust"), &[]).is_err());
}

#[test]
fn all_texts_of_the_last_message_are_compared() {
    embeds();
    let router: SemanticRouter = plugin(CONFIG);
    let mut message = Message::text("m0", Role::User, "a contract");
    message.parts.push(Part::Text("of mine".into()));
    let asked = |message: Message| {
        let request = RouteRequest { messages: vec![message], ..RouteRequest::default() };
        router.route(&Context::default(), &request, &candidates()).unwrap().order[0].clone()
    };
    assert_eq!(asked(message.clone()), "lawyer");
}

#[test]
fn both_ends_of_a_long_message_are_compared() {
    embeds();
    let router: SemanticRouter = plugin(CONFIG);
    let asked = |texts: &[&str]| {
        let mut message = Message::text("m0", Role::User, "");
        message.parts.extend(texts.iter().map(|text| Part::Text((*text).into())));
        let request = RouteRequest { messages: vec![message], ..RouteRequest::default() };
        router.route(&Context::default(), &request, &candidates()).unwrap().order[0].clone()
    };
    let document = "é".repeat(5_000);
    assert_eq!(asked(&["about rust, this:", &document]), "coder");
    assert_eq!(asked(&[&document, "about rust"]), "coder");
    assert_eq!(asked(&[&format!("about rust: {document}")]), "coder");
    assert_eq!(asked(&[&document, "about rust", &document]), "small", "not its middle");
    let whole = |most| question(&asking("aébcdéf").messages, most).unwrap();
    assert_eq!([whole(4), whole(5), whole(9)], ["a\nf", "a\nf", "aébcdéf"], "characters are not cut");
}

#[test]
fn where_no_model_of_a_route_is_offered_the_default_stands_in() {
    embeds();
    let config = CONFIG.replace("{\"threshold\":0.6", "{\"others\":false,\"threshold\":0.6");
    let router: SemanticRouter = plugin(&config);
    let mut offered = candidates();
    offered.retain(|candidate| candidate.id != "coder");
    let order = |offered: &[Candidate]| router.route(&Context::default(), &asking("rust"), offered).unwrap().order;
    assert_eq!(order(&offered), ["small"]);
    assert_eq!(fake::take_log(), []);
    offered.retain(|candidate| candidate.id != "small");
    assert_eq!((order(&offered), order(&offered)), (vec!["large".into(), "lawyer".into()], order(&offered)));
    let lines = fake::take_log();
    assert!(lines.len() == 1 && lines[0].1.contains("`others` is false"), "{lines:?}");
}

#[test]
fn what_cannot_serve_now_comes_behind() {
    embeds();
    let mut candidates = candidates();
    candidates[2].healthy = false;
    candidates[0].context_tokens = 5;
    // Of `small` it is not known.
    candidates.iter_mut().filter(|candidate| candidate.id == "small").for_each(|small| small.context_tokens = 0);
    let router: SemanticRouter = plugin(CONFIG);
    let order = router.route(&Context::default(), &asking("rust"), &candidates).unwrap().order;
    assert_eq!(order, ["small", "lawyer", "large", "coder"]);
    let only = CONFIG.replace("{\"threshold\":0.6", "{\"others\":false,\"threshold\":0.6");
    assert_eq!(routed(&plugin(&only), "rust").unwrap().order, ["coder"]);
}

proptest! {
    #[test]
    fn vectors_come_back_from_bytes(numbers in prop::collection::vec(-9.0_f32..9.0, 1..40), count in 1_usize..4) {
        prop_assume!(numbers.iter().any(|x| x.abs() > 0.1));
        let vectors = vec![Unit::new(numbers).unwrap(); count];
        let bytes = to_bytes(&vectors);
        let back = from_bytes(&bytes, count).unwrap();
        prop_assert!(back.iter().zip(&vectors).all(|(a, b)| a.cosine(b).unwrap() > 0.9999));
        prop_assert!(from_bytes(&bytes, count + 1).is_none());
        prop_assert!(from_bytes(&bytes[..bytes.len() - 1], count).is_none());
    }
}
