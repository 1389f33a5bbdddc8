//! Reads a model's folder: bytes in, checked plain data out. The only file of the crate that does IO.
//!
//! Hugging Face folders spread the chat template over three generations of files; the newest wins:
//! `chat_template.jinja`, then `tokenizer_config.json`, then `chat_template.json`. A separate template for
//! requests with tools (`tool_use`) is kept beside the default one, as `apply_chat_template` does.
//!
//! Read next: `model.rs`.

use crate::error::TextError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The largest `tokenizer.json` that is read; the largest public ones are near 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// The largest of the other files.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Names under which special tokens are known to templates.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What a model's folder says about text.
pub(crate) struct ModelFiles {
    /// Where `tokenizer.json` lies, for later error messages.
    pub tokenizer_path: PathBuf,
    /// The loaded tokenizer, without truncation and padding.
    pub tokenizer: Tokenizer,
    /// The token that stands for unknown text, where the model has one.
    pub unknown: Option<UnknownToken>,
    /// The template for conversations.
    pub template: Option<TemplateSource>,
    /// The template for conversations with tools, where it is another one.
    pub tool_template: Option<TemplateSource>,
    /// Special tokens by their names: `bos_token` and so on. Absent ones are undefined in templates.
    pub named_tokens: Map<String, Value>,
}

/// How `tokenizer.json` names the unknown token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnknownToken {
    /// By its text (BPE, WordPiece, WordLevel).
    Text(String),
    /// By its id (Unigram).
    Id(u32),
}

/// A template and the file it came from.
#[derive(Clone)]
pub(crate) struct TemplateSource {
    pub path: PathBuf,
    pub text: String,
}

/// Reads all files of `dir`; a `template` of its own counts in place of those that are there, which are not read then.
pub(crate) fn read(dir: &Path, template: Option<&Path>) -> Result<ModelFiles, TextError> {
    let tokenizer_path = dir.join("tokenizer.json");
    let bytes = read_capped(&tokenizer_path, MAX_TOKENIZER_BYTES)?.ok_or_else(|| missing_tokenizer(&tokenizer_path))?;
    let unknown = unknown_token(&tokenizer_path, &bytes)?;
    let tokenizer = load_tokenizer(&tokenizer_path, &bytes)?;
    let config: Map<String, Value> = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let legacy_tokens: Map<String, Value> = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    let templates = match template {
        Some(path) => Templates { default: Some(named_template(path)?), tool_use: None },
        None => Templates::of_folder(dir, config.get("chat_template"))?,
    };
    Ok(ModelFiles {
        tokenizer_path,
        tokenizer,
        unknown,
        template: templates.default,
        tool_template: templates.tool_use,
        named_tokens: named_tokens(&config, &legacy_tokens),
    })
}

fn missing_tokenizer(path: &Path) -> TextError {
    let has_sentencepiece = path.with_file_name("tokenizer.model").exists();
    let cause = if has_sentencepiece {
        "no such file; the folder has a SentencePiece tokenizer.model: convert it with transformers' save_pretrained"
    } else {
        "no such file; a model folder needs tokenizer.json"
    };
    TextError::Unreadable { path: path.to_owned(), cause: cause.to_owned() }
}

