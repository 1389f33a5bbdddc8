//! What sentence-transformers writes beside a model that makes vectors about the texts themselves: how long one may be,
//! and what would be done to it before the model sees it. That is the client's here, so it is refused by name.

use crate::error::ModelError;
use crate::files;
use crate::json::Object;
use std::path::Path;

const MAX_FILE_BYTES: u64 = 1 << 20;

/// The longest text in tokens, where the folder says less than the model's config.
pub(crate) fn longest_text(dir: &Path) -> Result<Option<usize>, ModelError> {
    if let Some(prompts) = read(dir, "config_sentence_transformers.json")?
        && let Some(name) = prompts.text("default_prompt_name")?
    {
        let supported = "null; whoever asks writes the prompt into the text";
        return Err(prompts.unsupported("default_prompt_name", name, supported));
    }
    let Some(texts) = read(dir, "sentence_bert_config.json")? else { return Ok(None) };
    if texts.flag("do_lower_case")? == Some(true) {
        let supported =
            "false; a tokenizer whose own normalizer lowers texts, or texts that are lowered by whoever asks";
        return Err(texts.unsupported("do_lower_case", "true", supported));
    }
    texts.uint("max_seq_length", 1..=1 << 30)
}

fn read(dir: &Path, name: &str) -> Result<Option<Object>, ModelError> {
    let path = dir.join(name);
    let bytes = files::read_optional(&path, MAX_FILE_BYTES)?;
    bytes.map(|bytes| Object::parse(&path, &bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(prompts: &str, texts: &str) -> Result<Option<usize>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config_sentence_transformers.json"), prompts).unwrap();
        std::fs::write(dir.path().join("sentence_bert_config.json"), texts).unwrap();
        longest_text(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_may_be_as_long_as_the_folder_says() {
        assert_eq!(longest_text(Path::new("/nowhere")).unwrap(), None);
        let prompts = r#"{"prompts": {"query": "Instruct: "}, "default_prompt_name": null}"#;
        assert_eq!(longest(prompts, r#"{"max_seq_length": 512, "do_lower_case": false}"#), Ok(Some(512)));
        assert_eq!(longest("{}", r#"{"max_seq_length": null}"#), Ok(None));
    }

    #[test]
    fn what_would_be_done_to_texts_is_refused_by_name() {
        for (prompts, texts, named) in [
            (r#"{"default_prompt_name": "query"}"#, "{}", "`default_prompt_name` = query is not supported"),
            ("{}", r#"{"do_lower_case": true}"#, "sentence_bert_config.json: `do_lower_case` = true is not supported"),
            ("{}", r#"{"max_seq_length": 0}"#, "`max_seq_length` is 0"),
            ("[]", "{}", "config_sentence_transformers.json is not valid"),
        ] {
            let error = longest(prompts, texts).unwrap_err();
            assert!(error.contains(named), "{error} does not say {named}");
        }
    }
}
