//! `semantic-router` and the model that makes vectors for it, which speaks OpenAI's `POST /embeddings`.

use super::{Tally, counted, stage, stage_as};
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn, completion, embeddings, last_text};
use tidegate_tests::{Gateway, ask, joined};

/// A server that answers for all models of a test, and makes vectors.
async fn server(embed: impl Fn(&Value) -> Said + Send + Sync + 'static) -> StandIn {
    StandIn::start(move |path, body| match path {
        "/v1/embeddings" => embed(body),
        _ => completion(&format!("{}: {}", body["model"].as_str().unwrap(), last_text(body))),
    })
    .await
}

const ROUTES: &str = r#"config = { default = ["small"], threshold = 0.3, routes = [
    { name = "code", models = ["coder"], utterances = ["write a function in rust", "why does my program not compile"] },
    { name = "law", models = ["lawyer", "small"], utterances = ["is this contract valid", "what does the law say"] },
] }"#;

fn routed(service: &StandIn, config: &str) -> String {
    let models: String = ["small", "coder", "lawyer", "vectors"].map(|name| service.model(name)).concat();
    let grants = "[pipeline.stage.grants]\nkv_kib = 1024\nmodels = { embedder = \"vectors\" }\n";
    format!("{models}{}{grants}", stage("semantic-router", config))
}

/// The model that answered a question to `auto`.
async fn answered_by(gateway: &Gateway, question: &str) -> String {
    let mut request = ask(question);
    request["model"] = "auto".into();
    let answer = gateway.chat(request).await;
    let (text, model) = (answer.text(), answer.json()["model"].as_str().unwrap().to_owned());
    assert!(text.starts_with(&format!("{model}: ")), "{text} of {model}");
    model
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_goes_to_the_model_of_the_nearest_example() {
    let service = server(embeddings).await;
    let router = stage_as("by-meaning", "semantic-router", ROUTES);
    let config = routed(&service, ROUTES).replace(&stage("semantic-router", ROUTES), &router);
    let gateway = Gateway::start(&config).await;
    for (question, model) in [
        ("please write a rust function that adds", "coder"),
        ("is the contract of my flat valid", "lawyer"),
        ("good morning", "small"),
        ("", "small"),
    ] {
        assert_eq!(answered_by(&gateway, question).await, model, "{question}");
    }
    let mut request = ask("write a function");
    request["model"] = "auto".into();
    assert_eq!(joined(&gateway.stream(request).await, 0), "coder: write a function");
    counted(&gateway, "by-meaning", "routed", 3).await;
    counted(&gateway, "by-meaning", "unsure", 2).await;
    // The examples in one question, once; and one for each question that has words, the first with an example.
    let asked = service.asked("/v1/embeddings");
    let sizes: Vec<usize> = asked.iter().map(|body| body["input"].as_array().unwrap().len()).collect();
    assert_eq!(sizes.iter().filter(|size| **size == 4).count(), 1, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size <= 2).count(), 4, "{sizes:?}");
    assert_eq!(asked[0]["model"], "vectors");
}

/// The examples themselves, since the model is a random one.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_own_engine_makes_the_vectors() {
    let service = server(|_| Said::raw(500, "nobody is to ask here")).await;
    let models: String = ["small", "coder", "lawyer"].map(|name| service.model(name)).concat();
    let grants = "[pipeline.stage.grants]\nkv_kib = 1024\nmodels = { embedder = \"embedding\" }\n";
    let router = stage("semantic-router", &ROUTES.replace("0.3", "0.999"));
    let config = format!("{}{models}{router}{grants}", crate::embeddings::model(""));
    let gateway = Gateway::start(&config).await;
    for (question, model) in [("why does my program not compile", "coder"), ("is this contract valid", "lawyer")] {
        assert_eq!(answered_by(&gateway, question).await, model, "{question}");
    }
}

