//! `POST /v1/embeddings`: texts, or the tokens of texts, in; vectors out.

use crate::conversations::for_each;
use crate::field::{check_name, list, missing, not_one_of, refuse, short_string, small_integer, string, wrong_type};
use crate::json::{Node, parse_tokens};
use crate::path::Path;
use crate::request::common::MAX_MODEL_BYTES;
use crate::write::{float, list as write_list, raw, string as write_string, uint};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use tidegate_types::{EmbedInput, EmbedRequest, Embeddings, Reject};

/// Texts of one request, as OpenAI bounds them.
const MAX_INPUTS: usize = 2048;
/// As of a chat.
const MAX_USER_BYTES: usize = 256;

/// How the numbers of a vector are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As a list of numbers.
    #[default]
    Float,
    /// As the base64 of their bytes: f32, little-endian.
    Base64,
}

impl Encoding {
    /// How many numbers fit into so many bytes. As decimals those of a vector of length 1 have 15 at most, with the comma
    /// (`-0.00012345679,`), and there is something around each vector; as base64 each has exactly 16 thirds.
    pub fn most_numbers(self, bytes: usize) -> usize {
        match self {
            Self::Float => bytes / 16,
            Self::Base64 => bytes.saturating_mul(3) / 16,
        }
    }

    /// The other way round.
    fn bytes(self, numbers: usize) -> usize {
        match self {
            Self::Float => numbers * 16,
            Self::Base64 => (numbers * 16).div_ceil(3),
        }
    }
}

