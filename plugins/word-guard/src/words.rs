//! A list of words and phrases as a trie of characters, in one vector: twelve bytes for each place in a word at most, so that the
//! longest list has its table in the memory that a plugin is given.
//!
//! A walk from one place ends at the first character that no word goes on with, so text costs a step or two a
//! character, and where a window ends inside a walk a word may be under way. (Aho and Corasick's links would save
//! the walks that begin inside of another one; the longest entry bounds those.)

use tidegate_plugin_sdk::scan::{Place, Step};

/// The list.
#[derive(Debug)]
pub struct Words {
    /// By depth, so that children of a node lie together, sorted, and behind them those of the next node. The last one is none:
    /// it says where the last children end.
    nodes: Vec<Node>,
    ignore_case: bool,
    whole: bool,
}

#[derive(Debug)]
struct Node {
    c: char,
    /// Its first child, if it has one.
    first: u32,
    ends_word: bool,
}

impl Words {
    /// A list of words.
    ///
    /// # Errors
    /// For an empty word and one that is longer than `max_bytes`.
    pub fn new(words: &[String], ignore_case: bool, whole: bool, max_bytes: usize) -> Result<Self, String> {
        let mut list = Vec::with_capacity(words.len());
        for word in words {
            let trimmed = word.trim();
            if trimmed.is_empty() {
                return Err("`words` has an empty entry".into());
            }
            // A character has at most four bytes, and not the same number in each case.
            let (have, max) = (trimmed.chars().count(), max_bytes / 4);
            if have > max {
                return Err(format!("word `{trimmed}` has {have} characters; at most {max} are supported"));
            }
            let mut word = Vec::with_capacity(have);
            word.extend(trimmed.chars().map(|c| fold(c, ignore_case)));
            list.push(word);
        }
        list.sort_unstable();
        list.dedup();
        Ok(Self { nodes: trie(&list), ignore_case, whole })
    }

    /// Whether a word may begin with a character.
    pub fn may_begin(&self, c: char) -> bool {
        self.child(0, c).is_some()
    }

    fn children(&self, node: usize) -> std::ops::Range<usize> {
        self.nodes[node].first as usize..self.nodes[node + 1].first as usize
    }

    /// Where words go on from a node with a character.
    fn child(&self, node: usize, c: char) -> Option<usize> {
        let (c, children) = (fold(c, self.ignore_case), self.children(node));
        let at = self.nodes[children.clone()].binary_search_by_key(&c, |child| child.c).ok()?;
        Some(children.start + at)
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
            let Some(child) = self.child(node, c) else { return found(best, rule) };
            node = child;
            if self.nodes[node].ends_word {
                match chars.peek() {
                    Some((_, next)) if self.whole && is_joined(c) && is_joined(*next) => {}
                    None if self.whole && is_joined(c) && !at.is_last => return Step::More,
                    _ => best = Some(start + c.len_utf8()),
                }
            }
        }
        if self.children(node).is_empty() || at.is_last { found(best, rule) } else { Step::More }
    }
}

/// Of words that are sorted and apart: nodes of one depth after those of another.
fn trie(words: &[Vec<char>]) -> Vec<Node> {
    let num_places: usize = words.iter().map(Vec::len).sum();
    let mut nodes = Vec::with_capacity(num_places + 2);
    nodes.push(Node { c: '\0', first: 0, ends_word: false });
    // The words behind each node of a depth.
    let (mut depth, mut at, mut level) = (0, 0, vec![words]);
    while !level.is_empty() {
        let mut next = Vec::new();
        for words in level {
            nodes[at].first = index(nodes.len());
            // The shortest comes first.
            let (ended, longer) = words.split_at(words.partition_point(|word| word.len() == depth));
            nodes[at].ends_word = !ended.is_empty();
            for behind in longer.chunk_by(|one, other| one[depth] == other[depth]) {
                nodes.push(Node { c: behind[0][depth], first: 0, ends_word: false });
                next.push(behind);
            }
            at += 1;
        }
        (depth, level) = (depth + 1, next);
    }
    nodes.push(Node { c: '\0', first: index(nodes.len()), ends_word: false });
    nodes.shrink_to_fit();
    nodes
}

