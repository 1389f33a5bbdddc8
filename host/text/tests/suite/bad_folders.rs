//! Folders that are damaged or ask for too much: errors that name the file and the cause, never a panic.

use crate::folders::{folder, sentencepiece_bpe, starter_dir};
use serde_json::{Value, json};
use std::path::Path;
use tidegate_text::{TextError, TextModel, TextOverrides};

fn error(dir: &Path) -> TextError {
    TextModel::open(dir).err().expect("the folder does not open")
}

fn tokenizer_error(tokenizer: &str) -> TextError {
    error(folder(&[("tokenizer.json", tokenizer)]).path())
}

#[test]
fn a_missing_tokenizer_is_named_with_its_remedy() {
    let empty = error(folder(&[]).path());
    assert!(matches!(&empty, TextError::Unreadable { path, .. } if path.ends_with("tokenizer.json")), "{empty}");
    let sentencepiece = error(folder(&[("tokenizer.model", "x")]).path()).to_string();
    assert!(sentencepiece.contains("save_pretrained"), "{sentencepiece}");
}

#[test]
fn a_truncated_tokenizer_is_malformed_wherever_it_ends() {
    let whole = std::fs::read_to_string(starter_dir().join("tokenizer.json")).expect("read");
    let cuts = (0..200).map(|at| at * 7).chain((1..40).map(|part| whole.len() * part / 40)).chain([whole.len() - 1]);
    for cut in cuts {
        let error = tokenizer_error(&whole[..whole.floor_char_boundary(cut)]);
        assert!(matches!(&error, TextError::Malformed { .. }), "cut at {cut}: {error}");
    }
}

#[test]
fn a_tokenizer_with_a_part_missing_or_senseless_is_an_error() {
    let whole = sentencepiece_bpe();
    for key in ["model", "decoder"] {
        for value in [Value::Null, json!({}), json!([]), json!("x"), json!({"type": "Nonsense"}), json!(3)] {
            let mut broken = whole.clone();
            broken[key] = value.clone();
            let error = tokenizer_error(&broken.to_string());
            assert!(!error.is_callers(), "{key} = {value}: {error}");
        }
    }
    for key in ["normalizer", "pre_tokenizer", "post_processor", "added_tokens"] {
        for value in [json!({"type": "Nonsense"}), json!("x"), json!([3])] {
            let mut broken = whole.clone();
            broken[key] = value;
            assert!(!tokenizer_error(&broken.to_string()).is_callers(), "{key}");
        }
    }
}

#[test]
fn a_tokenizer_that_contradicts_itself_is_found_at_once() {
    let mut broken = sentencepiece_bpe();
    broken["post_processor"]["special_tokens"] = json!({});
    assert!(matches!(tokenizer_error(&broken.to_string()), TextError::Malformed { .. }));
    let mut broken = sentencepiece_bpe();
    broken["model"]["continuing_subword_prefix"] = json!("##");
    assert!(matches!(tokenizer_error(&broken.to_string()), TextError::Malformed { .. }));
    let mut broken = sentencepiece_bpe();
    broken["normalizer"]["normalizers"][0]["prepend"] = json!("");
    assert!(matches!(tokenizer_error(&broken.to_string()), TextError::Malformed { .. }));
}

#[test]
fn merges_of_unknown_tokens_are_malformed() {
    let mut broken = sentencepiece_bpe();
    broken["model"]["merges"] = json!([["zz", "yy"]]);
    assert!(matches!(tokenizer_error(&broken.to_string()), TextError::Malformed { .. }));
}

#[test]
fn an_id_beyond_any_vocabulary_is_refused_by_its_token_and_the_limit() {
    for id in [1_u32 << 22, u32::MAX] {
        let mut broken = sentencepiece_bpe();
        broken["model"]["vocab"]["huge"] = json!(id);
        let error = tokenizer_error(&broken.to_string());
        assert!(matches!(&error, TextError::Malformed { path, .. } if path.ends_with("tokenizer.json")), "{error}");
        assert!(
            error.to_string().contains(&format!("token \"huge\" has the id {id}; ids are below 4194304")),
            "{error}"
        );
    }
}

