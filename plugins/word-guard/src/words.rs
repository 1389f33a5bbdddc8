//! A list of words and phrases as a trie of characters.
//!
//! A walk from one place ends at the first character that no word goes on with, so text costs a step or two a
//! character, and where a window ends inside a walk a word may be under way. (Aho and Corasick's links would save
//! the walks that begin inside of another one; the longest entry bounds those.)

use tidegate_plugin_sdk::scan::{Place, Step};

/// The list.
#[derive(Debug)]
pub struct Words {
    nodes: Vec<Node>,
    ignore_case: bool,
    whole: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// By character, sorted.
    children: Vec<(char, u32)>,
    ends_word: bool,
}

impl Words {
    /// A list of words.
    ///
    /// # Errors
    /// For an empty word and one that is longer than `max_bytes`.
    pub fn new(words: &[String], ignore_case: bool, whole: bool, max_bytes: usize) -> Result<Self, String> {
        let mut list = Self { nodes: vec![Node::default()], ignore_case, whole };
        for word in words {
            let trimmed = word.trim();
            if trimmed.is_empty() {
                return Err("`words` has an empty entry".into());
            }
            // A character has at most four bytes, and not the same number in each case.
            if trimmed.chars().count() > max_bytes / 4 {
                let (have, max) = (trimmed.chars().count(), max_bytes / 4);
                return Err(format!("word `{trimmed}` has {have} characters; at most {max} are supported"));
            }
            list.insert(trimmed);
        }
        Ok(list)
    }

    fn insert(&mut self, word: &str) {
        let mut node = 0;
        for c in word.chars() {
            let c = fold(c, self.ignore_case);
            let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            let children = &mut self.nodes[node].children;
            match children.binary_search_by_key(&c, |(c, _)| *c) {
                Ok(at) => node = children[at].1 as usize,
                Err(at) => {
                    children.insert(at, (c, next));
                    self.nodes.push(Node::default());
                    node = next as usize;
                }
            }
        }
        self.nodes[node].ends_word = true;
    }

    /// Whether a word may begin with a character.
    pub fn may_begin(&self, c: char) -> bool {
        let children = &self.nodes[0].children;
        children.binary_search_by_key(&fold(c, self.ignore_case), |(c, _)| *c).is_ok()
    }

    /// The longest word at a place.
    pub fn step(&self, at: Place<'_>, rule: usize) -> Step {
        let begins_inside = at.before.is_some_and(is_joined) && at.rest.starts_with(is_joined);
        if self.whole && begins_inside {
            return Step::No;
        }
        let (mut node, mut best) = (0, None);
        let mut chars = at.rest.char_indices().peekable();
        while let Some((start, c)) = chars.next() {
            let children = &self.nodes[node].children;
            let Ok(child) = children.binary_search_by_key(&fold(c, self.ignore_case), |(c, _)| *c) else {
                return found(best, rule);
            };
            node = children[child].1 as usize;
            if self.nodes[node].ends_word {
                match chars.peek() {
                    Some((_, next)) if self.whole && is_joined(c) && is_joined(*next) => {}
                    None if self.whole && is_joined(c) && !at.is_last => return Step::More,
                    _ => best = Some(start + c.len_utf8()),
                }
            }
        }
        if self.nodes[node].children.is_empty() || at.is_last { found(best, rule) } else { Step::More }
    }
}

