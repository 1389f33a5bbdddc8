//! The notation, matches, and what is refused.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use tidegate_plugin_sdk::scan::{Resume, Scanner, find_all, scan};

struct Only(Pattern);
impl Scanner for Only {
    fn end(&self) {
        self.0.end();
    }

    fn step(&self, at: Place<'_>) -> Step {
        self.0.step(at, 0)
    }
}

/// Goes from each place anew.
struct Forgetful(Pattern);
impl Scanner for Forgetful {
    fn step(&self, at: Place<'_>) -> Step {
        self.0.end();
        self.0.step(at, 0)
    }
}

thread_local! {
    /// Characters that a machine of this thread went over.
    pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_long_run_is_not_gone_through_at_each_of_its_places() {
    let runs = ["a".repeat(40_000), format!("{} ", "a".repeat(200)).repeat(200), "é".repeat(20_000)];
    for (pattern, text) in
        ["[a-zé]+@", r"\w*@", "a{3,}b", r"\w+\s\W", ".+@x"].into_iter().flat_map(|p| runs.iter().map(move |r| (p, r)))
    {
        STEPS.set(0);
        let pattern = Only(Pattern::new(pattern, true, 256).unwrap());
        assert_eq!(find_all(&pattern, text), []);
        assert!(STEPS.get() < 6 * text.len(), "{} steps", STEPS.get());
    }
}

#[test]
fn a_text_that_begins_much_and_ends_nothing_is_gone_through_once() {
    let texts = ["a".repeat(40_000), "key ".repeat(10_000), format!("{}=", "key ".repeat(120)).repeat(80)];
    let patterns = ["a.*b", "key.*=", "key.*#|z", "key(?:.*#)?", r"\bkey\b.*\bend", "a?.*#", "(?:key )+#|key"];
    let new = |pattern| Pattern::new(pattern, true, 256).unwrap();
    for (pattern, text) in patterns.into_iter().flat_map(|p| texts.iter().map(move |t| (p, t))) {
        STEPS.set(0);
        find_all(&Only(new(pattern)), text);
        assert!(STEPS.get() < 6 * text.len(), "{pattern}: {} steps", STEPS.get());
        let text = &text[..1_500];
        assert_eq!(find_all(&Only(new(pattern)), text), find_all(&Forgetful(new(pattern)), text), "{pattern}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn what_is_remembered_of_a_run_changes_nothing(text in "([ab]{0,12}([abc .é]|\\\\[nrt])){0,8}", max in 6_usize..10) {
        for pattern in ["a+b", "a*b", "[ab]+c", r"\w+\b\.", "a{2,}bc", r"\w*\bc", "[ab]+ab", ".+c", r"(?:\w+ )+c", "a+b{0,9}c", "a+|b+c", "a.*c", "a(?:.*c)?", r"\ba.*b\b", r"\bb+\b[^c]", r"\w\b\w+", "a[^c]*c|b.b", "(?:a|b.)*é"] {
            let new = || Pattern::new(pattern, true, max).unwrap();
            prop_assert_eq!(find_all(&Only(new()), &text), find_all(&Forgetful(new()), &text), "{}", pattern);
            // Of a stream, of which more is to come.
            let left = [scan_open(&Only(new()), &text), scan_open(&Forgetful(new()), &text)];
            prop_assert_eq!(&left[0], &left[1], "{}", pattern);
        }
    }
}

fn scan_open(scanner: &impl Scanner, text: &str) -> String {
    let mut resume = Resume::default();
    let scanned = scan(scanner, &mut resume, text, 0, false);
    format!("{scanned:?} {resume:?}")
}

fn found_in<'a>(pattern: &str, text: &'a str) -> Vec<&'a str> {
    let pattern = Only(Pattern::new(pattern, true, 64).unwrap());
    find_all(&pattern, text).into_iter().map(|hit| &text[hit.range]).collect()
}

#[test]
fn expressions_match_as_usual_and_the_longest_match_counts() {
    let check = |pattern, text, expected: &[&str]| assert_eq!(found_in(pattern, text), expected, "{pattern} in {text}");
    check("cat", "Cat scatter", &["Cat", "cat"]);
    check(r"\bcat\b", "cat scat cats (cat)", &["cat", "cat"]);
    check(r"EMP-\d{4,6}", "emp-1234 EMP-1234567 EMP-12", &["emp-1234", "EMP-123456"]);
    check("a|ab|abc", "abcd", &["abc"]);
    check("(?:ab)+", "ababab ab", &["ababab", "ab"]);
    check("x(y|zz)?w", "xw xyw xzzw xzw", &["xw", "xyw", "xzzw"]);
    check("[a-c1-3_]+", "xBa2_y", &["Ba2_"]);
    check("[^a-z ]+", "ab12 C-3", &["12", "-3"]);
    check(r"[]\-x]+", "a]-x]b", &["]-x]"]);
    check("[a-]+", "b-a-c", &["-a-"]);
    check(r"\w+\s\W", "héé !x", &["héé !"]);
    check(r"\x41\.\\\n", "a.\\\n", &["a.\\\n"]);
    check("a.c", "abc a\nc aéc", &["abc", "aéc"]);
    check("ü{2}", "üÜ", &["üÜ"]);
    for sigma in ["Σ", "σ", "ς", "[ρ-σ]", "[^α]"] {
        let pattern = format!("ΔΡΟΜΟ{sigma}");
        assert_eq!(found_in(&pattern, "δρόμος δρομος δρομοσ ΔΡΟΜΟΣ"), ["δρομος", "δρομοσ", "ΔΡΟΜΟΣ"], "{pattern}");
    }
    check("[^ς]b", "σb Σb ςb", &[""; 0]);
    check("[А-Я]{3}", "мир", &["мир"]);
    check("a{0,2}b", "aaab b", &["aab", "b"]);
    check(r"\b密码\b", "我的密码是 密码", &["密码", "密码"]);
    check(r"\bEMP-\d+\b", "员工EMP-12的 EMP-12x", &["EMP-12"]);
    check(r"\w+", "密码 ok", &["密码", "ok"]);
}

