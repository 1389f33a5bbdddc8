//! `pattern`: a regular expression of ECMA-262, as JSON Schema has it, by an engine whose time is linear. What both write
//! alike and mean differently is written anew (`\d` is 0 to 9 there, every script's digits here); what this engine cannot
//! do, such as looking around, and what the two would not agree on, is refused.

use super::node::{Pattern, PatternIdx};
use regex::{Regex, RegexBuilder};
use std::collections::HashMap;

const MAX_PATTERNS: usize = 128;
/// Of its text. A class of a few letters can stand for hundreds of ranges.
const MAX_SOURCE: usize = 4096;
/// Of what is made of it. Each byte of a text may take as many steps as it has states.
const MAX_COMPILED: usize = 256 << 10;
const MAX_CACHE: usize = 1 << 20;

/// White space by ECMA-262: the byte order mark is, U+0085 is not.
const SPACE: &str =
    r"\t\n\x0B\x0C\r\x20\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
const ANY: &str = r"[^\n\r\u{2028}\u{2029}]";

/// The patterns of a schema, each once.
#[derive(Default)]
pub(super) struct Patterns {
    pub(super) list: Vec<Pattern>,
    known: HashMap<String, PatternIdx>,
}

impl Patterns {
    pub(super) fn add(&mut self, source: &str) -> Result<PatternIdx, String> {
        if let Some(known) = self.known.get(source) {
            return Ok(*known);
        }
        if self.list.len() == MAX_PATTERNS {
            return Err(format!("the schema has more than {MAX_PATTERNS} patterns"));
        }
        let regex = compile(source)?;
        self.known.insert(source.to_owned(), self.list.len());
        self.list.push(Pattern { source: source.to_owned(), regex });
        Ok(self.list.len() - 1)
    }
}

fn compile(source: &str) -> Result<Regex, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the pattern has {} bytes; at most {MAX_SOURCE}", source.len()));
    }
    let pattern = Translation::of(source)?;
    let built = RegexBuilder::new(&pattern).size_limit(MAX_COMPILED).dfa_size_limit(MAX_CACHE).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(most) => format!("the pattern is compiled to more than {most} bytes"),
        // The lines before show the pattern and point at the place, but the pattern is not the author's any more.
        other => format!("the pattern: {}", other.to_string().lines().last().unwrap_or_default()),
    })
}

/// From ECMA-262 to the syntax of `regex`, for what differs.
struct Translation<'p> {
    rest: &'p str,
    out: String,
}

