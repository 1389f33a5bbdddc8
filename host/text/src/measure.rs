//! How many bytes of text one token can stand for, worked out once at load: a text of more than that for each token that a
//! model reads cannot fit, and need not be encoded to be refused.
//!
//! Only tokenizers that turn every byte of a text into tokens have such a bound: one that drops characters, or makes one
//! token of any run of unknown ones, has none.

use crate::pieces::PieceTable;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

/// NFC makes at most 7 bytes 2 (U+1FBE U+0308 U+0301 are U+0390).
const NFC_SHRINKS: usize = 4;

/// What is known of a tokenizer's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Bytes of a text that one token stands for at most, where there is a bound.
    pub longest: Option<usize>,
    /// Whether marks may swallow the white space beside them, however much that is, and all that do take it of the text as it
    /// is written; see `blanks.rs`.
    pub swallows: bool,
}

impl Measure {
    pub fn of(tokenizer: &Tokenizer, pieces: &PieceTable) -> Self {
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let mut swallowing = added.values().filter(|token| token.lstrip || token.rstrip).peekable();
        let shrinks = if swallowing.peek().is_some() { None } else { shrinks(tokenizer) };
        let normalizes = tokenizer.get_normalizer().is_some();
        let swallows = swallowing.peek().is_some() && swallowing.all(|token| !(normalizes && token.normalized));
        let longest = shrinks.map(|by| longest_token(tokenizer, pieces).max(1) * by);
        Self { longest, swallows }
    }
}

/// How many times shorter a text may be when it comes to the model; `None` where parts of it may be lost.
fn shrinks(tokenizer: &Tokenizer) -> Option<usize> {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    // Published files have empty ones, which are none.
    let is_none = |affix: &Option<String>| affix.as_deref().is_none_or(str::is_empty);
    let whole_words = is_none(&model.continuing_subword_prefix) && is_none(&model.end_of_word_suffix);
    let knows_bytes = match tokenizer.get_pre_tokenizer() {
        Some(pre_tokenizer) if !keeps_all(pre_tokenizer) => return None,
        Some(pre_tokenizer) if is_byte_level(pre_tokenizer) => {
            ByteLevel::alphabet().into_iter().all(|c| tokenizer.token_to_id(&c.to_string()).is_some())
        }
        _ => {
            let has_byte = |byte: u8| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).is_some();
            model.byte_fallback && (0..=u8::MAX).all(has_byte)
        }
    };
    let by = tokenizer.get_normalizer().map_or(Some(1), shrunk_by);
    by.filter(|_| whole_words && knows_bytes)
}

fn shrunk_by(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::NFC(_) => Some(NFC_SHRINKS),
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => Some(1),
        NormalizerWrapper::Replace(replace) => {
            // Its pattern is not to be seen but in what it writes of itself.
            let written = serde_json::to_value(replace).ok()?;
            let pattern = written.get("pattern")?.get("String").and_then(Value::as_str)?;
            (replace.content.len() >= pattern.len()).then_some(1)
        }
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().map(shrunk_by).product(),
        _ => None,
    }
}

fn keeps_all(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Digits(_) | PreTokenizerWrapper::Metaspace(_) => true,
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().all(keeps_all),
        _ => false,
    }
}

fn is_byte_level(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().any(is_byte_level),
        _ => false,
    }
}

/// By its bytes, or as it is written where that is longer: who writes a space's marker writes three bytes of one.
fn longest_token(tokenizer: &Tokenizer, pieces: &PieceTable) -> usize {
    let is_byte_level = tokenizer.get_pre_tokenizer().is_some_and(is_byte_level);
    let written = |id: u32| if is_byte_level { 0 } else { tokenizer.id_to_token(id).map_or(0, |token| token.len()) };
    (0..pieces.num_ids() as u32).map(|id| pieces.bytes(id).len().max(written(id))).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn measure(normalizer: Value, behavior: &str, added: Value) -> Measure {
        measured(&file(normalizer, behavior, added))
    }

    fn measured(file: &Value) -> Measure {
        let tokenizer: Tokenizer = file.to_string().parse().expect("a tokenizer");
        let pieces = PieceTable::build(&tokenizer).expect("pieces");
        Measure::of(&tokenizer, &pieces)
    }

    fn file(normalizer: Value, behavior: &str, added: Value) -> Value {
        let mut vocab: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
        vocab.extend(["ab", "abab"].map(str::to_owned));
        let vocab: serde_json::Map<String, Value> =
            vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": behavior, "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "ab ab"]},
        })
    }

    #[test]
    fn there_is_a_bound_only_where_every_byte_becomes_tokens() {
        let none = || json!([]);
        let longest = |normalizer: Value, behavior: &str| measure(normalizer, behavior, none()).longest;
        assert_eq!(longest(Value::Null, "Isolated"), Some(4));
        assert_eq!(longest(json!({"type": "NFC"}), "Isolated"), Some(16));
        let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": "  "}, "content": content});
        assert_eq!(longest(replace("__"), "Isolated"), Some(4));
        assert_eq!(longest(replace("_"), "Isolated"), None, "it shrinks spaces");
        assert_eq!(longest(json!({"type": "Lowercase"}), "Isolated"), None);
        assert_eq!(longest(Value::Null, "Removed"), None, "it drops spaces");
    }

    #[test]
    fn an_affix_of_words_leaves_no_bound_but_an_empty_one() {
        let longest = |affix: &str, value: &str| {
            let mut file = file(Value::Null, "Isolated", json!([]));
            file["model"][affix] = value.into();
            measured(&file).longest
        };
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            assert_eq!(longest(affix, ""), Some(4), "{affix}");
        }
        assert_eq!(longest("end_of_word_suffix", "</w>"), None);
    }

    #[test]
    fn a_mark_that_swallows_white_space_leaves_no_bound() {
        let mark = json!([{"id": 258, "content": "<|a|>", "single_word": false, "lstrip": false, "rstrip": true,
            "normalized": false, "special": true}]);
        assert_eq!(measure(Value::Null, "Isolated", mark), Measure { longest: None, swallows: true });
    }

    #[test]
    fn what_a_mark_swallows_of_a_normalized_text_is_not_known_of_the_written_one() {
        let mark = |normalized: bool| {
            json!([{"id": 258, "content": "<|a|>", "single_word": false, "lstrip": true, "rstrip": false,
                "normalized": normalized, "special": true}])
        };
        let swallows = |normalizer: Value, normalized: bool| {
            let Measure { longest, swallows } = measure(normalizer, "Isolated", mark(normalized));
            assert_eq!(longest, None);
            swallows
        };
        assert!(swallows(Value::Null, true) && swallows(json!({"type": "NFC"}), false));
        assert!(!swallows(json!({"type": "NFC"}), true));
    }
}
