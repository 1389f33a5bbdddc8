//! The pieces in which a text comes to a guard under test. `tidegate plugin test` has more of them, and cuts longer texts at random.

/// A text of up to so many characters comes in each of its 2^(n-1) chunkings.
const ALL_OF: usize = 12;
/// A longer one comes in pieces of so many lengths: short pieces have the most borders.
const LENGTHS: usize = 64;

/// Sets of bytes to cut a text at.
pub(super) fn chunkings(text: &str) -> Vec<Vec<usize>> {
    let borders: Vec<usize> = text.char_indices().skip(1).map(|(at, _)| at).collect();
    let count = borders.len() + 1;
    if count > ALL_OF {
        let lengths = (1..count).take(LENGTHS);
        return lengths.map(|len| borders.iter().copied().skip(len - 1).step_by(len).collect()).collect();
    }
    let chosen = |set: usize| (0..borders.len()).filter(move |idx| set >> idx & 1 == 1);
    (0..1_usize << borders.len()).map(|set| chosen(set).map(|idx| borders[idx]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cut;
    use super::*;
    use std::collections::BTreeSet;

    fn pieces(text: &str) -> BTreeSet<Vec<&str>> {
        chunkings(text).iter().map(|at| cut(text, at)).collect()
    }

    #[test]
    fn a_short_text_comes_in_all_of_its_chunkings() {
        let all = pieces("añ€b");
        assert_eq!(all.len(), 8);
        assert!(all.contains(&vec!["añ€b"]) && all.contains(&vec!["a", "ñ", "€", "b"]), "{all:?}");
        assert_eq!((pieces(&"é".repeat(ALL_OF)).len(), chunkings("").len()), (1 << (ALL_OF - 1), 1));
    }

    #[test]
    fn a_longer_text_comes_in_pieces_of_each_of_the_first_lengths() {
        let lengths = |count: usize| {
            let text = "é".repeat(count);
            let all = pieces(&text);
            assert!(all.iter().all(|pieces| pieces.concat() == text), "{all:?}");
            let first: BTreeSet<usize> = all.iter().map(|pieces| pieces[0].chars().count()).collect();
            assert_eq!(first.len(), all.len(), "{all:?}");
            first.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(lengths(ALL_OF + 1), (1..=ALL_OF).collect::<Vec<_>>());
        assert_eq!(lengths(500), (1..=LENGTHS).collect::<Vec<_>>());
    }
}
