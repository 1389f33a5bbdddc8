//! What others wrote, on somebody's terminal: shown, never obeyed.

/// Without control characters: they are escaped, so that a text stays on its line and in its colours.
pub(crate) fn shown(text: &str) -> String {
    text.chars().flat_map(escaped).collect()
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
    }
}