fn found(len: Option<usize>, rule: usize) -> Step {
    len.map_or(Step::No, |len| Step::Match { len, rule })
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a word goes on from such a character to another of the kind: one of a word in a script that has spaces between words.
fn is_joined(c: char) -> bool {
    is_word(c) && !is_spaceless(c)
}

/// Whether a word may begin or end between two characters; beside one of a script without spaces, always.
pub(crate) fn is_border(before: Option<char>, after: Option<char>) -> bool {
    let is_alone = |c: Option<char>| c.is_some_and(|c| is_word(c) && is_spaceless(c));
    before.is_some_and(is_word) != after.is_some_and(is_word) || is_alone(before) || is_alone(after)
}

/// Scripts in which no space tells where a word ends. Korean has spaces, but behind most words a particle without one, which is
/// no other word: `비밀은` is about `비밀`.
fn is_spaceless(c: char) -> bool {
    const RANGES: [(char, char); 15] = [
        // Thai, Lao, Tibetan, Burmese.
        ('\u{e00}', '\u{109f}'),
        // Hangul's letters.
        ('\u{1100}', '\u{11ff}'),
        // Khmer.
        ('\u{1780}', '\u{17ff}'),
        // Tai Le, New Tai Lue, and Tai Tham.
        ('\u{1950}', '\u{19df}'),
        ('\u{1a20}', '\u{1aaf}'),
        // Signs of repetition, kana, bopomofo, Hangul's letters alone, smaller kana.
        ('\u{3005}', '\u{3007}'),
        ('\u{3031}', '\u{31ff}'),
        // Chinese characters.
        ('\u{3400}', '\u{9fff}'),
        ('\u{f900}', '\u{faff}'),
        ('\u{20000}', '\u{3ffff}'),
        // Hangul.
        ('\u{a960}', '\u{a97f}'),
        ('\u{ac00}', '\u{d7ff}'),
        // More Burmese.
        ('\u{a9e0}', '\u{a9ff}'),
        ('\u{aa60}', '\u{aa7f}'),
        // Kana and Hangul of half width.
        ('\u{ff66}', '\u{ffdc}'),
    ];
    // Most text is below them.
    c >= '\u{e00}' && RANGES.iter().any(|(first, last)| (first..=last).contains(&&c))
}

/// One character for all white space, and one for both cases where Unicode has a lower case of one character.
pub(crate) fn fold(c: char, ignore_case: bool) -> char {
    if c.is_whitespace() {
        return ' ';
    }
    if !ignore_case {
        return c;
    }
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some('ς'), None) => 'σ',
        (Some(lower), None) => lower,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::scan::{Scanner, find_all};

    struct Only(Words);
    impl Scanner for Only {
        fn step(&self, at: Place<'_>) -> Step {
            self.0.step(at, 0)
        }
    }

    fn found_in<'a>(words: &[&str], ignore_case: bool, whole: bool, text: &'a str) -> Vec<&'a str> {
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let words = Only(Words::new(&words, ignore_case, whole, 480).unwrap());
        find_all(&words, text).into_iter().map(|hit| &text[hit.range]).collect()
    }

    #[test]
    fn words_match_as_a_whole_in_any_case() {
        let check = |text, expected: &[&str]| {
            assert_eq!(found_in(&["cat", "Project Nightjar", "Zürich", "c++"], true, true, text), expected, "{text}");
        };
        check("The CAT sat: cat, cats, scat, cat_1, cat's", &["CAT", "cat", "cat"]);
        check("about project\nNIGHTJAR and PROJECT nightjars", &["project\nNIGHTJAR"]);
        check("in ZÜRICH or zürich", &["ZÜRICH", "zürich"]);
        check("C++ and c++x", &["C++", "c++"]);
    }

    #[test]
    fn parts_and_cases_are_told_apart_when_asked() {
        assert_eq!(found_in(&["cat"], true, false, "scatter CAT"), ["cat", "CAT"]);
        assert_eq!(found_in(&["cat"], false, true, "Cat cat"), ["cat"]);
    }

    #[test]
    fn words_of_scripts_without_spaces_are_found_beside_other_characters() {
        let check = |word, text, expected: &[&str]| assert_eq!(found_in(&[word], true, true, text), expected, "{text}");
        check("密码", "我的密码是什么？密码", &["密码", "密码"]);
        check("パスワード", "新しいパスワードを教えて", &["パスワード"]);
        check("ﾊﾟｽﾜｰﾄﾞ", "新しいﾊﾟｽﾜｰﾄﾞを", &["ﾊﾟｽﾜｰﾄﾞ"]);
        check("รหัส", "ขอรหัสผ่าน", &["รหัส"]);
        check("비밀", "그 비밀은 비밀이다", &["비밀", "비밀"]);
        check("cat", "是cat吗", &["cat"]);
        check("cat", "是cats吗", &[]);
        check("cat", "猫cat_1", &[]);
        check("пароль", "мой пароль密, пароли, паролью", &["пароль"]);
    }

    #[test]
    fn the_longest_word_wins() {
        assert_eq!(found_in(&["new", "new york", "york city"], true, true, "New York City"), ["New York"]);
    }

    #[test]
    fn entries_are_checked() {
        assert!(Words::new(&[" ".into()], true, true, 480).is_err());
        assert!(Words::new(&["x".repeat(121)], true, true, 480).is_err());
    }
}
