//! The prompt of a completion that asks for it back (`echo`): what the guards left of it stands before the answer of each
//! choice, as text of the answer, so that stream guards judge the two as one text and output guards read both. Neither the
//! engine nor an upstream repeats it.

use tidegate_types::{Chat, Form};

/// Of one event: guards are given a window that fits their time, however long the prompt is, or what a source says at once.
pub(super) const PIECE_BYTES: usize = 4 << 10;

/// What is repeated, and in which choices it was already.
pub(super) struct Echo {
    prompt: String,
    begun: Vec<bool>,
}

impl Echo {
    /// Once no guard changes `chat` any more; `None` where nobody wants its prompt back.
    pub(super) fn of(chat: &Chat) -> Option<Self> {
        let prompt = match chat.form {
            Form::Completion { echo: true } => chat.prompt(),
            Form::Completion { echo: false } | Form::Chat => return None,
        };
        Some(Self { prompt, begun: vec![false; chat.n as usize] })
    }

    /// What stands before the answer of a choice, piece by piece, when that begins; nothing after that.
    pub(super) fn begin(&mut self, choice: u32) -> Vec<String> {
        let begun = self.begun.get_mut(choice as usize).map(|begun| std::mem::replace(begun, true));
        if begun == Some(false) { pieces(&self.prompt) } else { Vec::new() }
    }
}

/// The text in pieces of whole characters.
pub(super) fn pieces(mut text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let (piece, rest) = text.split_at(text.floor_char_boundary(PIECE_BYTES));
        pieces.push(piece.to_owned());
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Message, Role};

    #[test]
    fn each_choice_begins_with_the_whole_prompt_once() {
        let text = "ä€".repeat(PIECE_BYTES);
        let mut chat = Chat::new("m", vec![Message::text("m0", Role::User, text.as_str())]);
        assert!(Echo::of(&chat).is_none());
        (chat.form, chat.n) = (Form::Completion { echo: true }, 2);
        let mut echo = Echo::of(&chat).unwrap();
        for choice in [1, 0] {
            let pieces = echo.begin(choice);
            assert!(pieces.len() > 4 && pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert_eq!(pieces.concat(), text);
            assert!(echo.begin(choice).is_empty());
        }
        assert!(echo.begin(2).is_empty(), "no such choice");
    }
}