/// What no model should say: the server's order each time, or an error where the stage is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_answer_well_is_a_failure_and_never_a_route() {
    let one = |numbers: &str| format!(r#"{{"data":[{{"index":0,"embedding":{numbers}}}]}}"#);
    let long = format!("[{}]", vec!["0.5"; 5_000].join(","));
    for (name, said) in [
        ("slow", Said::raw(200, one("[1,2]")).after(Duration::from_secs(20))),
        ("500", Said::raw(500, one("[1,2]"))),
        ("NaN", Said::raw(200, one("[NaN,1]"))),
        ("null", Said::raw(200, one("[null,1]"))),
        ("infinite", Said::raw(200, one("[1e39,1]"))),
        ("zero", Said::raw(200, one("[0,0]"))),
        ("empty", Said::raw(200, one("[]"))),
        ("too many dimensions", Said::raw(200, one(&long))),
        ("too few", Said::raw(200, r#"{"data":[]}"#)),
        ("huge", Said::raw(200, vec![b' '; 40 << 20])),
        ("garbage", Said::raw(200, vec![0xff; 99])),
    ] {
        for (on_error, status) in [("open", 200), ("closed", 503)] {
            let said = said.clone();
            let service = server(move |_| said.clone()).await;
            let config = routed(&service, &format!("on_error = \"{on_error}\"\n{ROUTES}"));
            let config = if name == "slow" { config.replace("wall_ms = 20000", "wall_ms = 700") } else { config };
            let gateway = Gateway::start(&config).await;
            let mut request = ask("is this contract valid");
            request["model"] = "auto".into();
            let answer = gateway.chat(request).await;
            assert_eq!(answer.status, status, "{name}, {on_error}: {:?}", answer.body);
            if status == 200 {
                assert_eq!(answer.json()["model"], "small", "{name}: the first of the config");
            }
        }
    }
}

/// Each time other dimensions: never compared, never a trap.
#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_changing_dimensions_are_a_failure() {
    let service = server(|body| {
        let texts = body["input"].as_array().unwrap();
        let numbers = vec![0.5; texts.len() + texts[0].as_str().unwrap().len() % 7];
        let data: Vec<Value> = (0..texts.len()).map(|index| json!({"index": index, "embedding": numbers})).collect();
        Said::json(&json!({ "data": data }))
    })
    .await;
    let gateway = Gateway::start(&routed(&service, ROUTES)).await;
    assert_eq!(answered_by(&gateway, "is this contract valid").await, "small");
}

/// Prints how often the router is right with a model: that of `TIDEGATE_EMBEDDINGS` (a base URL; the model in
/// `TIDEGATE_EMBEDDINGS_MODEL`, the threshold in `TIDEGATE_EMBEDDINGS_THRESHOLD`), else the stand-in, which counts words.
#[tokio::test(flavor = "multi_thread")]
async fn semantic_router_on_its_labelled_set() {
    let service = server(embeddings).await;
    let lines: Vec<Value> = include_str!("../../../../plugins/semantic-router/labelled.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (examples, questions): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["example"] == true);
    let mut routes: Vec<&str> = examples.iter().map(|line| line["route"].as_str().unwrap()).collect();
    routes.dedup();
    let route = |name: &&str| {
        let texts: Vec<&Value> =
            examples.iter().filter(|line| line["route"] == *name).map(|line| &line["text"]).collect();
        format!("{{ name = \"{name}\", models = [\"{name}\"], utterances = {} }}", json!(texts))
    };
    let rows: Vec<String> = routes.iter().map(route).collect();
    let url = std::env::var("TIDEGATE_EMBEDDINGS").unwrap_or(format!("{}/v1", service.origin()));
    let model = std::env::var("TIDEGATE_EMBEDDINGS_MODEL").unwrap_or("vectors".into());
    let embedder = format!("[[models]]\nname = \"vectors\"\nupstream = \"{url}\"\nupstream_model = \"{model}\"\n");
    let models: String = ["none"].iter().chain(&routes).map(|name| service.model(name)).collect();
    let threshold =
        std::env::var("TIDEGATE_EMBEDDINGS_THRESHOLD").map_or(String::new(), |at| format!("threshold = {at}, "));
    let config = format!("config = {{ default = [\"none\"], {threshold}routes = [{}] }}", rows.join(", "));
    let grants = "[pipeline.stage.grants]\nkv_kib = 1024\nmodels = { embedder = \"vectors\" }\n";
    let gateway = Gateway::start(&format!("{models}{embedder}{}{grants}", stage("semantic-router", &config))).await;
    let (mut tally, mut wrong) = (Tally::default(), 0);
    let of_none = questions.iter().filter(|line| line["route"].is_null()).count();
    let set = format!(
        "{} examples of four routes and {} questions, {of_none} of which belong to none",
        examples.len(),
        questions.len()
    );
    assert_eq!(routes.len(), 4);
    for line in questions {
        let text = line["text"].as_str().unwrap();
        let (wanted, was) = (line["route"].as_str().unwrap_or("none"), answered_by(&gateway, text).await);
        // A wrong route is a false alarm of that one and a miss of the other.
        if wanted != "none" && was != "none" && wanted != was {
            wrong += 1;
            tally.add(&format!("{text} (went to {was})"), false, true);
            tally.add(text, true, false);
        } else {
            tally.add(text, wanted != "none", was != "none");
        }
    }
    println!("{tally} of semantic-router; {wrong} went to a wrong route");
    assert!(tally.precision() > 0.6, "{tally}");
    if std::env::var_os("TIDEGATE_EMBEDDINGS").is_none() {
        super::assert_readme_says("semantic-router", &tally, &[set]);
    }
}
