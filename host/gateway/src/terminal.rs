//! What others wrote, on somebody's terminal: shown, never obeyed.

use tidegate_sandbox::capability::escape;

/// Without control characters: they are escaped, so that a text stays on its line and in its colours.
pub(crate) fn shown(text: &str) -> String {
    escape(text).into_owned()
}

/// The same of a text that has lines: they end where it says, and tabs stay.
pub(crate) fn shown_lines(text: &str) -> String {
    let lines = text.split('\n').map(|line| line.split('\t').map(shown).collect::<Vec<_>>().join("\t"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else_is() {
        assert_eq!(shown("größe\n\u{1b}[2J\u{9b}\"x\""), "größe\\n\\u{1b}[2J\\u{9b}\"x\"");
        assert_eq!(shown_lines("a\tb\n\u{1b}]0;x\u{7}\rc"), "a\tb\n\\u{1b}]0;x\\u{7}\\rc");
    }
}
