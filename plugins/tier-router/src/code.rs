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

/// A fence, or at least two lines in code's shape that are a third of all; one line alone needs two marks.
pub fn looks_like_code(text: &str) -> bool {
    if text.lines().any(|line| line.trim_start().starts_with(FENCE)) {
        return true;
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shaped = lines.iter().filter(|line| is_code_line(line)).count();
    match lines.as_slice() {
        [line] => marks(line) >= 2,
        lines => shaped >= 2 && shaped * 3 >= lines.len(),
    }
}

fn is_code_line(line: &str) -> bool {
    let trimmed = line.trim();
    let ends = trimmed.ends_with([';', '{', '}']) || trimmed.ends_with("):");
    ends || marks(trimmed) > 0 || OPENERS.iter().any(|opener| trimmed.starts_with(opener) && !trimmed.ends_with('.'))
}

fn marks(line: &str) -> usize {
    let ends = usize::from(line.trim_end().ends_with([';', '{', '}']));
    MARKS.iter().filter(|mark| line.contains(**mark)).count() + ends
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
}
