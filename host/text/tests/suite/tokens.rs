//! Ids to text and back, against the tokenizers crate.

use crate::folders::{
    all_kinds, byte_level_bpe, byte_level_normalizer, sentencepiece_bpe, starter, starter_dir, unigram,
};
use proptest::prelude::*;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tidegate_text::{AddSpecial, Detokenizer, Dialect, Place, ReasoningTags, Specials, TextModel, ToolFormat, Within};
use tokenizers::Tokenizer;

fn stream(model: &Arc<TextModel>, ids: &[u32], specials: Specials, place: Place) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(model), specials, place);
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

/// The tokenizers crate's own view of the same folders.
fn references() -> &'static Vec<Tokenizer> {
    static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let starter = std::fs::read_to_string(starter_dir().join("tokenizer.json")).expect("read");
        let others = [sentencepiece_bpe(), unigram(), byte_level_bpe(), byte_level_normalizer()];
        let jsons = [starter].into_iter().chain(others.iter().map(ToString::to_string));
        jsons.map(|json| json.parse().expect("a tokenizer")).collect()
    })
}

/// Whether all runs of byte tokens are characters; for others Hugging Face replaces whole runs.
fn byte_runs_are_text(tokenizer: &Tokenizer, ids: &[u32]) -> bool {
    let byte = |id: &u32| {
        let token = tokenizer.id_to_token(*id)?;
        u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
    };
    let bytes: Vec<Option<u8>> = ids.iter().map(byte).collect();
    bytes.split(Option::is_none).all(|run| String::from_utf8(run.iter().flatten().copied().collect()).is_ok())
}

#[test]
fn a_model_is_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<TextModel>();
    is_shared::<Detokenizer>();
}

#[test]
fn the_starter_has_its_names_and_sizes() {
    let model = starter();
    assert_eq!(model.vocab_size(), 5708);
    assert_eq!(model.eos(), Some(2));
    assert_eq!(model.bos(), None);
    assert_eq!(model.token_to_id("<tool_call>"), Some(3));
    assert_eq!(model.token_bytes(2), b"<|im_end|>");
    assert_eq!(model.token_bytes(5708), b"");
    assert!(model.is_control(3) && !model.is_control(100));
}

#[test]
fn text_comes_back_whole_one_token_at_a_time() {
    let text = "Grüße, 世界! 👩‍👩‍👧 tabs\t and    spaces\n\n\n12345";
    for (kind, model) in all_kinds() {
        if kind == "unigram" {
            continue;
        }
        let ids = model.encode(text, AddSpecial::No).expect(kind);
        assert_eq!(stream(&model, &ids, Specials::Hide, Place::Start), text, "{kind}");
    }
}

#[test]
fn a_leading_space_is_text_in_a_continuation_only() {
    let model = crate::folders::open(&sentencepiece_bpe(), "");
    let ids = model.encode("hello", AddSpecial::No).expect("encodes");
    assert_eq!(stream(&model, &ids, Specials::Hide, Place::Start), "hello");
    assert_eq!(stream(&model, &ids, Specials::Hide, Place::Continuation), " hello");
}

#[test]
fn special_tokens_show_as_asked() {
    let model = starter();
    let ids = [1, 3, 4, 2];
    assert_eq!(model.decode(&ids, Specials::Show), "<|im_start|><tool_call></tool_call><|im_end|>");
    assert_eq!(model.decode(&ids, Specials::Hide), "<tool_call></tool_call>");
    assert_eq!(model.decode(&ids, Specials::ShowMarkup), "<tool_call></tool_call>");
}

#[test]
fn marks_of_calls_are_hidden_where_those_of_reasoning_show() {
    let tags = ReasoningTags { open: "<s>".into(), close: "</s>".into() };
    let dialect = Dialect { tools: ToolFormat::Mistral, reasoning: Some(tags) };
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mistral");
    let model = Arc::new(TextModel::open(&dir).expect("the fixture opens").with_dialect(dialect));
    let ids = ["<s>", "[TOOL_CALLS]", "[INST]", "</s>"].map(|mark| model.token_to_id(mark).expect(mark));
    for (specials, text) in
        [(Specials::Hide, ""), (Specials::ShowReasoning, "<s></s>"), (Specials::ShowMarkup, "<s>[TOOL_CALLS]</s>")]
    {
        assert_eq!(model.decode(&ids, specials), text);
    }
}

