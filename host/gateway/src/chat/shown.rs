//! An answer as it is shown: what the model reasons dimmed, or between two lines that say so where there are no colours.
//! What a model writes is text: it changes nothing of the terminal.

use crate::terminal::shown_lines;
use std::io::{self, Write};
use tidegate_types::FinishReason;

const DIM: &str = "\u{1b}[2m";
const NORMAL: &str = "\u{1b}[0m";
/// Ollama's lines.
const OPENS: &str = "Thinking...\n";
const CLOSES: &str = "...done thinking.\n\n";

/// How reasoning is told from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// By its colour.
    Dimmed,
    /// By lines around it: for files, pipes and terminals without colours.
    Marked,
}

impl Style {
    /// `no_color` is the variable of that name, where it is set and not empty (no-color.org), `term` is `TERM`.
    pub(super) fn of(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        if is_terminal && no_color.is_none() && term != Some("dumb") { Self::Dimmed } else { Self::Marked }
    }
}

/// One answer. A closed terminal ends the program by its next read, so that nothing here fails.
pub(super) struct Shown<'a, W> {
    out: &'a mut W,
    style: Style,
    /// The model reasons, and what it wrote of that ends a line.
    reasoning: Option<bool>,
    /// The last line goes on.
    is_mid_line: bool,
}

impl<'a, W: Write> Shown<'a, W> {
    pub(super) fn new(out: &'a mut W, style: Style) -> Self {
        Self { out, style, reasoning: None, is_mid_line: false }
    }

    /// Each piece is dimmed by itself: whoever interrupts the program is not left with a dim terminal.
    pub(super) fn reason(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let piece = shown_lines(piece);
        let _ = match (self.style, self.reasoning) {
            (Style::Dimmed, _) => write!(self.out, "{DIM}{piece}{NORMAL}"),
            (Style::Marked, None) => write!(self.out, "{OPENS}{piece}"),
            (Style::Marked, Some(_)) => write!(self.out, "{piece}"),
        };
        self.is_mid_line = !piece.ends_with('\n');
        self.reasoning = Some(!self.is_mid_line);
        let _ = self.out.flush();
    }

    pub(super) fn say(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let piece = shown_lines(piece);
        self.is_mid_line = !piece.ends_with('\n');
        let _ = self.close().and_then(|()| write!(self.out, "{piece}")).and_then(|()| self.out.flush());
    }

    /// Ends the answer's last line, and says on another one why there is no more of it where it is not whole.
    pub(super) fn end(mut self, finish: Option<FinishReason>) {
        let _ = self.close().and_then(|()| writeln!(self.out));
        if let Some(why) = finish.and_then(why_not_whole) {
            let _ = writeln!(self.out, "! {why}");
        }
    }

    /// Ends the line that a failure broke off, where one has begun: what is said of that stands on its own.
    pub(super) fn cut(self) {
        if self.is_mid_line {
            let _ = writeln!(self.out);
        }
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(ends_line) = self.reasoning.take() else { return Ok(()) };
        if !ends_line {
            writeln!(self.out)?;
        }
        match self.style {
            Style::Dimmed => writeln!(self.out),
            Style::Marked => write!(self.out, "{CLOSES}"),
        }
    }
}

fn why_not_whole(finish: FinishReason) -> Option<&'static str> {
    match finish {
        FinishReason::Stop => None,
        FinishReason::Length => Some("the answer is cut off: it has as many tokens as it may have"),
        FinishReason::ContentFilter => Some("a guard of the server has ended the answer"),
        FinishReason::ToolCalls => Some("the model calls a tool, and this chat has none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: Style, pieces: &[(bool, &str)]) -> String {
        let mut out = Vec::new();
        let mut shown = Shown::new(&mut out, style);
        for (reasons, piece) in pieces {
            if *reasons { shown.reason(piece) } else { shown.say(piece) }
        }
        shown.end(Some(FinishReason::Stop));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn reasoning_is_dimmed_piece_by_piece_and_a_line_apart() {
        let thought = shown(Style::Dimmed, &[(true, "A "), (true, "sum."), (false, "It is "), (false, "4.")]);
        assert_eq!(thought, "\u{1b}[2mA \u{1b}[0m\u{1b}[2msum.\u{1b}[0m\n\nIt is 4.\n");
        assert_eq!(shown(Style::Dimmed, &[(false, "4.")]), "4.\n");
    }

    #[test]
    fn without_colours_two_lines_are_around_it() {
        let pieces = [(true, "A "), (true, "sum.\n"), (false, ""), (true, ""), (true, "Of 2."), (false, "4.")];
        assert_eq!(shown(Style::Marked, &pieces), "Thinking...\nA sum.\nOf 2.\n...done thinking.\n\n4.\n");
        assert_eq!(shown(Style::Marked, &[(true, "Hm.\n")]), "Thinking...\nHm.\n...done thinking.\n\n\n");
        assert_eq!(shown(Style::Marked, &[(false, "4.")]), "4.\n");
    }

    /// Whoever writes what a model reads may have it say what clears a screen, or names a window.
    #[test]
    fn what_a_model_writes_is_shown_and_not_obeyed() {
        let pieces = [(true, "\u{1b}[2J"), (false, "a\tb\n\u{1b}]0;x\u{7}"), (false, "\rc")];
        let expected = "Thinking...\n\\u{1b}[2J\n...done thinking.\n\na\tb\n\\u{1b}]0;x\\u{7}\\rc\n";
        assert_eq!(shown(Style::Marked, &pieces), expected);
        assert_eq!(shown(Style::Dimmed, &[(true, "\u{9b}1m"), (false, "4.")]), "\u{1b}[2m\\u{9b}1m\u{1b}[0m\n\n4.\n");
    }

    #[test]
    fn a_line_that_a_failure_breaks_off_ends_and_no_other() {
        let cut = |style: Style, pieces: &[(bool, &str)]| {
            let mut out = Vec::new();
            let mut shown = Shown::new(&mut out, style);
            for (reasons, piece) in pieces {
                if *reasons { shown.reason(piece) } else { shown.say(piece) }
            }
            shown.cut();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(cut(Style::Dimmed, &[(false, "One, ")]), "One, \n");
        assert_eq!(cut(Style::Marked, &[(true, "Hm"), (false, "")]), "Thinking...\nHm\n");
        assert_eq!(cut(Style::Marked, &[(false, "One.\n")]), "One.\n");
        assert_eq!(cut(Style::Marked, &[]), "");
    }

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        assert_eq!(Style::of(true, None, Some("xterm")), Style::Dimmed);
        assert_eq!(Style::of(true, None, None), Style::Dimmed);
        for (is_terminal, no_color, term) in
            [(false, None, Some("xterm")), (true, Some("1"), Some("xterm")), (true, None, Some("dumb"))]
        {
            assert_eq!(Style::of(is_terminal, no_color, term), Style::Marked, "{no_color:?} {term:?}");
        }
    }
}
