//! Turns serde's "unknown field", which lists the known keys, and its "unknown variant", which lists the values that a key
//! may have, into a message that names the nearest where one is near. Next: `words.rs`, for values of the wrong kind.

use super::words;

/// Words for values that are called otherwise here, whatever they are near.
const CALLED: [(&str, &str); 1] = [("gpu", "cuda")];

/// What serde says, in words of whoever writes a config; of a key or a value that was mistyped what was meant, in place of all that
/// may be there.
pub(super) fn explain(message: &str) -> String {
    match (slip(message), message.split_once(", expected ")) {
        (Some((_, known)), Some((what, _))) => format!("{what}; did you mean `{known}`?"),
        _ => words::plain(message),
    }
}

/// What was mistyped, and what was meant, where the message is about that and something is near.
pub(super) fn slip(message: &str) -> Option<(&str, &str)> {
    let is_unknown = ["unknown field", "unknown variant"].iter().any(|what| message.starts_with(what));
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = quoted.next().filter(|_| is_unknown)?;
    Some((unknown, meant(unknown, quoted)?))
}

fn meant<'a>(unknown: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let called = CALLED.iter().find(|(other, _)| *other == unknown);
    let called = called.and_then(|(_, value)| known.clone().find(|known| known == value));
    called.or_else(|| nearest(unknown, known))
}

/// The known word with the fewest edits, where those are few enough for a slip: of a short key two are most of it.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = unknown.chars().count();
    let most = (length / 3).max(2).min(length.saturating_sub(2));
    let (edits, key) = known.map(|key| (distance(unknown, key), key)).min_by_key(|(edits, _)| *edits)?;
    (edits <= most).then_some(key)
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

    #[test]
    fn a_key_that_is_far_from_all_is_a_slip_of_none() {
        let server = ["listen", "admin_listen", "tls", "watch"];
        let keys = ["name", "hash", "tenant"];
        assert_eq!(nearest("port", server.into_iter()), None);
        assert_eq!(nearest("key", keys.into_iter()), None);
        assert_eq!(nearest("tsl", server.into_iter()), None, "two edits of three letters");
        assert_eq!(nearest("hsah", keys.into_iter()), Some("hash"));
        assert_eq!(nearest("adminlistn", server.into_iter()), Some("admin_listen"));
    }
}