#[test]
fn a_rendered_prompt_has_one_beginning() {
    let model = crate::folders::open(&sentencepiece_bpe(), "");
    let encode = |text: &str| model.encode_rendered_within(text, &Within::ALL).expect("encodes");
    assert_eq!(encode("hello"), model.encode("hello", AddSpecial::Yes).expect("encodes"));
    assert_eq!(encode("<s>hello"), model.encode("<s>hello", AddSpecial::No).expect("encodes"));
    assert_eq!(encode("<s><s>hello")[..3], [1, 1, encode("<s>hello")[1]], "what its caller wrote twice");
    for text in ["", "<s>"] {
        assert_eq!(encode(text), [1], "{text:?}");
    }
    let starter = starter();
    let turn = "<|im_start|><|im_start|>user";
    let rendered = starter.encode_rendered_within(turn, &Within::ALL).expect("encodes");
    assert_eq!(rendered, starter.encode(turn, AddSpecial::Yes).expect("encodes"), "nothing is put before it");
}

#[test]
fn ids_without_a_token_are_no_text() {
    let model = starter();
    assert_eq!(model.decode(&[5708, u32::MAX, 1 << 31], Specials::Show), "");
}

#[test]
fn added_special_tokens_stand_around_literal_text_too() {
    let model = crate::folders::open(&sentencepiece_bpe(), "");
    assert_eq!(model.encode("hello", AddSpecial::Yes).expect("encodes")[0], 1);
    let literal = model.encode_literal("<s>hello", AddSpecial::Yes).expect("encodes");
    assert_eq!(literal.iter().filter(|id| **id == 1).count(), 1);
    assert_eq!(model.decode(&literal, Specials::Hide), "<s>hello");
}

proptest! {
    #[test]
    fn any_ids_decode_as_hugging_face_decodes_them(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..24), skip in any::<bool>(),
    ) {
        for ((kind, model), tokenizer) in all_kinds().into_iter().zip(references()) {
            let ids: Vec<u32> = picks.iter().map(|pick| pick.index(model.vocab_size() + 2) as u32).collect();
            if !byte_runs_are_text(tokenizer, &ids) {
                continue;
            }
            let specials = if skip { Specials::Hide } else { Specials::Show };
            let expected = tokenizer.decode(&ids, skip).expect("decodes");
            prop_assert_eq!(stream(&model, &ids, specials, Place::Start), expected, "{}", kind);
        }
    }

    #[test]
    fn what_tokens_write_joined_is_the_text(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..24), starts in any::<bool>(), skip in any::<bool>(),
    ) {
        let place = if starts { Place::Start } else { Place::Continuation };
        let specials = if skip { Specials::Hide } else { Specials::Show };
        for (kind, model) in all_kinds() {
            let ids: Vec<u32> = picks.iter().map(|pick| pick.index(model.vocab_size() + 2) as u32).collect();
            let mut detokenizer = Detokenizer::new(Arc::clone(&model), specials, place);
            let mut written = Vec::new();
            for id in &ids {
                written.extend_from_slice(&detokenizer.written(*id));
                detokenizer.push(*id);
            }
            let streamed = stream(&model, &ids, specials, place);
            prop_assert_eq!(String::from_utf8_lossy(&written), streamed, "{}", kind);
        }
    }

    #[test]
    fn token_bytes_joined_are_the_text(text in "[a-z é世👍\n<|>]{0,40}") {
        for (kind, model) in all_kinds() {
            let ids = model.encode_literal(&text, AddSpecial::No).expect("encodes");
            let bytes: Vec<u8> = ids.iter().flat_map(|id| model.token_bytes(*id)).copied().collect();
            let streamed = stream(&model, &ids, Specials::Show, Place::Continuation);
            prop_assert_eq!(String::from_utf8_lossy(&bytes), streamed, "{}", kind);
        }
    }

    #[test]
    fn literal_and_plain_encoding_agree_where_no_mark_is(text in "[a-zA-Z0-9 é世👍\n\t<>|_/.{}\":,\\]\\[]{0,60}") {
        for (kind, model) in all_kinds() {
            let plain = model.encode(&text, AddSpecial::No).expect("encodes");
            if plain.iter().any(|id| model.is_control(*id)) {
                continue;
            }
            prop_assert_eq!(model.encode_literal(&text, AddSpecial::No).expect("encodes"), plain, "{}", kind);
        }
    }
}
