//! Questions about texts rather than conversations: `POST /embeddings` and `POST /moderations`, as OpenAI has them.

use super::WireError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Formatter;
use tidegate_types::{EmbedInput, EmbedRequest};

#[derive(Serialize)]
struct Asked<'a> {
    model: &'a str,
    input: Vec<Input<'a>>,
}

/// The body that asks `model` for the labels of texts.
pub fn labels_body(model: &str, inputs: &[EmbedInput]) -> Vec<u8> {
    let input = inputs.iter().map(Input::from).collect();
    serde_json::to_vec(&Asked { model, input }).unwrap_or_default()
}

#[derive(Serialize)]
struct AskedVectors<'a> {
    model: &'a str,
    input: Vec<Input<'a>>,
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Text(&'a str),
    Tokens(&'a [u32]),
}

impl<'a> From<&'a EmbedInput> for Input<'a> {
    fn from(input: &'a EmbedInput) -> Self {
        match input {
            EmbedInput::Text(text) => Self::Text(text),
            EmbedInput::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

/// The body that asks `model` for the vectors of a caller's request: as base64, which takes half the bytes of decimals, and
/// which OpenAI's own clients ask for. Servers that know nothing of it answer with decimals.
pub fn vectors_body(model: &str, asked: &EmbedRequest) -> Vec<u8> {
    let input = asked.inputs.iter().map(Input::from).collect();
    let (dimensions, user) = (asked.dimensions, asked.user.as_deref());
    let asked = AskedVectors { model, input, encoding_format: "base64", dimensions, user };
    serde_json::to_vec(&asked).unwrap_or_default()
}

/// How many tokens an answer about texts says that they had, where it says so.
pub fn prompt_tokens(body: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Answer {
        usage: Counted,
    }
    #[derive(Deserialize)]
    struct Counted {
        prompt_tokens: u64,
    }
    serde_json::from_slice(body).ok().map(|answer: Answer| answer.usage.prompt_tokens)
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
        #[serde(deserialize_with = "vector")]
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

/// A list of numbers, or the base64 of their bytes (f32, little-endian).
fn vector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = Vec<f32>;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of numbers, or the base64 of their bytes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<f32>, A::Error> {
            let mut vector = Vec::new();
            while let Some(number) = list.next_element()? {
                vector.push(number);
            }
            Ok(vector)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<f32>, E> {
            let bytes = STANDARD.decode(text).map_err(|error| E::custom(format_args!("no base64: {error}")))?;
            let (numbers, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(E::custom(format_args!("{} bytes are no list of f32", bytes.len())));
            }
            Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
        }
    }
    deserializer.deserialize_any(Either)
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
        let both = br#"{"data":[{"embedding":"AAAAPwAAgL8="},{"embedding":[0.5,-1]},{"embedding":""}]}"#;
        assert_eq!(embeddings(both, 3).unwrap(), [vec![0.5, -1.0], vec![0.5, -1.0], vec![]]);
        for (body, count) in [
            (&b"{}"[..], 1),
            (br#"{"data":[]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#, 2),
            (br#"{"data":[{"index":9,"embedding":[1]}]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":[1e99]}]}"#, 1),
            // Infinity; a byte too few; no base64; nothing of both.
            (br#"{"data":[{"index":0,"embedding":"AACAfw=="}]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":"AAAA"}]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":"[1]"}]}"#, 1),
            (br#"{"data":[{"index":0,"embedding":{}}]}"#, 1),
        ] {
            assert!(embeddings(body, count).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_a_caller_asked_is_asked_and_what_was_counted_is_read() {
        let mut asked = EmbedRequest {
            model: "alias".into(),
            inputs: vec![EmbedInput::Text("a\"b".into()), EmbedInput::Tokens(vec![1, 2])],
            dimensions: None,
            user: None,
        };
        let body = |asked: &EmbedRequest| String::from_utf8(vectors_body("m", asked)).unwrap();
        assert_eq!(body(&asked), r#"{"model":"m","input":["a\"b",[1,2]],"encoding_format":"base64"}"#);
        (asked.dimensions, asked.user) = (Some(8), Some("u".into()));
        assert!(body(&asked).ends_with(r#","dimensions":8,"user":"u"}"#));
        assert_eq!(prompt_tokens(br#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#), Some(7));
        assert_eq!((prompt_tokens(b"{}"), prompt_tokens(br#"{"usage":{"prompt_tokens":-1}}"#)), (None, None));
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
