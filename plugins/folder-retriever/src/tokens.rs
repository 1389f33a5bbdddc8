//! Words of a text as search terms: lower case, without the `s` of a plural, one by one in scripts without spaces.

use serde::Deserialize;

/// Words of a question that find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopWords {
    /// English ones.
    English,
    /// Every word counts.
    None,
}

/// As [`terms`] gives them, sorted.
const ENGLISH: &[&str] = &[
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "did", "do", "doe", "does", "for", "from", "had",
    "has", "have", "how", "i", "if", "in", "is", "it", "its", "many", "me", "much", "my", "of", "on", "or", "our",
    "she", "tell", "that", "the", "their", "there", "they", "thi", "this", "to", "was", "we", "were", "what", "when",
    "where", "which", "who", "why", "will", "with", "you", "your",
];

/// Longer words are cut: they are no words.
const MAX_TERM_BYTES: usize = 64;

/// Terms of a question beyond these are not looked for.
const MAX_QUERY_TERMS: usize = 64;

/// Every term of a text, in order.
pub fn terms(text: &str) -> impl Iterator<Item = String> {
    pieces(text).map(normal)
}

/// The different terms of a question, without stop words; a question of nothing but stop words keeps them.
pub fn query_terms(text: &str, stop_words: StopWords) -> Vec<String> {
    let tells = |term: &String| stop_words == StopWords::None || ENGLISH.binary_search(&term.as_str()).is_err();
    let telling = different(terms(text).filter(tells));
    if telling.is_empty() { different(terms(text)) } else { telling }
}

/// The first different ones.
fn different(terms: impl Iterator<Item = String>) -> Vec<String> {
    let mut different: Vec<String> = Vec::new();
    for term in terms {
        if !different.contains(&term) {
            different.push(term);
        }
        if different.len() == MAX_QUERY_TERMS {
            break;
        }
    }
    different
}

/// Runs of letters and digits; characters of scripts without spaces one by one.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = &rest[rest.find(char::is_alphanumeric)?..];
        let first = rest.chars().next()?;
        let len = match is_spaceless(first) {
            true => first.len_utf8(),
            false => rest.find(|c: char| !c.is_alphanumeric() || is_spaceless(c)).unwrap_or(rest.len()),
        };
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        Some(piece)
    })
}

/// Chinese, Japanese and Thai characters.
fn is_spaceless(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

fn normal(piece: &str) -> String {
    let mut term = piece.to_lowercase();
    term.truncate(term.floor_char_boundary(MAX_TERM_BYTES));
    if term.len() > 3 && term.ends_with('s') && !term.ends_with("ss") {
        term.pop();
    }
    term
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_terms() {
        let check = |text, expected: &[&str]| assert_eq!(terms(text).collect::<Vec<_>>(), expected, "{text}");
        check("Two tickets, 12.50 euros!", &["two", "ticket", "12", "50", "euro"]);
        check("The glass's bus is Größe", &["the", "glass", "s", "bus", "is", "größe"]);
        check("東京タワー tower", &["東", "京", "タ", "ワ", "ー", "tower"]);
        check("--- ...", &[]);
        assert_eq!(terms(&"x".repeat(1000)).next().unwrap().len(), MAX_TERM_BYTES);
    }

    #[test]
    fn a_question_keeps_what_tells() {
        let english = |text| query_terms(text, StopWords::English);
        assert_eq!(english("How much is a ticket for the ferry, a ticket?"), ["ticket", "ferry"]);
        assert_eq!(english("Who are you?"), ["who", "are", "you"]);
        assert_eq!(query_terms("the ferry", StopWords::None), ["the", "ferry"]);
        assert!(ENGLISH.is_sorted());
    }

    #[test]
    fn stop_words_take_no_room_from_what_tells() {
        let question = format!("{} {}", ENGLISH.join(" "), (0..70).map(|n| format!("word{n} ")).collect::<String>());
        let telling = query_terms(&question, StopWords::English);
        assert_eq!((telling.len(), telling[63].as_str()), (MAX_QUERY_TERMS, "word63"));
        assert_eq!(query_terms(&question, StopWords::None)[MAX_QUERY_TERMS - 1], "word8");
    }
}
