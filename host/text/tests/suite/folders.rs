//! Model folders: the bundled starter model, and small tokenizers of the kinds that public models use.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;
use tidegate_text::TextModel;

pub fn starter_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter")
}

pub fn starter() -> Arc<TextModel> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    Arc::clone(MODEL.get_or_init(|| Arc::new(TextModel::open(&starter_dir()).expect("the starter model opens"))))
}

pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("the folder is made");
        std::fs::write(path, text).expect("the file is written");
    }
    dir
}

pub fn open(tokenizer: &Value, template: &str) -> Arc<TextModel> {
    let tokens = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    let dir = folder(&[
        ("tokenizer.json", &tokenizer.to_string()),
        ("tokenizer_config.json", &tokens.to_string()),
        ("chat_template.jinja", template),
    ]);
    Arc::new(TextModel::open(dir.path()).expect("the folder opens"))
}

/// Marks on both sides of every text, and no separator between texts.
pub const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn added(id: usize, content: &str, special: bool, normalized: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "normalized": normalized,
        "single_word": false, "lstrip": false, "rstrip": false})
}

fn tokenizer(added_tokens: Value, parts: Value, model: Value) -> Value {
    let mut out = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model});
    for (key, value) in parts.as_object().expect("an object") {
        out[key] = value.clone();
    }
    out
}

/// As Llama 2: SentencePiece BPE with byte tokens.
pub fn sentencepiece_bpe() -> Value {
    let mut vocab = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let merges = [("▁", "h"), ("▁h", "e"), ("l", "l"), ("▁he", "ll"), ("▁", "t"), ("o", "r"), ("t", "o")];
    vocab.extend("▁abcdefghijklmnopqrstuvwxyz<>/|_\"{}:,.é".chars().map(String::from));
    vocab.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let num = vocab.len();
    let ids: serde_json::Map<String, Value> = vocab.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    let marks = ["<|im_start|>", "<|im_end|>"].iter().enumerate().map(|(i, m)| added(num + i, m, true, false));
    let tools = ["<tool_call>", "</tool_call>"].iter().enumerate().map(|(i, m)| added(num + 2 + i, m, false, false));
    let base = ["<unk>", "<s>", "</s>"].iter().enumerate().map(|(i, m)| added(i, m, true, false));
    tokenizer(
        base.chain(marks).chain(tools).collect(),
        json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        }),
        json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": ids,
            "merges": merges.iter().map(|(a, b)| json!([a, b])).collect::<Vec<_>>()}),
    )
}

/// Unigram with marks in its own vocabulary, tool marks that are matched after normalizing, and a normalizer that
/// makes marks out of other text.
pub fn unigram() -> Value {
    let marks = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"];
    let letters = "▁abcdefghijklmnopqrstuvwxyz<>/|_\"{}:,.";
    let pieces: Vec<String> = marks
        .iter()
        .map(|m| (*m).to_owned())
        .chain(letters.chars().map(String::from))
        .chain(["▁he".to_owned()])
        .collect();
    let vocab: Vec<Value> = pieces.iter().enumerate().map(|(i, p)| json!([p, -(i as f64) / 100.0])).collect();
    tokenizer(
        marks.iter().enumerate().map(|(i, m)| added(i, m, i < 5, i >= 5)).collect(),
        json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        }),
        json!({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}),
    )
}

/// As Llama 3 and Qwen: byte-level BPE that takes whole words from its vocabulary, where the marks are too.
pub fn byte_level_bpe() -> Value {
    let starter: Value =
        serde_json::from_str(&std::fs::read_to_string(starter_dir().join("tokenizer.json")).expect("read"))
            .expect("JSON");
    let mut model = starter["model"].clone();
    model["ignore_merges"] = true.into();
    let marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"];
    let num = model["vocab"].as_object().expect("a map").len();
    let spaces = [added(num, "    ", false, false), added(num + 1, "\n\n\n", false, false)];
    tokenizer(
        marks.iter().enumerate().map(|(i, m)| added(i, m, i < 3, false)).chain(spaces).collect(),
        json!({
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
                    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        }),
        model,
    )
}

/// As the byte-level kind, with a normalizer that would take stand-ins apart.
pub fn byte_level_normalizer() -> Value {
    let mut out = byte_level_bpe();
    out["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "ByteLevel"}]});
    out["pre_tokenizer"] = json!({"type": "Split", "behavior": "MergedWithNext", "invert": false,
        "pattern": {"String": "Ġ"}});
    out
}

/// One of each kind.
pub fn all_kinds() -> Vec<(&'static str, Arc<TextModel>)> {
    static MODELS: OnceLock<Vec<(&'static str, Arc<TextModel>)>> = OnceLock::new();
    let kinds = || {
        vec![
            ("starter", starter()),
            ("sentencepiece bpe", open(&sentencepiece_bpe(), TEMPLATE)),
            ("unigram", open(&unigram(), TEMPLATE)),
            ("byte-level bpe", open(&byte_level_bpe(), TEMPLATE)),
            ("byte-level normalizer", open(&byte_level_normalizer(), TEMPLATE)),
        ]
    };
    MODELS.get_or_init(kinds).clone()
}
