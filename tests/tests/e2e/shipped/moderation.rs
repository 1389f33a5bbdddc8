//! `moderation-guard` and the classifier that it asks, which speaks OpenAI's `POST /moderations`.

use super::{counted, stage, stage_as};
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn, completion, last_text};
use tidegate_tests::{Gateway, ask, finish_reason, joined};

/// A classifier that knows four words, and gives each text the scores of those that it holds.
fn scores(text: &str) -> Value {
    let of = |word: &str, score: f64| if text.contains(word) { score } else { 0.01 };
    json!({"violence": of("stab", 0.97), "self-harm": of("hopeless", 0.3), "self-harm/intent": of("hopeless", 0.3),
        "hate": of("vermin", 0.8), "sexual": 0.0, "harassment": of("idiot", 0.6)})
}

fn results(body: &Value) -> Value {
    let texts = body["input"].as_array().unwrap();
    let result = |text: &Value| json!({"flagged": false, "category_scores": scores(text.as_str().unwrap())});
    json!({"id": "modr-1", "model": body["model"], "results": texts.iter().map(result).collect::<Vec<_>>()})
}

/// A server with a model that says what it was asked, and a classifier.
async fn moderated(classifier: impl Fn(&Value) -> Said + Send + Sync + 'static) -> StandIn {
    StandIn::start(move |path, body| match path {
        "/v1/moderations" => classifier(body),
        _ => completion(&last_text(body)),
    })
    .await
}

fn guarded(service: &StandIn, config: &str) -> String {
    let models = service.model("tidegate-starter") + &service.model("omni");
    let grants = "[pipeline.stage.grants]\nmodels = { moderation = \"omni\" }\n";
    format!("{models}{}{grants}", stage("moderation-guard", config))
}