#[test]
fn case_counts_when_asked() {
    let pattern = Only(Pattern::new("[a-z]+", false, 64).unwrap());
    assert_eq!(find_all(&pattern, "abcDEF").len(), 1);
    let pattern = Only(Pattern::new("ς", false, 64).unwrap());
    assert_eq!(find_all(&pattern, "Σσς").len(), 1);
}

#[test]
fn repetition_without_an_end_stops_at_the_longest_match() {
    let text = "a".repeat(150);
    let lengths: Vec<usize> = found_in("a+", &text).iter().map(|found| found.len()).collect();
    assert_eq!(lengths, [64, 64, 22]);
    assert_eq!(found_in("a+b", &text), [""; 0]);
}

#[test]
fn no_character_of_a_class_has_fewer_bytes_than_is_counted() {
    let min_bytes = |text: &str| parse::parse(text).unwrap().min_bytes(true);
    for c in '\u{80}'..=char::MAX {
        let cased: Vec<char> = c.to_lowercase().chain(c.to_uppercase()).collect();
        for other in cased.into_iter().filter(|other| other.len_utf8() > c.len_utf8()) {
            assert!(min_bytes(&other.to_string()) <= c.len_utf8(), "{other:?} for {c:?}");
        }
    }
    assert_eq!(
        ["a", "я", "令", "\u{1F600}", "[a-令]", "[^a]", r"\w", "a令|яя"].map(min_bytes),
        [1, 2, 3, 4, 1, 1, 1, 4]
    );
}

#[test]
fn no_character_of_a_class_has_more_bytes_than_is_counted() {
    let max_bytes = |text: &str| parse::parse(text).unwrap().max_bytes();
    let spaces = ('\0'..=char::MAX).filter(|c| c.is_whitespace()).map(char::len_utf8).max();
    assert_eq!(max_bytes(r"\s"), spaces);
    assert_eq!(
        ["a", "я", "[a-令]", "[^a]", r"\d", r"[\sa]", r"\S", "."].map(max_bytes),
        [1, 2, 3, 4, 4, 3, 4, 4].map(Some)
    );
    for (text, expected) in [
        (r"\ba{2,5}b?\b", Some(6)),
        ("(?:ab|c{7}|d*){0,3}", Some(21)),
        ("a|b+", Some(1)),
        ("a{3,}", None),
        ("a+b|c*d{9}", Some(9)),
        ("x(?:a+)?", Some(1)),
        ("(?:xa+){2,3}", None),
        ("a{0,3}b{0,}", Some(3)),
    ] {
        assert_eq!(max_bytes(text), expected, "{text}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let check = |pattern: &str, expected: &str| {
        let Err(problem) = Pattern::new(pattern, true, 64) else { panic!("{pattern} was accepted") };
        assert!(problem.contains(expected), "{pattern}: {problem}");
    };
    check("^a", "anchors");
    check("a$", "anchors");
    check("a*?", "lazy");
    check("(?=a)", "(?:");
    check("(?i)a", "(?:");
    check(r"(a)\1", r"`\1` is not supported");
    check(r"\p{L}", r"`\p` is not supported");
    check("(a", "`(` without `)`");
    check("a)", "`)` without `(`");
    check("[a", "`[` without `]`");
    check("[z-a]", "no higher end");
    check("[[:alpha:]]", "`[` inside");
    check("*a", "repeats nothing");
    check("a{3,2}", "n <= m");
    check("a{9999}", "up to 480");
    check("a}", "stands alone");
    check(r"a\", "at the end");
    check("a*", "empty text");
    check("a?|b", "empty text");
    check("", "empty text");
    check("a{65}", "shortest match has 65");
    check("[а-я]{33}", "shortest match has 66 bytes");
    check("令{22}", "shortest match has 66 bytes");
    check("((a{400}){400})", "shortest match");
    check("a{1,65}", "longest match has 65 bytes; `max_match_bytes` is 64: raise that");
    check(r"id \d{1,16}", "longest match has 67 bytes");
    check("b+|a{0,60}.{2}", "longest match has 68 bytes");
    check(".{20}(?:a+)?", "longest match has 80 bytes");
    check(".{20}a*", "longest match has 80 bytes");
    check("(?:.a*){17}", "longest match has 68 bytes");
    check(&format!("a|{}", "b".repeat(65)), "longest match has 65 bytes");
    check("((a{0,400}){0,400}b)", "too large");
    check(&"(".repeat(40), "nested");
}
