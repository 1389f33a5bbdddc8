//! Questions about texts rather than conversations: `POST /embeddings` and `POST /moderations`, as OpenAI has them.

use super::WireError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Asked<'a> {
    model: &'a str,
    input: &'a [String],
}

/// The body that asks `model` about texts, for both endpoints.
pub fn texts_body(model: &str, texts: &[String]) -> Vec<u8> {
    serde_json::to_vec(&Asked { model, input: texts }).unwrap_or_default()
}

/// The vectors of `count` texts, in their order.
pub fn embeddings(body: &[u8], count: usize) -> Result<Vec<Vec<f32>>, WireError> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        index: Option<usize>,
        embedding: Vec<f32>,
    }
    let list: List = read(body, "embeddings")?;
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    for (place, entry) in list.data.into_iter().enumerate() {
        let index = entry.index.unwrap_or(place);
        if entry.embedding.iter().any(|x| !x.is_finite()) {
            return Err(WireError::Malformed(format!("embedding {index} has a number that is none")));
        }
        match vectors.get_mut(index) {
            Some(slot @ None) => *slot = Some(entry.embedding),
            _ => return Err(WireError::Malformed(format!("embedding {index} was not asked for, or is there twice"))),
        }
    }
    let whole: Option<Vec<_>> = vectors.into_iter().collect();
    whole.ok_or_else(|| WireError::Malformed("the list of embeddings is too short".into()))
}

/// The labels of `count` texts with their scores, highest first.
pub fn labels(body: &[u8], count: usize) -> Result<Vec<Vec<(String, f32)>>, WireError> {
    #[derive(Deserialize)]
    struct List {
        results: Vec<Result_>,
    }
    #[derive(Deserialize)]
    struct Result_ {
        category_scores: BTreeMap<String, f32>,
    }
    let list: List = read(body, "moderations")?;
    if list.results.len() != count {
        return Err(WireError::Malformed(format!("{} results for {count} texts", list.results.len())));
    }
    let of_text = |result: Result_| {
        let mut labels: Vec<(String, f32)> = result.category_scores.into_iter().collect();
        if let Some((name, score)) = labels.iter().find(|(_, score)| !(0.0..=1.0).contains(score)) {
            let name = name.escape_debug();
            return Err(WireError::Malformed(format!("the score {score} of `{name}` is not from 0 to 1")));
        }
        labels.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(labels)
    };
    list.results.into_iter().map(of_text).collect()
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| WireError::Malformed(format!("the {what} are not OpenAI's: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_in_the_order_of_the_texts() {
        let body = br#"{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1.5,0]}]}"#;
        assert_eq!(embeddings(body, 2).unwrap(), [vec![1.5, 0.0], vec![2.0]]);
        assert_eq!(embeddings(br#"{"data":[{"embedding":[1]}]}"#, 1).unwrap(), [[1.0]]);
        for (body, count) in [
            (&b"{}"[..], 1),
            (br#"{"data":[]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#, 2),
            (br#"{"data":[{"index":9,"embedding":[1]}]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":[1e99]}]}"#, 1),
        ] {
            assert!(embeddings(body, count).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn labels_come_with_the_highest_score_first() {
        let body = br#"{"results":[{"flagged":true,"category_scores":{"hate":0.1,"violence":0.8}}]}"#;
        assert_eq!(labels(body, 1).unwrap(), [[("violence".to_owned(), 0.8), ("hate".to_owned(), 0.1)]]);
        assert!(labels(body, 2).is_err() && labels(b"[]", 0).is_err());
        for score in ["-0.1", "1.5", "1e30", "1e999", "null", "NaN", "\"0.5\""] {
            let body = format!("{{\"results\":[{{\"category_scores\":{{\"hate\":{score}}}}}]}}");
            assert!(labels(body.as_bytes(), 1).is_err(), "{score}");
        }
    }
}
