//! Finds passages that share a word with the question. Put your own search in its place.

use serde::Deserialize;
use tidegate_plugin_sdk::{Chunk, Context, Descriptor, Error, Plugin, Query, Retriever};

const PASSAGES: [(&str, &str); 2] =
    [("ferry", "The ferry leaves at nine."), ("lighthouse", "The lighthouse was built of granite.")];

#[derive(Deserialize)]
struct Config {}

struct Passages;

impl Plugin for Passages {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Finds passages by their words").deterministic()
    }

    fn configure(_: Config) -> Result<Self, Error> {
        Ok(Self)
    }
}

/// Words of four letters and more, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.chars().count() > 3).map(str::to_lowercase)
}

impl Retriever for Passages {
    fn retrieve(&self, _: &Context, query: &Query) -> Result<Vec<Chunk>, Error> {
        let asked: Vec<String> = words(&query.text).collect();
        let found = PASSAGES.iter().filter_map(|(id, text)| {
            let shared = words(text).filter(|word| asked.contains(word)).count();
            let score = Some(shared as f32);
            (shared > 0).then(|| Chunk { id: (*id).into(), text: (*text).into(), score, ..Chunk::default() })
        });
        let mut found: Vec<Chunk> = found.collect();
        found.sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(std::cmp::Ordering::Equal));
        found.truncate(query.top_k as usize);
        Ok(found)
    }
}

tidegate_plugin_sdk::export!(Passages: Retriever);