fn index(num_nodes: usize) -> u32 {
    u32::try_from(num_nodes).unwrap_or(u32::MAX)
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
fn is_border(before: Option<char>, after: Option<char>) -> bool {
    let is_alone = |c: Option<char>| c.is_some_and(|c| is_word(c) && is_spaceless(c));
    before.is_some_and(is_word) != after.is_some_and(is_word) || is_alone(before) || is_alone(after)
}

/// Bytes of a line break as JSON writes it: a backslash and `n`, `r` or `t`, which is a letter of no word behind it.
pub(crate) const BREAK_BYTES: usize = 2;

pub(crate) fn is_break(backslash: Option<char>, letter: char) -> bool {
    backslash == Some('\\') && matches!(letter, 'n' | 'r' | 't')
}

/// The last two characters before a place.
#[derive(Clone, Copy)]
pub(crate) struct Behind {
    pub(crate) last: Option<char>,
    /// A line break as JSON writes it. It may be a letter of a path as well, so that a border is there either way.
    pub(crate) is_break: bool,
}

impl Behind {
    /// Where one character is known.
    pub(crate) fn one(last: Option<char>) -> Self {
        Self { last, is_break: false }
    }

    /// At byte `start` of the text from a place on.
    pub(crate) fn inside(at: Place<'_>, start: usize) -> Self {
        let mut chars = at.rest[..start].chars().rev();
        match chars.next() {
            Some(last) => Self::one(chars.next().or(at.before)).then(last),
            None => Self::one(at.before),
        }
    }

    pub(crate) fn then(self, c: char) -> Self {
        Self { last: Some(c), is_break: is_break(self.last, c) }
    }

    pub(crate) fn is_border(self, after: Option<char>) -> bool {
        self.is_break || is_border(self.last, after)
    }
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
    fn words_that_begin_other_words_are_found_in_any_order() {
        let words = ["carpet", "car", "cart", "dog", "car", "CARPET", "do"];
        for whole in [true, false] {
            let text = "car carp cart carpet carpets dogs do";
            let expected: &[&str] = match whole {
                true => &["car", "cart", "carpet", "do"],
                false => &["car", "car", "cart", "carpet", "carpet", "dog", "do"],
            };
            assert_eq!(found_in(&words, true, whole, text), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_longest_listed_word_is_found_at_each_place(
            words in proptest::collection::vec("[abc]{1,4}", 1..9),
            text in "[abc]{0,20}",
        ) {
            let list = Words::new(&words, false, false, 480).unwrap();
            for start in 0..text.len() {
                let rest = &text[start..];
                let expected = words.iter().filter(|word| rest.starts_with(*word)).map(String::len).max();
                let at = Place { rest, before: None, open: None, is_last: true };
                proptest::prop_assert_eq!(list.step(at, 0), found(expected, 0), "{} in {:?}", rest, words);
            }
        }
    }

    /// As many words as may be, as long as they may be, of which no two begin alike.
    #[test]
    fn the_longest_list_has_a_table_of_fifteen_megabytes() {
        let first = |n: u32| char::from_u32(0x4e00 + n).unwrap();
        let words: Vec<String> = (0..10_000).map(|n| format!("{}{}", first(n), "密".repeat(119))).collect();
        let list = Words::new(&words, true, true, 480).unwrap();
        let bytes = list.nodes.capacity() * size_of::<Node>();
        assert_eq!(list.nodes.len(), 10_000 * 120 + 2);
        assert!(bytes < 15_000_000, "{bytes} bytes");
        let at = Place { rest: &words[9_999], before: None, open: None, is_last: true };
        assert_eq!(list.step(at, 0), Step::Match { len: 360, rule: 0 });
    }

    #[test]
    fn entries_are_checked() {
        assert!(Words::new(&[" ".into()], true, true, 480).is_err());
        assert!(Words::new(&["x".repeat(121)], true, true, 480).is_err());
    }
}
