//! The pieces in which a text comes. One of up to [`ALL_OF`] characters comes in each of its 2^(n-1) chunkings. Of a longer
//! one come: the whole, single characters, cuts in two at [`CUTS`] places at most, pieces of the first lengths, as many, and
//! [`DRAWN`] chunkings drawn at random from a fixed seed. None comes twice: their number is told.

use std::collections::BTreeSet;

/// With both endings that is 8,192 streams, about a second of the quickest guards.
pub(super) const ALL_OF: usize = 13;
const DRAWN: usize = 64;
/// Longer texts are cut in two at this many places, evenly spread, and into pieces of as many lengths, from 2 up: short pieces
/// have the most borders, and those of half the text are a cut in two.
const CUTS: usize = 64;

/// Sets of places to cut at, counted in characters.
pub(super) fn chunkings(text: &str) -> Vec<Vec<usize>> {
    let count = text.chars().count();
    if count <= ALL_OF {
        let borders = count.saturating_sub(1);
        return (0..1_usize << borders)
            .map(|set| (1..=borders).filter(|at| set >> (at - 1) & 1 == 1).collect())
            .collect();
    }
    let step = count.div_ceil(CUTS);
    let mut chunkings: Vec<Vec<usize>> = vec![Vec::new(), (1..count).collect()];
    chunkings.extend((1..count).step_by(step).map(|at| vec![at]));
    let lengths = (2..count.div_ceil(2)).take(CUTS);
    chunkings.extend(lengths.map(|len| (len..count).step_by(len).collect()));
    add_drawn(text, count, &mut chunkings);
    chunkings
}

/// It ends, for a text that does not come in all of its chunkings has thousands of them.
fn add_drawn(text: &str, count: usize, chunkings: &mut Vec<Vec<usize>>) {
    let mut known: BTreeSet<Vec<usize>> = chunkings.iter().cloned().collect();
    let (mut draw, wanted) = (blake3::Hasher::new().update(text.as_bytes()).finalize_xof(), chunkings.len() + DRAWN);
    while chunkings.len() < wanted {
        let mut bits = vec![0_u8; count];
        draw.fill(&mut bits);
        let cuts: Vec<usize> = (1..count).filter(|at| bits[*at] < 64).collect();
        if known.insert(cuts.clone()) {
            chunkings.push(cuts);
        }
    }
}

pub(super) fn cut<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let mut pieces = Vec::new();
    let mut from = 0;
    for at in cuts.iter().filter_map(|cut| borders.get(*cut)).chain([&text.len()]) {
        pieces.push(&text[from..*at]);
        from = *at;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_comes_in_all_of_its_chunkings() {
        let pieces: BTreeSet<Vec<&str>> = chunkings("añ€b").iter().map(|cuts| cut("añ€b", cuts)).collect();
        assert_eq!(pieces.len(), 8);
        assert!(pieces.contains(&vec!["añ€b"]) && pieces.contains(&vec!["a", "ñ", "€", "b"]));
        assert_eq!(chunkings("").len(), 1);
    }

    #[test]
    fn pieces_of_the_first_lengths_come_and_no_chunking_twice() {
        for count in [ALL_OF + 1, 18, 64, 65, 128, 640] {
            let all = chunkings(&"x".repeat(count));
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "of {count}");
            let lengths = 2..=(count.div_ceil(2) - 1).min(CUTS + 1);
            let pieces = |len: usize| (len..count).step_by(len).collect::<Vec<_>>();
            assert_eq!(lengths.clone().find(|len| !all.contains(&pieces(*len))), None, "of {count}");
            let cuts = (count - 1).div_ceil(count.div_ceil(CUTS));
            assert_eq!(all.len(), 2 + cuts + lengths.count() + DRAWN, "of {count}");
        }
    }

    #[test]
    fn pieces_make_the_text_whatever_its_length() {
        let text = "größe ".repeat(40);
        let all = chunkings(&text);
        assert!(all.len() > 150, "{}", all.len());
        assert!(all.iter().all(|cuts| cut(&text, cuts).concat() == text));
        // The whole, and single characters.
        assert!(all.contains(&Vec::new()) && all.contains(&(1..text.chars().count()).collect()));
    }
}