impl<'p> Translation<'p> {
    fn of(source: &'p str) -> Result<String, String> {
        let mut translation = Self { rest: source, out: String::new() };
        while let Some(next) = translation.next() {
            match next {
                '\\' => translation.escape(false)?,
                '[' => translation.class()?,
                '(' => translation.group()?,
                '.' => translation.out.push_str(ANY),
                other => translation.out.push(other),
            }
        }
        Ok(translation.out)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn takes(&mut self, text: &str) -> bool {
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// After the parenthesis: what kind of group it is.
    fn group(&mut self) -> Result<(), String> {
        let look = ["?=", "?!", "?<=", "?<!"].iter().find(|look| self.rest.starts_with(**look));
        if let Some(look) = look {
            return Err(format!("the pattern looks around (`({look}`), which takes more than linear time in general"));
        }
        let kinds = ["?:", "?<", "?P<", "?i:", "?i)"];
        let kind = kinds.into_iter().find(|kind| self.takes(kind)).unwrap_or_default();
        if kind.is_empty() && self.rest.starts_with('?') {
            return Err(format!("the pattern has a group that ECMA-262 does not know: `({:.4}`", self.rest));
        }
        self.out.push('(');
        self.out.push_str(kind);
        Ok(())
    }

    /// After the bracket. Brackets inside and `&&`, `~~`, `--` are plain characters in ECMA-262 and operators here.
    fn class(&mut self) -> Result<(), String> {
        let is_negated = self.takes("^");
        self.out.push_str(if is_negated { "[^" } else { "[" });
        if self.rest.starts_with(']') {
            return Err("the pattern has an empty class, `[]` or `[^]`".into());
        }
        let (mut before, mut is_first) = (None, true);
        while let Some(next) = self.next() {
            let is_range = before == Some('-') && !is_first;
            match next {
                ']' => {
                    self.out.push(']');
                    break;
                }
                '\\' if is_range && self.rest.starts_with(['d', 'D', 'w', 'W', 's', 'S', 'p', 'P']) => {
                    return Err(format!("the pattern has a range to `\\{:.1}`: write `\\-` for the hyphen", self.rest));
                }
                '\\' => self.escape(true)?,
                '-' if before == Some('-') => {
                    return Err("the pattern has `--` in a class: write `\\-` for the hyphen".into());
                }
                '[' | '&' | '~' => self.out.extend(['\\', next]),
                other => self.out.push(other),
            }
            is_first = before.is_none() && next == '-';
            before = Some(if next == '\\' { 'x' } else { next });
        }
        Ok(())
    }

    /// After the backslash.
    fn escape(&mut self, in_class: bool) -> Result<(), String> {
        let Some(escaped) = self.next() else { return Err("the pattern ends with `\\`".into()) };
        match escaped {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[A-Za-z0-9_]"),
            'W' => self.out.push_str("[^A-Za-z0-9_]"),
            's' => self.out.extend(["[", SPACE, "]"]),
            'S' => self.out.extend(["[^", SPACE, "]"]),
            'b' if in_class => self.out.push_str("\\x08"),
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' if !in_class => self.out.push_str("(?-u:\\B)"),
            't' | 'n' | 'r' | 'f' | 'v' | 'u' | 'x' | 'p' | 'P' => self.out.extend(['\\', escaped]),
            '0' if !self.rest.starts_with(|next: char| next.is_ascii_digit()) => self.out.push_str("\\x00"),
            '1'..='9' | 'k' => {
                return Err(format!("the pattern refers back (`\\{escaped}`), which takes more than linear time"));
            }
            'c' => {
                return Err("the pattern has `\\c`, a control character: write its code, `\\x01` for `\\cA`".into());
            }
            other if other.is_ascii_alphanumeric() => {
                return Err(format!("the pattern has `\\{other}`, which is no escape of ECMA-262"));
            }
            // Escaped, these two are the ends of words here.
            '<' | '>' => self.out.push(escaped),
            other if other.is_ascii_punctuation() => self.out.extend(['\\', other]),
            other => self.out.push(other),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, fits: &[&str], does_not: &[&str]) {
        let regex = compile(source).unwrap();
        for (texts, expected) in [(fits, true), (does_not, false)] {
            texts.iter().for_each(|text| assert_eq!(regex.is_match(text), expected, "{source} on {text:?}"));
        }
    }

    #[test]
    fn a_pattern_means_what_ecma_262_says() {
        check("b", &["abc", "b"], &["", "B"]);
        check("^\\d+$", &["0", "19"], &["", "1a", "٣", "1\n"]);
        check("^\\w\\W$", &["_ä", "a "], &["ä ", "aa"]);
        check("^\\s\\S$", &["\u{feff}a", "\u{2003}\u{85}"], &["\u{85}a", "  "]);
        check("^.$", &["a", "ä", "\u{1f600}"], &["\n", "\u{2028}", "ab"]);
        check("\\bno\\b", &["no", "a no b", "äno"], &["know"]);
        check("^a\\Bb$", &["ab"], &["a b"]);
        check("^\\/\\-\\<\\$\\u0041\\x42$", &["/-<$AB"], &["a"]);
        check("^\\p{Lu}\\p{Script=Greek}$", &["Äω"], &["äω", "Äo"]);
        check("(?i)^on$", &["On", "ON"], &["off"]);
        check("^(?:a|(?<name>b)){2,3}$", &["ab", "bbb"], &["a", "abab"]);
    }

    #[test]
    fn a_class_means_what_ecma_262_says() {
        check("^[a[b]$", &["a", "[", "b"], &["]", "c"]);
        check("^[a-c&&b]$", &["a", "&", "c"], &["d"]);
        check("^[~~a]$", &["~", "a"], &["b"]);
        check("^[^\\d]$", &["a", "٣"], &["1"]);
        check("^[\\w-.]+$", &["a-b.c"], &["a b", ","]);
        check("^[-\\d]+$", &["-1"], &["a"]);
        check("^[\\]\\\\\\b\\D]+$", &["]\\\u{8}x"], &["1"]);
        check("^[a\\-z]$", &["a", "-", "z"], &["m"]);
    }

    #[test]
    fn what_the_two_would_not_agree_on_is_refused() {
        for (source, why) in [
            ("^(?!a)", "looks around (`(?!`)"),
            ("(?<=a)b", "looks around (`(?<=`)"),
            ("(a)\\1", "refers back (`\\1`)"),
            ("(?<n>a)\\k<n>", "refers back"),
            ("[]a]", "empty class"),
            ("[^]", "empty class"),
            ("[a--z]", "`--`"),
            ("[+-\\d]", "range to `\\d`"),
            ("\\Aa\\Z", "`\\A`, which is no escape"),
            ("^\\cA$", "write its code, `\\x01` for `\\cA`"),
            ("(?x)a b", "`(?x)a`"),
            ("(?P=n)", "`(?P=n`"),
            ("a\\", "ends with `\\`"),
            ("(a", "unclosed group"),
            ("[a", "unclosed character class"),
            ("a{2,1}", "repetition"),
            ("\\p{Nobody}", "property not found"),
            ("\\b{start}x", "repetition"),
        ] {
            let refused = compile(source).unwrap_err();
            assert!(refused.contains(why), "{source}: {refused}");
        }
    }

    #[test]
    fn a_pattern_that_grows_is_refused() {
        assert!(compile(&"a".repeat(5000)).unwrap_err().contains("5000 bytes"));
        for large in ["((a{100}){100}){100}", "\\p{L}{40}"] {
            assert!(compile(large).unwrap_err().contains("compiled to more than 262144 bytes"), "{large}");
        }
        assert!(compile(&"(".repeat(4000)).is_err());
        let mut patterns = Patterns::default();
        for round in 0..2 {
            for index in 0..MAX_PATTERNS {
                assert_eq!(patterns.add(&format!("^{index}$")), Ok(index), "{round}");
            }
        }
        assert!(patterns.add("more").unwrap_err().contains("more than 128"));
    }
}
