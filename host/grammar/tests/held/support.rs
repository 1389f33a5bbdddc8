//! A vocabulary of bytes, of some longer tokens and two marks; a model that wants anything; and a validator.

use serde_json::Value;
use std::sync::OnceLock;
use tidegate_grammar::{Grammars, Token};
use tidegate_types::TenantId;

/// Pieces of more than a byte, so that tokens run over the parts of a grammar.
const PIECES: [&str; 14] =
    ["{\"", "\":", "\",\"", "\"}", "true", "null", "[{", "}]", "name", "arguments", ", ", "é", "12", "\n  "];
/// A mark, written `«`.
pub const OPEN: u32 = 256 + PIECES.len() as u32;
/// A mark, written `»`.
pub const CLOSE: u32 = OPEN + 1;
/// Two tokens that end an answer; the second is text, too.
pub const ENDS: [u32; 2] = [CLOSE + 1, b'~' as u32];
/// A few rows have no token.
pub const VOCAB: usize = CLOSE as usize + 5;

pub fn tenant() -> TenantId {
    TenantId::new("t")
}

pub fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(grammars_of_bytes)
}

pub fn grammars_of_bytes() -> Grammars {
    Grammars::new(|| {
        let bytes = (0..=255_u8).map(|byte| Token::Text(vec![byte]));
        let pieces = PIECES.iter().map(|piece| Token::Text(piece.as_bytes().to_vec()));
        let marks = ["<open>", "<close>", "<end>"].map(|mark| Token::Mark(mark.to_owned()));
        Ok(bytes.chain(pieces).chain(marks).collect())
    })
}

/// A text byte by byte.
pub fn tokens(text: &str) -> Option<Vec<u32>> {
    let token = |c: char| match c {
        '«' => vec![OPEN],
        '»' => vec![CLOSE],
        c => c.to_string().bytes().map(u32::from).collect(),
    };
    Some(text.chars().flat_map(token).collect())
}

pub fn said(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|token| match *token {
        byte @ 0..=255 => vec![byte as u8],
        token => PIECES[token as usize - 256].as_bytes().to_vec(),
    });
    String::from_utf8(bytes.collect()).unwrap()
}

pub fn is_set(mask: &[u32], id: u32) -> bool {
    mask[(id / 32) as usize] >> (id % 32) & 1 == 1
}

/// A model with other wishes at each token, which tires: the longer it speaks the more it wants to close what is open.
pub struct Whims(u64);

impl Whims {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn choose(&mut self, mask: &[u32], num_said: usize) -> u32 {
        let allowed: Vec<u32> = (0..VOCAB as u32).filter(|id| is_set(mask, *id)).collect();
        assert!(!allowed.is_empty(), "nothing is allowed");
        let closing: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|id| ENDS.contains(id) || b"\"]}0,".contains(&(*id as u8)) && *id < 256)
            .collect();
        let tired = self.next() % 100 < 15 + num_said as u64;
        let from = if tired && !closing.is_empty() { &closing } else { &allowed };
        from[(self.next() % from.len() as u64) as usize]
    }
}

/// Whether a schema of the kinds that the tests make allows a value.
pub fn allows(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(keywords) = schema.as_object() else { return schema == &Value::Bool(true) };
    keywords.iter().all(|(keyword, given)| holds(root, schema, keyword, given, value))
}

fn holds(root: &Value, schema: &Value, keyword: &str, given: &Value, value: &Value) -> bool {
    let number = |holds: &dyn Fn(f64, f64) -> bool| value.as_f64().is_none_or(|x| holds(x, given.as_f64().unwrap()));
    let length = |holds: &dyn Fn(usize, usize) -> bool| {
        value.as_str().is_none_or(|text| holds(text.chars().count(), given.as_u64().unwrap() as usize))
    };
    let items = |holds: &dyn Fn(usize, usize) -> bool| {
        value.as_array().is_none_or(|items| holds(items.len(), given.as_u64().unwrap() as usize))
    };
    match keyword {
        "type" => given.as_array().map_or_else(|| is(given, value), |kinds| kinds.iter().any(|kind| is(kind, value))),
        "enum" => given.as_array().unwrap().contains(value),
        "const" => given == value,
        "minimum" => number(&|x, bound| x >= bound),
        "maximum" => number(&|x, bound| x <= bound),
        "exclusiveMinimum" => number(&|x, bound| x > bound),
        "multipleOf" => number(&|x, of| x % of == 0.0),
        "minLength" => length(&|n, least| n >= least),
        "maxLength" => length(&|n, most| n <= most),
        "minItems" => items(&|n, least| n >= least),
        "maxItems" => items(&|n, most| n <= most),
        "pattern" => {
            assert_eq!(given, "^[a-c]{2}-[0-9]$", "the one that the tests have");
            value.as_str().is_none_or(|text| {
                let bytes = text.as_bytes();
                bytes.len() == 4
                    && bytes[..2].iter().all(|b| (b'a'..=b'c').contains(b))
                    && bytes[2] == b'-'
                    && bytes[3].is_ascii_digit()
            })
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| allows(root, given, item))),
        "anyOf" => given.as_array().unwrap().iter().any(|schema| allows(root, schema, value)),
        "$ref" => allows(root, root.pointer(given.as_str().unwrap().strip_prefix('#').unwrap()).unwrap(), value),
        "$defs" => true,
        "required" => given.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
        "properties" => given
            .as_object()
            .unwrap()
            .iter()
            .all(|(name, schema)| value.get(name).is_none_or(|value| allows(root, schema, value))),
        "additionalProperties" => value.as_object().is_none_or(|members| {
            let more = members.iter().filter(|(name, _)| schema["properties"].get(name.as_str()).is_none());
            more.into_iter().all(|(_, value)| allows(root, given, value))
        }),
        other => panic!("the tests have no `{other}`"),
    }
}

fn is(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        // `-0` is one, which serde_json reads as a float.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        other => panic!("no kind `{other}`"),
    }
}
