//! Texts in pieces that a classifier can take: it reads a few thousand bytes at most, and one sentence of a long
//! text must count as much as it would alone.

use std::borrow::Cow;

/// Bytes of a piece that the next one begins with, at most: what stands on a border is whole in one of the two, where it has no
/// more than half as many.
const OVERLAP: usize = 300;

/// Cuts a text into pieces of at most `most` bytes, behind white space where the second half of a piece has some. Each begins
/// before the end of the one before.
pub fn cut(text: &str, most: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > most {
        let end = rest.floor_char_boundary(most);
        let from = rest.floor_char_boundary(most / 2);
        let border = rest[from..end].char_indices().rev().find(|(_, c)| c.is_whitespace());
        let at = border.map_or(end, |(at, c)| from + at + c.len_utf8());
        pieces.push(&rest[..at]);
        rest = &rest[next_start(rest, at, most)..];
    }
    pieces.push(rest);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}

/// Where the piece behind one that ends at `at` begins: behind white space where the first half of the overlap has some.
fn next_start(text: &str, at: usize, most: usize) -> usize {
    let overlap = OVERLAP.min(most / 4).min(at / 2);
    let start = text.ceil_char_boundary(at - overlap);
    let border = text[start..at].char_indices().find(|(_, c)| c.is_whitespace());
    border.filter(|(offset, _)| *offset <= overlap / 2).map_or(start, |(offset, c)| start + offset + c.len_utf8())
}

/// The texts, each alone; of more than `alone` neighbours are put together, with a line between, as long as they are at most
/// `most` bytes.
pub fn gathered<'a>(texts: Vec<&'a str>, alone: usize, most: usize) -> Vec<Cow<'a, str>> {
    if texts.len() <= alone {
        return texts.into_iter().map(Cow::Borrowed).collect();
    }
    let mut gathered: Vec<Cow<'a, str>> = Vec::new();
    for text in texts {
        match gathered.last_mut() {
            Some(last) if last.len() + 1 + text.len() <= most => {
                let last = last.to_mut();
                last.push('\n');
                last.push_str(text);
            }
            _ => gathered.push(Cow::Borrowed(text)),
        }
    }
    gathered
}

/// How many of `sizes`, from the first, fit into one question: at most `most` of `bytes` together, but at least one.
pub fn fit(sizes: impl Iterator<Item = usize>, most: usize, bytes: usize) -> usize {
    let mut together = 0;
    let fitting = sizes.take(most).take_while(|size| {
        together += size;
        together <= bytes
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_cut_behind_white_space_where_there_is_some() {
        assert_eq!(cut("one two three four", 8), ["one two ", "three ", "four"]);
        assert_eq!(cut("abcdefghij", 4), ["abcd", "defg", "ghij"]);
        assert_eq!(cut("aaaa bb cc dd ee ff gg hh", 20), ["aaaa bb cc dd ee ff ", "ff gg hh"]);
        assert_eq!(cut("short", 8), ["short"]);
        for empty in ["", "  \n ", &" ".repeat(99)] {
            assert!(cut(empty, 8).is_empty());
        }
    }

    #[test]
    fn a_question_holds_what_fits_and_at_least_one() {
        assert_eq!(fit([5, 5, 5].into_iter(), 2, 100), 2);
        assert_eq!(fit([5, 5, 5].into_iter(), 9, 10), 2);
        assert_eq!(fit([50].into_iter(), 9, 10), 1);
    }

    #[test]
    fn small_neighbours_of_many_are_put_together() {
        let check = |texts: &[&str], expected: &[&str]| assert_eq!(gathered(texts.to_vec(), 3, 8), expected);
        check(&["a", "b", "c"], &["a", "b", "c"]);
        check(&["a", "b", "c", "d", "e"], &["a\nb\nc\nd", "e"]);
        check(&["a", "long enough", "b", "c", ""], &["a", "long enough", "b\nc\n"]);
    }

    #[test]
    fn what_stands_on_a_border_is_whole_in_one_of_the_pieces() {
        let told = "make a bomb from these seven things in the kitchen";
        let filler = "nothing to see here ".repeat(300);
        for before in 3_900..4_100 {
            let text = format!("{} {told} {filler}", &filler[..before]);
            assert!(cut(&text, 4_000).iter().any(|piece| piece.contains(told)), "{before}");
        }
    }

    proptest! {
        #[test]
        fn pieces_leave_out_nothing_but_white_space_and_overlap(
            text in "\\PC{0,60}|[ aé\u{1F600}\n]{0,80}|[ a\n]{0,200}",
            most in 4_usize..60,
        ) {
            let pieces = cut(&text, most);
            prop_assert!(pieces.iter().all(|piece| piece.len() <= most && !piece.trim().is_empty()));
            for (start, _) in text.char_indices() {
                // Half of the overlap, less the borders of characters and white space; one character at least.
                let len = text[start..].chars().next().map_or(0, char::len_utf8).max((most / 8).saturating_sub(8));
                let some = &text[start..text.floor_char_boundary((start + len).min(text.len()))];
                let is_in = |piece: &&str| {
                    let at = piece.as_ptr() as usize - text.as_ptr() as usize;
                    at <= start && start + some.len() <= at + piece.len()
                };
                prop_assert!(some.trim().is_empty() || pieces.iter().any(is_in), "{start} {pieces:?}");
            }
        }
    }
}
