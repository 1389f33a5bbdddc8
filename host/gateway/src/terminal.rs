//! What others wrote, on somebody's terminal: shown, never obeyed.

/// Without control characters: they are escaped, so that a text stays on its line and in its colours.
pub(crate) fn shown(text: &str) -> String {
    text.chars().flat_map(escaped).collect()
}

/// The same of a text that has lines: they end where it says, and tabs stay.
pub(crate) fn shown_lines(text: &str) -> String {
    text.chars().flat_map(|c| if matches!(c, '\n' | '\t') { vec![c] } else { escaped(c) }).collect()
}

fn escaped(character: char) -> Vec<char> {
    if character.is_control() { character.escape_default().collect() } else { vec![character] }
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