const SETTINGS: &str =
    r#"config = { categories = { "self-harm" = { threshold = 0.2 }, harassment = { action = "flag" } } }"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_category_has_its_threshold_and_its_action() {
    let service = moderated(|body| Said::json(&results(body))).await;
    let config = format!("stages = [\"prompt-guard\"]\n{SETTINGS}");
    let observer = stage_as("sees-moderation", "audit-observer", "config = { only_findings = true }");
    let guard = stage_as("thresholds", "moderation-guard", &config);
    let config = guarded(&service, &config).replace(&stage("moderation-guard", &config), &guard) + &observer;
    let gateway = Gateway::start(&config).await;
    for (question, status) in [
        ("Good morning!", 200),
        ("How do I stab him?", 400),
        ("It is all hopeless.", 400),
        ("They are vermin.", 400),
        ("You idiot.", 200),
    ] {
        for stream in [false, true] {
            let mut request = ask(question);
            request["stream"] = stream.into();
            let answer = gateway.chat(request).await;
            assert_eq!(answer.status, status, "{question} {:?}", answer.body);
            if status == 400 {
                assert_eq!(answer.error().2, "content_filter", "{question}");
            }
        }
    }
    counted(&gateway, "thresholds", "blocked", 6).await;
    counted(&gateway, "thresholds", "flagged", 2).await;
    counted(&gateway, "sees-moderation", "requests_recorded", 8).await;
    assert_eq!(service.asked("/v1/moderations")[0], json!({"model": "omni", "input": ["Good morning!"]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_withheld_streamed_or_not() {
    let service = moderated(|body| Said::json(&results(body))).await;
    let gateway = Gateway::start(&guarded(&service, &format!("stages = [\"output-guard\"]\n{SETTINGS}"))).await;
    assert_eq!(gateway.chat(ask("Good morning!")).await.text(), "Good morning!");
    let refused = gateway.chat(ask("stab")).await;
    assert_eq!(refused.text(), "");
    assert_eq!(refused.json()["choices"][0]["message"]["refusal"], "This server does not allow that.");
    let events = gateway.stream(ask("stab")).await;
    assert_eq!((joined(&events, 0), finish_reason(&events, 0)), (String::new(), "content_filter".into()));
    assert_eq!(joined(&gateway.stream(ask("Good morning!")).await, 0), "Good morning!");
}

/// Nobody is asked over a socket: the scores are those that transformers computes of the same texts.
#[tokio::test(flavor = "multi_thread")]
async fn a_classifier_of_the_own_engine_is_held_to_thresholds_too() {
    let service = StandIn::start(|_, body| completion(&last_text(body))).await;
    let expected = crate::classifiers::expected("moderation");
    let mut scores: Vec<f32> = expected.iter().map(|(_, scores)| scores["violence"]).collect();
    scores.sort_by(f32::total_cmp);
    let (below, above) = (scores[scores.len() / 2 - 1], scores[scores.len() / 2]);
    assert!(above - below > 0.1, "there is room between {below} and {above}");
    let threshold = f32::midpoint(below, above);
    let config = format!(
        "stages = [\"prompt-guard\"]\nconfig = {{ action = \"ignore\", \
         categories = {{ violence = {{ threshold = {threshold}, action = \"block\" }}, \
         \"violence/graphic\" = {{ action = \"ignore\" }} }} }}"
    );
    let models = service.model("tidegate-starter") + &crate::classifiers::model("moderation", "");
    let grants = "[pipeline.stage.grants]\nmodels = { moderation = \"moderation\" }\n";
    let gateway = Gateway::start(&format!("{models}{}{grants}", stage("moderation-guard", &config))).await;
    for (text, scores) in &expected {
        let answer = gateway.chat(ask(text)).await;
        let refused = scores["violence"] >= threshold;
        assert_eq!(answer.status, if refused { 400 } else { 200 }, "{text}: {:?}", answer.body);
        if refused {
            assert_eq!(answer.error().2, "content_filter", "{text}");
        }
    }
}

/// What no classifier should say: a failure each, and `on_error` decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_classifier_that_does_not_answer_well_is_a_failure_and_never_an_allow() {
    let one = |score: &str| format!(r#"{{"results":[{{"category_scores":{{"violence":{score}}}}}]}}"#);
    let many: Vec<String> = (0..300_000).map(|n| format!("\"c{n}\":0.1")).collect();
    for (name, said) in [
        ("slow", Said::raw(200, one("0.1")).after(Duration::from_secs(20))),
        ("500", Said::raw(500, one("0.1"))),
        ("NaN", Said::raw(200, one("NaN"))),
        ("no number", Said::raw(200, one("null"))),
        ("above one", Said::raw(200, one("1.5"))),
        ("infinite", Said::raw(200, one("1e39"))),
        ("none for the text", Said::raw(200, r#"{"results":[]}"#)),
        ("two for one text", Said::raw(200, r#"{"results":[{"category_scores":{}},{"category_scores":{}}]}"#)),
        ("no category", Said::raw(200, r#"{"results":[{"category_scores":{"LABEL_1":0.9}}]}"#)),
        ("no scores", Said::raw(200, r#"{"results":[{"category_scores":{}}]}"#)),
        ("many labels", Said::raw(200, format!(r#"{{"results":[{{"category_scores":{{{}}}}}]}}"#, many.join(",")))),
        ("huge", Said::raw(200, vec![b' '; 40 << 20])),
        ("garbage", Said::raw(200, vec![0xff; 99])),
    ] {
        let service = moderated(move |_| said.clone()).await;
        let config = guarded(&service, "stages = [\"prompt-guard\"]");
        // Compiling the component is not counted, reading megabytes is.
        let config = if name == "slow" { config.replace("wall_ms = 20000", "wall_ms = 5000") } else { config };
        let answer = Gateway::start(&config).await.chat(ask("Hello!")).await;
        assert_eq!((answer.status, answer.error().2), (503, "plugin_failed".into()), "{name}");
        assert_eq!(service.asked("/v1/moderations").len(), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_texts_are_not_asked_about_and_long_ones_in_pieces() {
    let service = moderated(|body| Said::json(&results(body))).await;
    let gateway = Gateway::start(&guarded(&service, "stages = [\"prompt-guard\"]")).await;
    assert_eq!(gateway.chat(ask("  \n ")).await.status, 200);
    assert!(service.asked("/v1/moderations").is_empty());
    let well = |numbers: std::ops::Range<u32>| numbers.map(|n| format!("all is well {n} ")).collect::<String>();
    let long = format!("{}stab {}", well(0..15_000), well(15_000..30_000));
    assert_eq!(gateway.chat(ask(&long)).await.status, 400);
    let pieces = service.asked("/v1/moderations")[0]["input"].as_array().unwrap().len();
    assert!((100..=256).contains(&pieces), "{pieces}");
    // Those that say the same are one.
    assert_eq!(gateway.chat(ask(&"all is well ".repeat(40_000))).await.status, 200);
    let pieces = service.asked("/v1/moderations").pop().unwrap()["input"].as_array().unwrap().len();
    assert!(pieces < 100, "{pieces}");
}

/// A list of words as a classifier: what the figures of the labelled set are about where no other one is named.
fn by_words(text: &str) -> Value {
    const WORDS: [(&str, &[&str]); 6] = [
        ("violence", &["stab", "hurt", "shot", "beats a man", "break a skull", "kill"]),
        ("harassment", &["idiot", "loser", "ugly", "stupid", "regret this", "not be safe"]),
        ("hate", &["vermin", "foreigners", "all thieves", "race"]),
        ("self-harm", &["cutting myself", "punish myself", "end my life", "pills", "hopeless"]),
        ("illicit", &["shoplift", "fake passport", "methamphetamine", "bomb", "untraceable"]),
        ("sexual", &["erotic", "have sex"]),
    ];
    let text = text.to_lowercase();
    let score = |words: &[&str]| if words.iter().any(|word| text.contains(word)) { 0.9 } else { 0.05 };
    WORDS
        .iter()
        .map(|(category, words)| ((*category).to_owned(), json!(score(words))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Prints precision and recall of the guard with a classifier: that of `TIDEGATE_MODERATIONS` (a base URL, such as
/// `https://api.openai.com/v1`; the model in `TIDEGATE_MODERATIONS_MODEL`, the variable with the key in
/// `TIDEGATE_MODERATIONS_KEY_ENV`), else the list of words above.
#[tokio::test(flavor = "multi_thread")]
async fn moderation_guard_on_its_labelled_set() {
    let words = moderated(|body| {
        let results: Vec<Value> = body["input"]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| json!({"category_scores": by_words(text.as_str().unwrap())}))
            .collect();
        Said::json(&json!({ "results": results }))
    })
    .await;
    let named = |name: &str| std::env::var(name).ok();
    let classifier = match named("TIDEGATE_MODERATIONS") {
        Some(url) => {
            let model = named("TIDEGATE_MODERATIONS_MODEL").unwrap_or("omni-moderation-latest".into());
            let key = named("TIDEGATE_MODERATIONS_KEY_ENV").map(|name| format!("api_key_env = \"{name}\"\n"));
            format!(
                "[[models]]\nname = \"omni\"\nupstream = \"{url}\"\nupstream_model = \"{model}\"\n{}",
                key.unwrap_or_default()
            )
        }
        None => words.model("omni"),
    };
    let models = words.model("tidegate-starter") + &classifier;
    let grants = "[pipeline.stage.grants]\nmodels = { moderation = \"omni\" }\n";
    let gateway =
        Gateway::start(&format!("{models}{}{grants}", stage("moderation-guard", "stages = [\"prompt-guard\"]"))).await;
    let mut tally = super::Tally::default();
    for line in include_str!("../../../../plugins/moderation-guard/labelled.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = line["text"].as_str().unwrap();
        let status = gateway.chat(ask(text)).await.status;
        assert!(status == 200 || status == 400, "{status} for {text}");
        tally.add(text, !line["category"].is_null(), status == 400);
    }
    println!("{tally} of moderation-guard");
    assert!(tally.precision() > 0.6 && tally.recall() > 0.6, "{tally}");
    if named("TIDEGATE_MODERATIONS").is_none() {
        let set = format!("{} texts of our own, {} of them to be refused", tally.len(), tally.wanted());
        super::assert_readme_says("moderation-guard", &tally, &[set]);
    }
}