/// Reads the body of `POST /v1/embeddings`.
pub fn parse_embeddings(body: &[u8]) -> Result<(EmbedRequest, Encoding), Reject> {
    let root = Path::ROOT;
    let (mut model, mut inputs, mut dimensions, mut user) = (None, None, None, None);
    let mut encoding = Encoding::default();
    for_each(parse_tokens(body)?, &root, |key, node, at| {
        match key {
            "model" => model = Some(short_string(node, at, MAX_MODEL_BYTES)?),
            "input" => inputs = Some(read_input(node, at)?),
            "dimensions" => dimensions = Some(small_integer(&node, at, 1, u32::MAX)?),
            "encoding_format" => encoding = read_encoding(node, at)?,
            "user" => {
                let name = string(node, at)?;
                check_name(&name, at, MAX_USER_BYTES)?;
                user = Some(name);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let model = model.ok_or_else(|| missing(&root.key("model"), "the name of a model"))?;
    let inputs = inputs.ok_or_else(|| missing(&root.key("input"), "a string, or a list of strings"))?;
    Ok((EmbedRequest { model, inputs, dimensions, user }, encoding))
}

fn read_encoding(node: Node<'_>, at: &Path<'_>) -> Result<Encoding, Reject> {
    match string(node, at)?.as_str() {
        "float" => Ok(Encoding::Float),
        "base64" => Ok(Encoding::Base64),
        other => Err(not_one_of(at, "float, base64", other)),
    }
}

/// One text, texts, the tokens of one, or the tokens of several.
fn read_input(node: Node<'_>, at: &Path<'_>) -> Result<Vec<EmbedInput>, Reject> {
    let items = match node {
        Node::Str(_) => return Ok(vec![EmbedInput::Text(read_text(node, at)?)]),
        Node::List(items) => items,
        other => return Err(wrong_type(at, "a string or a list", &other)),
    };
    match items.first() {
        None => return Err(refuse(at, "empty_array", |param| format!("`{param}` must have a text"))),
        Some(Node::Int(_) | Node::Uint(_)) => return Ok(vec![read_tokens(items, at)?]),
        Some(_) => {}
    }
    if items.len() > MAX_INPUTS {
        let found = items.len();
        let message = |param: &str| format!("`{param}` must have at most {MAX_INPUTS} texts, not {found}");
        return Err(refuse(at, "array_above_max_length", message));
    }
    let each = |(idx, node): (usize, Node<'_>)| {
        let at = at.index(idx);
        match node {
            Node::List(_) => read_tokens(list(node, &at)?, &at),
            node => Ok(EmbedInput::Text(read_text(node, &at)?)),
        }
    };
    items.into_iter().enumerate().map(each).collect()
}

fn read_text(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let text = string(node, at)?;
    if text.is_empty() {
        return Err(refuse(at, "empty_string", |param| format!("`{param}` must not be empty")));
    }
    Ok(text)
}

fn read_tokens(items: Vec<Node<'_>>, at: &Path<'_>) -> Result<EmbedInput, Reject> {
    if items.is_empty() {
        return Err(refuse(at, "empty_array", |param| format!("`{param}` must have a token")));
    }
    let token = |(idx, node): (usize, &Node<'_>)| small_integer(node, &at.index(idx), 0, u32::MAX);
    Ok(EmbedInput::Tokens(items.iter().enumerate().map(token).collect::<Result<_, _>>()?))
}

/// The answer, by the name of the `model` that made it. A vector that is written is held no longer.
pub fn embeddings_body(model: &str, made: Embeddings, encoding: Encoding) -> Bytes {
    let Embeddings { vectors, usage } = made;
    let numbers: usize = vectors.iter().map(Vec::len).sum();
    let mut out = BytesMut::with_capacity(256 + vectors.len() * 64 + encoding.bytes(numbers));
    raw(&mut out, r#"{"object":"list","data":"#);
    write_list(&mut out, vectors.into_iter().enumerate(), |out, (index, vector)| {
        raw(out, r#"{"object":"embedding","index":"#);
        uint(out, index as u64);
        raw(out, r#","embedding":"#);
        match encoding {
            Encoding::Float => write_list(out, vector, float),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                write_string(out, &STANDARD.encode(bytes));
            }
        }
        raw(out, "}");
    });
    raw(&mut out, r#","model":"#);
    write_string(&mut out, model);
    for (name, tokens) in
        [(r#","usage":{"prompt_tokens":"#, usage.input_tokens), (r#","total_tokens":"#, usage.input_tokens)]
    {
        raw(&mut out, name);
        uint(&mut out, tokens);
    }
    raw(&mut out, r#","prompt_tokens_details":{"cached_tokens":"#);
    uint(&mut out, usage.cached_tokens);
    raw(&mut out, "}}}");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tidegate_types::Usage;

    fn read(body: &Value) -> Result<(EmbedRequest, Encoding), String> {
        parse_embeddings(body.to_string().as_bytes()).map_err(|reject| reject.message)
    }

    #[test]
    fn each_shape_of_input_is_read() {
        let text = |text: &str| EmbedInput::Text(text.into());
        for (input, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![EmbedInput::Tokens(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![EmbedInput::Tokens(vec![1]), EmbedInput::Tokens(vec![2, 3])]),
        ] {
            let (request, encoding) = read(&json!({"model": "m", "input": input})).unwrap();
            assert_eq!(request, EmbedRequest { model: "m".into(), inputs: expected, dimensions: None, user: None });
            assert_eq!(encoding, Encoding::Float);
        }
        let all = json!({"model": "m", "input": "a", "dimensions": 8, "encoding_format": "base64", "user": "u"});
        let (request, encoding) = read(&all).unwrap();
        assert_eq!((request.dimensions, request.user.as_deref(), encoding), (Some(8), Some("u"), Encoding::Base64));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, said) in [
            (json!({"model": null}), "`model` is required"),
            (json!({"input": null}), "`input` is required"),
            (json!({"input": ""}), "`input` must not be empty"),
            (json!({"input": ["a", ""]}), "`input[1]` must not be empty"),
            (json!({"input": []}), "`input` must have a text"),
            (json!({"input": [[]]}), "`input[0]` must have a token"),
            (json!({"input": [1, "a"]}), "`input[1]` must be an integer"),
            (json!({"input": [[1], [-1]]}), "`input[1][0]` must be an integer between 0"),
            (json!({"input": [true]}), "`input[0]` must be a string"),
            (json!({"input": {}}), "`input` must be a string or a list"),
            (json!({"input": vec!["a"; 2049]}), "at most 2048 texts, not 2049"),
            (json!({"dimensions": 0}), "`dimensions` must be an integer between 1"),
            (json!({"encoding_format": "hex"}), "must be one of float, base64"),
            (json!({"prompt": "a"}), "`prompt` is not supported"),
        ] {
            let mut body = json!({"model": "m", "input": "a"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let message = read(&body).unwrap_err();
            assert!(message.contains(said), "{message} does not say {said}");
        }
    }

    #[test]
    fn vectors_are_written_as_openai_writes_them() {
        let usage = Usage { input_tokens: 7, cached_tokens: 3, ..Usage::default() };
        let made = Embeddings { vectors: vec![vec![0.5, -1.0], vec![1e-8, 2.0]], usage };
        let shown =
            |encoding| serde_json::from_slice::<Value>(&embeddings_body("a\"b", made.clone(), encoding)).unwrap();
        let expected = json!({"object": "list", "model": "a\"b",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
                {"object": "embedding", "index": 1, "embedding": [1e-8_f32, 2.0]}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}});
        let floats = shown(Encoding::Float);
        assert_eq!((&floats["model"], &floats["usage"]), (&expected["model"], &expected["usage"]));
        assert_eq!(floats["data"][0], expected["data"][0]);
        let base64 = shown(Encoding::Base64);
        assert_eq!(base64["data"][0]["embedding"], "AAAAPwAAgL8=");
    }

    #[test]
    fn as_many_numbers_as_fit_are_written_into_the_bytes_that_there_are() {
        let around = |encoding| body(vec![], encoding) - if encoding == Encoding::Float { 2 } else { 0 };
        for longest in [-0.000_123_456_79, -1.234_567_9e-38] {
            for encoding in [Encoding::Float, Encoding::Base64] {
                let numbers = encoding.most_numbers(16_000);
                let bytes = body(vec![longest; numbers], encoding) - around(encoding);
                assert!((14_000..=16_000).contains(&bytes), "{longest} as {encoding:?}: {bytes}");
            }
        }
        let most = [Encoding::Float, Encoding::Base64].map(|encoding| encoding.most_numbers(64 << 20));
        assert_eq!(most, [4 << 20, 12 << 20]);
    }

    /// Bytes of an answer with this vector.
    fn body(vector: Vec<f32>, encoding: Encoding) -> usize {
        embeddings_body("m", Embeddings { vectors: vec![vector], usage: Usage::default() }, encoding).len()
    }
}
