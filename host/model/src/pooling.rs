//! Whether a folder is of a model that makes vectors, and of what: `modules.json` and the config of its pooling, as
//! sentence-transformers writes them. What would change a vector and is not supported is refused by name; for what would
//! change its text, read `sentences.rs`.
//!
//! Whether a `Normalize` is among the modules makes no difference here: vectors leave the server with length 1.

use crate::error::ModelError;
use crate::files;
use crate::json::Object;
use serde_json::{Map, Value};
use std::path::{Component, Path};
use tidegate_types::Pooling;

const MAX_FILE_BYTES: u64 = 1 << 20;
/// Written by older and newer versions, and what is made of it.
const MODES: [(&str, &str, Pooling); 2] =
    [("pooling_mode_lasttoken", "lasttoken", Pooling::LastToken), ("pooling_mode_mean_tokens", "mean", Pooling::Mean)];
const SUPPORTED: &str = "lasttoken, mean";

const MODULES_FILE: &str = "modules.json";

/// Whether the folder says anything of vectors; [`read`] says what.
pub(crate) fn is_said(dir: &Path) -> bool {
    dir.join(MODULES_FILE).exists()
}

/// What the model's vectors are made of; `None` where the folder says nothing of vectors. `hidden` is how many numbers
/// they have.
pub(crate) fn read(dir: &Path, hidden: usize) -> Result<Option<Pooling>, ModelError> {
    let path = dir.join(MODULES_FILE);
    let Some(bytes) = files::read_optional(&path, MAX_FILE_BYTES)? else { return Ok(None) };
    let bad = |why: String| ModelError::Json { path: path.clone(), why };
    let modules: Vec<Map<String, Value>> = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let mut pooling = None;
    for (at, module) in modules.iter().enumerate() {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let kind = text("type").ok_or_else(|| bad(format!("module {at} has no `type`")))?;
        let folder = text("path").unwrap_or_default();
        // By its class: the modules that the classes are in change with the versions.
        match (at, kind.rsplit('.').next().unwrap_or(kind)) {
            (0, "Transformer") if folder.is_empty() => {}
            (1, "Pooling") if is_below(folder) => pooling = Some(read_config(&dir.join(folder), hidden)?),
            (2, "Normalize") => {}
            _ => {
                let supported =
                    "a Transformer in the folder itself, a Pooling below it, and a Normalize, in this order";
                let what = format!("module {at} of type {kind:?} at {folder:?}");
                return Err(ModelError::Unsupported { path, what, supported: supported.to_owned() });
            }
        }
    }
    pooling.map(Some).ok_or_else(|| bad("there is no Pooling among the modules".to_owned()))
}

fn is_below(folder: &str) -> bool {
    !folder.is_empty() && Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)))
}

fn read_config(dir: &Path, hidden: usize) -> Result<Pooling, ModelError> {
    let path = dir.join("config.json");
    let object = Object::parse(&path, &files::read(&path, MAX_FILE_BYTES)?)?;
    for key in ["word_embedding_dimension", "embedding_dimension"] {
        match object.uint(key, 1..=usize::MAX)? {
            Some(width) if width != hidden => {
                return Err(object.wrong(key, format!("is {width}, but the model's rows have {hidden} numbers")));
            }
            _ => {}
        }
    }
    if object.flag("include_prompt")? == Some(false) {
        return Err(object.unsupported("include_prompt", "false", "vectors of all that a text has"));
    }
    mode(&object)
}

fn mode(object: &Object) -> Result<Pooling, ModelError> {
    if let Some(named) = object.text("pooling_mode")? {
        let known = MODES.iter().find(|(_, name, _)| *name == named).map(|(.., pooling)| *pooling);
        return known.ok_or_else(|| object.unsupported("pooling_mode", named, SUPPORTED));
    }
    let mut modes = Vec::new();
    for key in object.keys().filter(|key| key.starts_with("pooling_mode_")) {
        if object.flag(key)? == Some(true) {
            modes.push(key);
        }
    }
    let [only] = modes[..] else {
        let found = if modes.is_empty() { "no mode".to_owned() } else { modes.join(", ") };
        return Err(object.unsupported("pooling_mode", &found, SUPPORTED));
    };
    let known = MODES.iter().find(|(key, ..)| *key == only).map(|(.., pooling)| *pooling);
    known.ok_or_else(|| object.unsupported(only, "true", SUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: &str = r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    fn pooling(modules: &str, config: &str) -> Result<Option<Pooling>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        std::fs::write(dir.path().join("modules.json"), modules).unwrap();
        std::fs::write(dir.path().join("1_Pooling/config.json"), config).unwrap();
        read(dir.path(), 32).map_err(|error| error.to_string())
    }

    #[test]
    fn the_pooling_is_read_as_old_and_new_versions_write_it() {
        assert_eq!(read(Path::new("/nowhere"), 32).unwrap(), None);
        for (config, expected) in [
            (
                r#"{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true,
                "include_prompt": true}"#,
                Pooling::LastToken,
            ),
            (r#"{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#, Pooling::Mean),
            (r#"{"embedding_dimension": 32, "pooling_mode": "lasttoken"}"#, Pooling::LastToken),
            (r#"{"pooling_mode": "mean"}"#, Pooling::Mean),
        ] {
            assert_eq!(pooling(MODULES, config), Ok(Some(expected)), "{config}");
        }
        let newer = MODULES.replace("sentence_transformers.models", "sentence_transformers.base.modules");
        assert_eq!(pooling(&newer, r#"{"pooling_mode": "mean"}"#), Ok(Some(Pooling::Mean)));
    }

    #[test]
    fn what_would_change_a_vector_and_is_not_supported_is_refused_by_name() {
        let mean = r#"{"pooling_mode": "mean"}"#;
        let dense = MODULES.replace("models.Normalize", "models.Dense");
        let outside = MODULES.replace("1_Pooling", "../1_Pooling");
        let alone = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"}]"#;
        for (modules, config, named) in [
            (MODULES, r#"{"pooling_mode_cls_token": true}"#, "`pooling_mode_cls_token` = true is not supported"),
            (
                MODULES,
                r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true}"#,
                "pooling_mode_mean_tokens",
            ),
            (
                MODULES,
                r#"{"pooling_mode": "cls"}"#,
                "`pooling_mode` = cls is not supported; supported: lasttoken, mean",
            ),
            (MODULES, "{}", "no mode"),
            (
                MODULES,
                r#"{"pooling_mode": "mean", "word_embedding_dimension": 64}"#,
                "is 64, but the model's rows have 32",
            ),
            (MODULES, r#"{"pooling_mode": "mean", "include_prompt": false}"#, "include_prompt"),
            (&dense, mean, "models.Dense"),
            (&outside, mean, "../1_Pooling"),
            (alone, mean, "no Pooling"),
            ("{}", mean, "modules.json is not valid"),
        ] {
            let error = pooling(modules, config).unwrap_err();
            assert!(error.contains(named), "{error} does not say {named}");
        }
    }
}
