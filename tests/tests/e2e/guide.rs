//! `docs/conversations.md` is true: each of its requests is sent, in order, and answered.

use crate::conversations::{Keeping, send};
use hyper::Method;
use serde_json::Value;
use std::collections::BTreeMap;

struct Step {
    method: Method,
    path: String,
    /// The name for what this member of the answer says.
    saves: Option<(String, String)>,
    body: String,
}

/// The requests in the guide's `http` blocks, which empty lines part.
fn steps(guide: &str) -> Vec<Step> {
    let blocks = guide.split("```http\n").skip(1).map(|block| block.split("```").next().unwrap());
    let requests = blocks.flat_map(|block| block.split("\n\n")).filter(|request| !request.trim().is_empty());
    requests
        .map(|request| {
            let (first, body) = request.trim().split_once('\n').unwrap_or((request.trim(), ""));
            let (line, saves) = first.split_once('#').map_or((first, None), |(line, saves)| (line, Some(saves)));
            let (method, path) = line.trim().split_once(' ').unwrap();
            let saves = saves.map(|saves| saves.trim().split_once(" = ").unwrap());
            Step {
                method: method.parse().unwrap(),
                path: path.to_owned(),
                saves: saves.map(|(name, member)| (name.to_owned(), member.to_owned())),
                body: body.to_owned(),
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_the_guide_is_answered() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conversations.md")).unwrap();
    let keeping = Keeping::start("[pipeline]\n").await;
    let steps = steps(&guide);
    assert!(steps.len() >= 24, "{}", steps.len());
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for step in steps {
        // Longer names first: one may begin with another.
        let fill =
            |text: &str| known.iter().rev().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
        let (path, body) = (fill(&step.path), fill(&step.body));
        let body: Option<Value> = (!body.is_empty()).then(|| serde_json::from_str(&body).unwrap());
        let body = body.or((step.method == Method::POST).then(|| serde_json::json!({})));
        let answer = send(&keeping.gateway, step.method.clone(), &path, "", body.as_ref()).await;
        assert_eq!(answer.status, 200, "{} {path}: {:?}", step.method, answer.body);
        if let Some((name, member)) = step.saves {
            known.insert(name, answer.json()[&member].as_str().unwrap().to_owned());
        }
    }
}
