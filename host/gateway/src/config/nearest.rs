//! Turns serde's "unknown field" into a message that names the nearest key.

/// The parser's message (which shows line and column), with the nearest key where one was unknown.
pub(super) fn explain(error: &toml::de::Error) -> anyhow::Error {
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let suggestion = match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(unknown)) => nearest(unknown, quoted).map(|key| format!("did you mean `{key}`?")),
        _ => None,
    };
    match suggestion {
        Some(suggestion) => anyhow::anyhow!("{error}{suggestion}"),
        None => anyhow::anyhow!("{error}"),
    }
}

fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|key| distance(unknown, key))
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_with_the_fewest_edits() {
        assert_eq!(nearest("contxt_tokens", ["path", "context_tokens", "name"].into_iter()), Some("context_tokens"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