/// The file's bytes, `None` where there is no such file.
fn read_capped(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, TextError> {
    let unreadable = |cause: String| TextError::Unreadable { path: path.to_owned(), cause };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > max_bytes {
        return Err(unreadable(format!("larger than {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

fn malformed(path: &Path, cause: impl ToString) -> TextError {
    TextError::Malformed { path: path.to_owned(), cause: cause.to_string() }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(bytes) = read_capped(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| malformed(path, error))
}

fn read_text(path: &Path) -> Result<Option<TemplateSource>, TextError> {
    let Some(bytes) = read_capped(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|error| malformed(path, error))?;
    Ok(Some(TemplateSource { path: path.to_owned(), text }))
}

fn named_template(path: &Path) -> Result<TemplateSource, TextError> {
    let missing = || TextError::Unreadable { path: path.to_owned(), cause: "no such file".to_owned() };
    read_text(path)?.ok_or_else(missing)
}

/// Also the check that the file is well-formed JSON as a whole: the tokenizers crate panics on some that are not.
fn unknown_token(path: &Path, bytes: &[u8]) -> Result<Option<UnknownToken>, TextError> {
    #[derive(Deserialize)]
    struct Skeleton {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        unk_token: Option<String>,
        unk_id: Option<u32>,
    }
    let skeleton: Skeleton = serde_json::from_slice(bytes).map_err(|error| malformed(path, error))?;
    Ok(skeleton.model.unk_token.map(UnknownToken::Text).or(skeleton.model.unk_id.map(UnknownToken::Id)))
}

/// The crate answers some well-formed but senseless files with a panic instead of an error; both are ours to report.
fn load_tokenizer(path: &Path, bytes: &[u8]) -> Result<Tokenizer, TextError> {
    let loaded = std::panic::catch_unwind(|| -> tokenizers::Result<Tokenizer> {
        let mut tokenizer = Tokenizer::from_bytes(bytes)?;
        tokenizer.with_truncation(None)?.with_padding(None);
        Ok(tokenizer)
    });
    match loaded {
        Ok(result) => result.map_err(|error| malformed(path, error)),
        Err(_) => Err(malformed(path, "the tokenizer description contradicts itself")),
    }
}

/// A special token is written as its text, or as an object with flags and a `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn named_tokens(config: &Map<String, Value>, legacy: &Map<String, Value>) -> Map<String, Value> {
    let find = |name: &str| config.get(name).and_then(token_text).or_else(|| legacy.get(name).and_then(token_text));
    TOKEN_NAMES.iter().filter_map(|name| Some(((*name).to_owned(), find(name)?.into()))).collect()
}

/// Templates found so far; what is taken later replaces what was taken before.
#[derive(Default)]
struct Templates {
    default: Option<TemplateSource>,
    tool_use: Option<TemplateSource>,
}

impl Templates {
    /// `configured` is what `tokenizer_config.json` says.
    fn of_folder(dir: &Path, configured: Option<&Value>) -> Result<Self, TextError> {
        let mut templates = Self::default();
        templates.take_processor_file(dir)?;
        templates.take_config(&dir.join("tokenizer_config.json"), configured)?;
        templates.take_jinja_files(dir)?;
        Ok(templates)
    }

    /// `chat_template.json`, where processors keep theirs.
    fn take_processor_file(&mut self, dir: &Path) -> Result<(), TextError> {
        let path = dir.join("chat_template.json");
        let file: Option<Map<String, Value>> = read_json(&path)?;
        self.take_config(&path, file.as_ref().and_then(|file| file.get("chat_template")))
    }

    /// The field `chat_template`: one text, or a list of named ones.
    fn take_config(&mut self, path: &Path, field: Option<&Value>) -> Result<(), TextError> {
        let source = |text: &str| TemplateSource { path: path.to_owned(), text: text.to_owned() };
        match field {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => self.default = Some(source(text)),
            Some(Value::Array(list)) => {
                for entry in list {
                    let part = |key: &str| entry.get(key).and_then(Value::as_str);
                    let (Some(name), Some(text)) = (part("name"), part("template")) else {
                        return Err(malformed(path, "a chat_template without `name` and `template`"));
                    };
                    self.take_named(name, source(text));
                }
            }
            Some(_) => return Err(malformed(path, "chat_template is neither a text nor a list")),
        }
        Ok(())
    }

    fn take_jinja_files(&mut self, dir: &Path) -> Result<(), TextError> {
        if let Some(source) = read_text(&dir.join("chat_template.jinja"))? {
            *self = Self { default: Some(source), tool_use: None };
        }
        if let Some(source) = read_text(&dir.join("additional_chat_templates").join("tool_use.jinja"))? {
            self.tool_use = Some(source);
        }
        Ok(())
    }

    /// Other names (such as `rag`) are reached by arguments that this crate does not offer.
    fn take_named(&mut self, name: &str, source: TemplateSource) {
        match name {
            "default" => self.default = Some(source),
            "tool_use" => self.tool_use = Some(source),
            _ => {}
        }
    }
}