#[test]
fn a_decoder_that_joins_tokens_is_refused_by_name() {
    let mut tokenizer = sentencepiece_bpe();
    tokenizer["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let error = tokenizer_error(&tokenizer.to_string()).to_string();
    assert!(error.contains("WordPiece") && error.contains("supported: ByteLevel"), "{error}");
}

#[test]
fn broken_configs_and_templates_are_named() {
    let tokenizer = sentencepiece_bpe().to_string();
    for (name, text) in [
        ("tokenizer_config.json", "{\"bos_token\""),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "{\"chat_template\": 3}"),
        ("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\"}]}"),
        ("chat_template.json", "nope"),
        ("special_tokens_map.json", "{"),
        ("chat_template.jinja", "{% for m in messages %}"),
        ("chat_template.jinja", "{{ messages | nonsense"),
    ] {
        let error = error(folder(&[("tokenizer.json", &tokenizer), (name, text)]).path());
        assert!(matches!(&error, TextError::Malformed { path, .. } if path.ends_with(name)), "{name} {text}: {error}");
    }
}

#[test]
fn a_template_that_is_no_text_is_named() {
    let dir = folder(&[("tokenizer.json", &sentencepiece_bpe().to_string())]);
    std::fs::write(dir.path().join("chat_template.jinja"), [0xFF, 0xFE]).expect("written");
    let error = error(dir.path());
    assert!(error.to_string().contains("chat_template.jinja"), "{error}");
}

/// Each of its conversations would be refused as if its caller had sent a wrong one.
#[test]
fn a_template_that_fails_on_every_conversation_is_known() {
    let tokenizer = sentencepiece_bpe().to_string();
    let prompts = |template: &str| {
        let folder = folder(&[("tokenizer.json", &tokenizer), ("chat_template.jinja", template)]);
        TextModel::open(folder.path()).unwrap().plainest_prompts()
    };
    for (template, cause) in
        [("{{ messages[0].nothing.more }}", "undefined"), ("{{ nothing_of_the_kind() }}", "nothing_of_the_kind")]
    {
        let error = prompts(template).unwrap_err();
        assert!(
            matches!(&error, TextError::Malformed { path, .. } if path.ends_with("chat_template.jinja")),
            "{error}"
        );
        assert!(!error.is_callers() && error.to_string().contains(cause), "{template}: {error}");
    }
    // A conversation that begins otherwise may be right for it.
    let refuses = "{% if messages[0].role != 'system' %}{{ raise_exception('say who I am') }}{% endif %}ok";
    assert_eq!(prompts(refuses).unwrap(), [] as [Vec<u32>; 0]);
    assert_eq!(prompts("{{ messages[0].content + messages[1].content }}").unwrap().len(), 1);
    assert_eq!(prompts("{{ messages[0].content }}").unwrap().len(), 2);
}

/// The folder's own is broken, which nobody reads then.
#[test]
fn a_template_that_counts_in_place_of_the_folders_is_read_as_that_is() {
    let tokenizer = sentencepiece_bpe().to_string();
    let folder = folder(&[("tokenizer.json", &tokenizer), ("chat_template.jinja", "{% if %}"), ("own.jinja", "ok")]);
    let open = |name: &str| {
        let chat_template = Some(folder.path().join(name));
        TextModel::open_with(folder.path(), &TextOverrides { chat_template, ..TextOverrides::default() })
    };
    assert!(open("own.jinja").is_ok_and(|model| model.has_template()));
    let why = |name: &str| open(name).err().expect("it is refused").to_string();
    assert!(why("none.jinja").contains("none.jinja: no such file"), "{}", why("none.jinja"));
    std::fs::write(folder.path().join("own.jinja"), "{% for %}").expect("written");
    assert!(why("own.jinja").contains("own.jinja is not usable"), "{}", why("own.jinja"));
    let large = std::fs::File::create(folder.path().join("own.jinja")).expect("made");
    large.set_len((16 << 20) + 1).expect("grown");
    assert!(why("own.jinja").contains("larger than 16777216 bytes"), "{}", why("own.jinja"));
}
