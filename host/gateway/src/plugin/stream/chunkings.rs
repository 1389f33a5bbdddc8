//! The pieces in which a text comes. One of up to [`ALL_OF`] characters comes in each of its 2^(n-1) chunkings. Of a longer
//! one come: the whole, single characters, each cut in two, pieces of each length, and [`DRAWN`] chunkings drawn at random
//! from a fixed seed.

/// With both endings that is 8,192 streams, about a second of the quickest guards.
pub(super) const ALL_OF: usize = 13;
const DRAWN: usize = 64;
/// Longer texts are cut in two at this many places, evenly spread, and into pieces of as many lengths.
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
    chunkings.extend((2..count).step_by(step).map(|len| (len..count).step_by(len).collect()));
    let mut draw = blake3::Hasher::new().update(text.as_bytes()).finalize_xof();
    for _ in 0..DRAWN {
        let mut bits = vec![0_u8; count];
        draw.fill(&mut bits);
        chunkings.push((1..count).filter(|at| bits[*at] < 64).collect());
    }
    chunkings
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
    use std::collections::BTreeSet;

    #[test]
    fn a_short_text_comes_in_all_of_its_chunkings() {
        let pieces: BTreeSet<Vec<&str>> = chunkings("añ€b").iter().map(|cuts| cut("añ€b", cuts)).collect();
        assert_eq!(pieces.len(), 8);
        assert!(pieces.contains(&vec!["añ€b"]) && pieces.contains(&vec!["a", "ñ", "€", "b"]));
        assert_eq!(chunkings("").len(), 1);
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
