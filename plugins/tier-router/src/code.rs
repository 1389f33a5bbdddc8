//! Whether a text holds code: by its shape, without knowing any language.

/// Marks that prose hardly ever has.
const MARKS: &[&str] =
    &["();", "() {", "){", ") {", "=>", "->", "==", "!=", "&&", "||", "::", "+=", "</", "/>", "${", "#include"];

/// First words of lines of code.
const OPENERS: &[&str] = &[
    "def ",
    "class ",
    "import ",
    "from ",
    "fn ",
    "pub fn ",
    "let ",
    "const ",
    "var ",
    "function ",
    "func ",
    "public ",
    "private ",
    "static ",
    "return ",
    "if (",
    "for (",
    "while (",
    "switch (",
    "#include",
    "#define",
    "package ",
    "using ",
    "SELECT ",
    "INSERT INTO ",
    "UPDATE ",
    "CREATE TABLE ",
    "Traceback ",
    "File \"",
    "$ ",
    "@",
];

/// Lines that a fence needs behind it are not asked for: a fence alone says that code is meant.
const FENCE: &str = "```";

/// So many bytes of each end of a question are looked at: one that is longer must not use up the stage's time, or its caller
/// could choose that no rule holds.
const END_BYTES: usize = 32 * 1024;

/// Whether one of a question's texts is in code's shape. Of what is longer than both ends each text's share of these counts
/// by itself.
pub fn holds_code(texts: &[&str]) -> bool {
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    if bytes <= 2 * END_BYTES {
        return texts.iter().any(|text| looks_like_code(text));
    }
    let head = |text: &str, left: usize| text.floor_char_boundary(left);
    let tail = |text: &str, left: usize| text.ceil_char_boundary(text.len().saturating_sub(left));
    let mut from_head = within(texts.iter(), |text, left| &text[..head(text, left)]);
    let mut from_tail = within(texts.iter().rev(), |text, left| &text[tail(text, left)..]);
    from_head.any(looks_like_code) || from_tail.any(looks_like_code)
}

/// What `cut` leaves of each text, until that is `END_BYTES` together.
fn within<'a>(
    texts: impl Iterator<Item = &'a &'a str>,
    cut: impl Fn(&'a str, usize) -> &'a str,
) -> impl Iterator<Item = &'a str> {
    let mut left = END_BYTES;
    texts.map_while(move |text| {
        let some = (left > 0).then(|| cut(text, left))?;
        left -= some.len();
        Some(some)
    })
}

/// A fence, or at least two lines in code's shape that are a third of all; one line alone needs two marks.
fn looks_like_code(text: &str) -> bool {
    let (mut lines, mut shaped, mut last) = (0, 0, "");
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with(FENCE) {
            return true;
        }
        lines += 1;
        shaped += usize::from(is_code_line(line));
        last = line;
    }
    match lines {
        1 => marks(last) >= 2,
        _ => shaped >= 2 && shaped * 3 >= lines,
    }
}

/// Of a line without white space around it, as `marks`.
fn is_code_line(line: &str) -> bool {
    let opens = || OPENERS.iter().any(|opener| line.starts_with(opener) && !line.ends_with('.'));
    line.ends_with("):") || opens() || marks(line) > 0
}

/// How many of the marks a line has, and whether it ends as code does: one look at each byte.
fn marks(line: &str) -> u32 {
    let bytes = line.as_bytes();
    let mut found = 0_u32;
    // All marks begin with punctuation, which prose has little of.
    for at in (0..bytes.len()).filter(|at| bytes[*at].is_ascii_punctuation()) {
        for (idx, mark) in MARKS.iter().enumerate() {
            found |= u32::from(bytes[at..].starts_with(mark.as_bytes())) << idx;
        }
    }
    found.count_ones() + u32::from(line.ends_with([';', '{', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_by_its_shape() {
        for code in [
            "Why does this fail?\n```python\nprint(1)\n```",
            "fn main() {\n    println!(\"hi\");\n}",
            "Explain:\ndef f(x):\n    return x * 2",
            "for (int i = 0; i < n; i++) { sum += a[i]; }",
            "SELECT name FROM users\nWHERE id == 3;\nUPDATE users SET x = 1;",
            "const a = items.map(x => x.id);",
            "Traceback (most recent call last):\n  File \"a.py\", line 1\nValueError: no",
        ] {
            assert!(looks_like_code(code), "{code}");
        }
    }

    #[test]
    fn prose_is_not_code() {
        for prose in [
            "What is the capital of France?",
            "Let me know what you think.\nI will return on Monday; please wait.",
            "From Monday on we meet at nine.\nImport duties rise.\nClass begins at ten.",
            "a -> b",
            "Dear Sir,\n\nif you could write to jane@example.com, I would be glad.\n\nYours,\nJo",
            "",
            "\n\n",
        ] {
            assert!(!looks_like_code(prose), "{prose}");
        }
    }

    #[test]
    fn of_a_long_question_both_ends_are_looked_at_and_no_more() {
        let (prose, code) = ("Nothing é to see here. ".repeat(2_000), "\n```\nx\n```\n");
        let at_the_begin = format!("{code}{prose}{prose}");
        let at_the_end = format!("{prose}{prose}{code}");
        let in_the_middle = format!("{prose}{code}{prose}");
        assert!(holds_code(&[&at_the_begin]) && holds_code(&[&at_the_end]));
        assert!(holds_code(&[&prose, &prose, code]) && holds_code(&[code, &prose, &prose]));
        assert!(!holds_code(&[&in_the_middle]) && !holds_code(&[&prose, code, &prose]));
        let half = &prose[..prose.floor_char_boundary(END_BYTES - 100)];
        assert!(holds_code(&[half, code, half]), "one that is short enough is looked at as a whole");
    }

    #[test]
    fn every_mark_begins_with_punctuation() {
        assert!(MARKS.iter().all(|mark| mark.starts_with(|c: char| c.is_ascii_punctuation())));
        assert!(MARKS.len() <= 32);
    }
}
