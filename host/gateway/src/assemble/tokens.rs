//! The tokens of a model as grammars see them.

use std::path::PathBuf;
use std::sync::Arc;
use tidegate_grammar::{Grammars, Token};
use tidegate_text::{TextModel, TextOverrides};

/// The grammars of a model with so many rows of logits.
pub(super) fn grammars_of(text: &Arc<TextModel>, rows: usize) -> Grammars {
    let text = Arc::clone(text);
    Grammars::new(move || Ok(tokens(&text, rows)))
}

/// The same for a worker, which has no use for text but this: it is read when the first answer is to be held to something,
/// as the server reads it. A template that the config puts another one in place of may be broken.
pub(super) fn grammars_in(folder: PathBuf, overrides: TextOverrides, rows: usize) -> Grammars {
    Grammars::new(move || {
        let text = TextModel::open_with(&folder, &overrides).map_err(|error| error.to_string())?;
        Ok(tokens(&text, rows))
    })
}

/// What each row stands for.
fn tokens(text: &TextModel, rows: usize) -> Vec<Token> {
    let token = |id| match (text.is_mark(id), text.token_bytes(id)) {
        (true, _) => Token::Mark(text.token_text(id).unwrap_or_default()),
        (false, []) => Token::Unused,
        (false, bytes) => Token::Text(bytes.to_vec()),
    };
    (0..u32::try_from(rows).unwrap_or(u32::MAX)).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidegate_text::{AddSpecial, Specials};
    use tidegate_types::TenantId;

    fn models() -> Vec<Arc<TextModel>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let fixtures =
            ["llama", "mistral", "qwen2", "qwen3"].map(|name| root.join("../../tests/fixtures/models").join(name));
        let folders = fixtures.into_iter().chain([root.join("assets/starter")]);
        folders.map(|folder| Arc::new(TextModel::open(&folder).unwrap())).collect()
    }

    #[test]
    fn each_token_is_what_it_adds_to_a_text() {
        for text in models() {
            let before = text.encode_literal("a", AddSpecial::No).unwrap();
            let said = text.decode(&before, Specials::Hide);
            let all = tokens(&text, text.vocab_size() + 3);
            assert_eq!(all[text.vocab_size()..], [Token::Unused, Token::Unused, Token::Unused]);
            for (id, token) in (0..).zip(&all[..text.vocab_size()]) {
                let both = text.decode(&[&before[..], &[id]].concat(), Specials::Show);
                match token {
                    Token::Text(bytes) => assert_eq!(both, said.clone() + &String::from_utf8_lossy(bytes), "{id}"),
                    Token::Mark(name) => assert_eq!(both, said.clone() + name, "{id}"),
                    Token::Unused => assert_eq!(both, said, "{id}"),
                }
            }
        }
    }

    #[test]
    fn text_may_be_any_token_but_marks() {
        for text in models() {
            let rows = text.vocab_size();
            let all = tokens(&text, rows);
            let any = grammars_of(&text, rows).compile(&TenantId::new("t"), "start: /(.|\\n)*/").unwrap();
            let mask = any.guide().mask(&[], &[], rows).unwrap();
            for (id, token) in all.iter().enumerate() {
                let allowed = mask[id / 32] >> (id % 32) & 1 == 1;
                match token {
                    // The same bytes as another: one of them will do.
                    Token::Text(bytes) if std::str::from_utf8(bytes).is_ok() => {
                        let twin = all.iter().filter(|other| *other == token).count() > 1;
                        assert!(allowed || twin, "{id} {token:?}");
                    }
                    Token::Text(_) => {}
                    Token::Mark(_) | Token::Unused => assert!(!allowed, "{id} {token:?}"),
                }
            }
        }
    }
}
