//! Texts in pieces that a classifier can take: it reads a few thousand bytes at most, and one sentence of a long
//! text must count as much as it would alone.

/// Cuts a text into pieces of at most `most` bytes, behind white space where the second half of a piece has some.
pub fn cut(text: &str, most: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > most {
        let end = rest.floor_char_boundary(most);
        let from = rest.floor_char_boundary(most / 2);
        let border = rest[from..end].char_indices().rev().find(|(_, c)| c.is_whitespace());
        let at = border.map_or(end, |(at, c)| from + at + c.len_utf8());
        let (piece, behind) = rest.split_at(at);
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
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
        assert_eq!(cut("abcdefghij", 4), ["abcd", "efgh", "ij"]);
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

    proptest! {
        #[test]
        fn pieces_leave_out_nothing_but_white_space(text in "\\PC{0,60}|[ aé\u{1F600}\n]{0,80}", most in 4_usize..20) {
            let pieces = cut(&text, most);
            prop_assert!(pieces.iter().all(|piece| piece.len() <= most && !piece.trim().is_empty()));
            let dense = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(dense(&pieces.concat()), dense(&text));
        }
    }
}
